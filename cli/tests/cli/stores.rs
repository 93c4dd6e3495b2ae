//! Tables in Redis: which commands work, where a store comes from, and that no password is shown.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use weirgate::{OnUnavailable, RateLimiter};
use weirgate_testkit::server::free_port;
use weirgate_testkit::{RedisServer, Temporary};

use super::fixtures::{Run, Table, weirgate, weirgate_with};

const PASSWORD: &str = "s3cret:/?#[]@%41 one";
/// The same in a URL.
const ENCODED: &str = "s3cret%3A%2F%3F%23%5B%5D%40%2541%20one";

fn shows_no_password(what: &str, run: &Run) {
    for part in ["s3cret", ENCODED] {
        let is_shown = run.stdout.contains(part) || run.stderr.contains(part);
        assert!(!is_shown, "{what}: {run:?}");
    }
}

fn fails(what: &str, run: &Run, code: i32, parts: &[&str]) {
    shows_no_password(what, run);
    assert_eq!(run.code, Some(code), "{what}: {run:?}");
    let is_one_line = run.stdout.is_empty() && run.stderr.trim_end().lines().count() == 1;
    assert!(is_one_line, "{what}: {run:?}");
    for part in parts {
        assert!(run.stderr.contains(part), "{what}: {part}: {run:?}");
    }
}

#[test]
fn a_store_may_come_from_a_variable_and_its_password_from_a_file() {
    let server = RedisServer::with(&["--requirepass", PASSWORD]);
    let at = |user: &str| format!("redis://{user}127.0.0.1:{}/", server.port());
    let (open, whole) = (at(""), at(&format!(":{ENCODED}@")));
    let file = Temporary::file("password", &format!("{PASSWORD}\n"));
    let list = "limits list";
    let from_file = ("WEIRGATE_STORE_PASSWORD_FILE", file.path());
    for (variables, options) in [
        (vec![], vec!["--store", &whole]),
        (vec![("WEIRGATE_STORE", &*whole)], vec![]),
        (vec![], vec!["--store", &open, "--store-password-file", file.path()]),
        (vec![("WEIRGATE_STORE", &*open), from_file], vec![]),
        (vec![from_file], vec!["--store", &at("default@")]),
        // An argument counts more than a variable.
        (vec![("WEIRGATE_TABLE", "limits")], vec!["--store", &whole]),
        (vec![("WEIRGATE_STORE", "redis://127.0.0.1:1")], vec!["--store", &whole]),
    ] {
        let words = [&options[..], &list.split(' ').collect::<Vec<_>>()].concat();
        let run = weirgate_with(&variables, words);
        assert_eq!(run.code, Some(0), "{variables:?} {options:?}: {run:?}");
        shows_no_password("it works", &run);
    }
    // The other way round, the variable of the store is left out.
    let run = weirgate_with(
        &[("WEIRGATE_STORE", &*whole), ("AWS_REGION", "us-east-1")],
        "--table limits --endpoint-url http://127.0.0.1:1 switches",
    );
    fails("a table", &run, 6, &["http://127.0.0.1:1 refuses connections"]);
}

#[test]
fn a_doctor_names_the_commands_that_the_user_may_not_run() {
    let server = RedisServer::start();
    let url = format!("redis://some:pass@127.0.0.1:{}", server.port());
    for (denied, shown) in [
        ("+@all", "allowed: read, list, acquire"),
        ("-hincrby", "not allowed: hincrby"),
        ("-@sortedset", "not allowed: zadd, zrange, zrem, zscore"),
    ] {
        let user = ["ACL", "SETUSER", "some", "reset", "on", ">pass", "~*", "+@all"];
        let port = server.port().to_string();
        let set = Command::new("redis-cli").args(["-p", &port]).args(user).arg(denied).output();
        assert_eq!(set.expect("it is there").stdout, b"OK\n");
        let run = weirgate(format!("--store {url} doctor").as_str());
        assert!(run.stdout.contains(shown), "{denied}: {run:?}");
    }
}

/// Options of a store that are wrong, the exit code, and what the error must name.
const WRONG: &str = "\
--store {plain} => 2 does not accept the user and password | {here} | --store-password-file
--store {wrong} => 2 does not accept the user and password | {here} | correct them in the URL
--store redis://:{encoded}@127.0.0.1:{closed} => 6 127.0.0.1 | refuses connections | check --store
--store rediss://:{encoded}@{here} => 6 {here} | nothing was sent | check --store
--store {evicting} => 1 maxmemory-policy | allkeys-lfu | CONFIG SET
--table valkey://some:s3cret@host => 2 must be a name or an ARN | got valkey://.. | --store
--table redis://some:s3cret@host => 2 must be a name or an ARN | got redis://.. | --store
--store redis://some:12#s3cret@host => 2 got redis://.. | with a # | percent-encode
--store s3cret => 2 the URL of the store must be | without a scheme | redis://
--store http://:s3cret@h => 2 must be redis:// | got http://.. | begin it
--store redis://u:s3cret/1@{here} => 2 must be redis:// | got redis://.. | percent-encode
--store redis://:s3cret@{here}/x => 2 must be redis:// | a path that is no number | leave it out
--store redis://:s3cret@{here}?tabel=x => 2 must be redis:// | neither table nor | leave it out
--store {plain} --store-password-file /no/such => 2 the password of the store | /no/such | check --store-password-file
--store {plain} --store-password-file {empty} => 2 must be one line | got none | correct the file
--store {plain} --store-password-file {two} => 2 must be one line | got several | correct the file
--store {wrong} --store-password-file {two} => 2 must be in one place | {two} | leave one out
--store {plain} --table limits => 2 '--store <URL>' | cannot be used with | '--table <NAME>'
--store {plain} --region eu-west-1 => 2 '--store <URL>' | cannot be used with | '--region <REGION>'
--table limits --store-password-file x => 2 '--store-password-file <PATH>' | needs | '--store <URL>'";

#[test]
fn what_is_wrong_with_a_store_is_one_line_with_its_remedy_and_without_its_password() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let evicting_server = RedisServer::with(&["--maxmemory-policy", "allkeys-lfu"]);
    let here = format!("127.0.0.1:{}", server.port());
    let evicting = evicting_server.url();
    let (empty, two) = (Temporary::file("empty", "\n"), Temporary::file("two", "s3cret\nor not\n"));
    let (plain, wrong) = (format!("redis://{here}/"), format!("redis://some:{ENCODED}@{here}/"));
    let closed = free_port().to_string();
    let names = [
        ("{plain}", &*plain),
        ("{wrong}", &*wrong),
        ("{here}", &*here),
        ("{encoded}", ENCODED),
        ("{closed}", &*closed),
        ("{evicting}", &*evicting),
        ("{empty}", empty.path()),
        ("{two}", two.path()),
    ];
    let rows =
        names.into_iter().fold(WRONG.to_owned(), |rows, (name, value)| rows.replace(name, value));
    for row in rows.lines() {
        let (options, error) = row.split_once(" => ").expect(row);
        let (code, parts) = error.split_once(' ').expect(row);
        let parts: Vec<_> = parts.split(" | ").collect();
        for command in ["switches", "peek user gpt-4", "limits set --system rpm=5/minute"] {
            let line = format!("--timeout 2s {options} {command}");
            fails(&line, &weirgate(&*line), code.parse().expect(row), &parts);
        }
    }
    let both = [("WEIRGATE_STORE", &*wrong), ("WEIRGATE_TABLE", "limits")];
    let run = weirgate_with(&both, "switches");
    fails("both", &run, 2, &["must not both be set", &here, "\"limits\"", "unset one"]);
    // What clap says of arguments and variables.
    for line in [
        format!("--stroe|{wrong}|switches"),
        wrong.clone(),
        format!("peek|user|gpt-4|{wrong}"),
        format!("--store|{wrong}|--store|{wrong}|switches"),
        format!("--table|{wrong}|switches"),
        format!("--namespace|{wrong}|--store|{plain}|switches"),
        format!("--store={wrong}|switches|--no-such"),
    ] {
        for json in ["", "--json|"] {
            let line = format!("{json}{line}");
            let run =
                weirgate_with(&[("WEIRGATE_STORE", &wrong)], line.split('|').collect::<Vec<_>>());
            fails(&line, &run, 2, &[]);
        }
    }
    let help = weirgate_with(&[("WEIRGATE_STORE", &wrong)], "--help-global");
    assert!(help.stdout.contains("[env: WEIRGATE_STORE"), "{help:?}");
    shows_no_password("help", &help);
}

#[test]
fn a_plan_of_a_store_names_it_without_user_and_password() {
    let server = RedisServer::with(&["--requirepass", PASSWORD]);
    let at = |user: &str, end: &str| format!("redis://{user}127.0.0.1:{}{end}", server.port());
    let table = Table::at(&at(&format!("default:{ENCODED}@"), ""));
    let limits =
        Temporary::file("limits", "weirgate: 1\nsystem: {limits: {rpm: {per_minute: 60}}}\n");
    let plan = Temporary::file("plan", "");
    table.text(["limits", "plan", limits.path(), "--out", plan.path(), "--force"]);
    let text = std::fs::read_to_string(plan.path()).expect("it is written");
    assert!(text.contains(&format!("\"{}\"", at("", "/0"))), "{text}");
    assert!(!text.contains("s3cret") && !text.contains("default@"), "{text}");
    let apply = ["limits", "apply", plan.path()];
    let other = Table::at(&at(&format!(":{ENCODED}@"), "/0?table=other"));
    let parts = ["the plan is for table", &at("", "/0"), "?table=other", "give --store redis://"];
    fails("another table", &other.run(apply), 2, &parts);
    // By another user, or with its password from elsewhere.
    let same = Table::at(&at(&format!(":{ENCODED}@"), "/0"));
    assert_eq!(same.text(apply), "applied: 1\n");
    assert_eq!(same.json("limits get --system")["config"]["limits"][0]["name"], "rpm");
    let audit = same.run("audit");
    shows_no_password("audit", &audit);
    let nothing = Table::at(&at(&format!(":{ENCODED}@"), "/0?table=other"));
    assert_eq!(nothing.run("limits get --system").code, Some(1));
}

/// A process that is killed at the end.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_live_page_shows_the_buckets_of_a_store() {
    let server = RedisServer::with(&["--requirepass", PASSWORD]);
    let store = format!("redis://:{ENCODED}@127.0.0.1:{}", server.port());
    Table::at(&store).text("acquire user-1 gpt-4 rpm=1 --limit rpm=5/day");
    let mut page = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    page.args(["--json", "page", "--port", "0"]).env_clear();
    let page = page.env("WEIRGATE_STORE", &store).stdout(Stdio::piped());
    let mut page = Killed(page.spawn().expect("the binary runs"));
    let mut line = String::new();
    let output = page.0.stdout.take().expect("it is piped");
    let read = BufReader::new(output).read_line(&mut line);
    read.expect("it says where it is");
    let started: Value = serde_json::from_str(&line).expect("one object");
    let url = started["page_url"].as_str().expect("a URL");
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let mut events = TcpStream::connect(address).expect("it listens");
    let bound = Some(Duration::from_secs(20));
    events.set_read_timeout(bound).expect("it has a bound");
    let request = format!("GET /events?entity=user-1 HTTP/1.1\r\nhost: {address}\r\n\r\n");
    events.write_all(request.as_bytes()).expect("it is sent");
    let lines = BufReader::new(events).lines().map_while(Result::ok);
    let (mut all, mut is_shown) = (String::new(), false);
    for line in lines {
        is_shown |= line.starts_with("data: ") && line.contains("gpt-4") && line.contains("rpm");
        all += &line;
        if is_shown {
            break;
        }
    }
    assert!(is_shown, "{all}");
    assert!(all.contains("\"table\":\"redis://127.0.0.1:"), "{all}");
    assert!(!all.contains("s3cret"), "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_of_a_store_says_nothing_of_dynamodb() {
    let server = RedisServer::start();
    let limiter = RateLimiter::builder(server.url()).build().await;
    let limiter = limiter.expect("it is built");
    let table = Table::at(&server.url());
    for policy in [Some(OnUnavailable::Deny), None] {
        let stored = limiter.admin().store_on_unavailable(policy).send().await;
        stored.expect("it is stored");
    }
    table.text("stop --system --yes");
    for words in ["audit", "audit --json"] {
        let audit = table.text(words);
        assert!(audit.contains("unavailable"), "{audit}");
        assert!(!audit.contains("DynamoDB"), "{audit}");
    }
}

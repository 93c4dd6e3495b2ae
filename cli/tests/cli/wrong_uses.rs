//! What people get wrong, and that the one line they read names the thing, its value and the remedy.

use weirgate_testkit::{Dynamo, Temporary};

use super::fixtures::{Run, Table, answering, commands, weirgate, weirgate_with};

/// Returns the rows of a part of the table: the command, its exit code, and what its error must name.
fn rows(part: &str) -> Vec<(&'static str, i32, Vec<&'static str>)> {
    let (_, rows) =
        include_str!("wrong_uses.txt").split_once(part).expect("the table has the part");
    let rows = rows.lines().skip(1).take_while(|line| !line.is_empty()).map(|line| {
        let (command, parts) = line.split_once(" => ").expect(line);
        let (code, command) = command.split_once(' ').expect(line);
        (command, code.parse().expect(line), parts.split(" | ").collect())
    });
    rows.collect()
}

/// Words of Rust, its libraries and the SDK, none of which a user can act on.
pub const FOREIGN: [&str; 17] = [
    "::",
    "dispatch failure",
    "failure: other",
    "no message",
    "io error",
    "client error",
    "invalid digit",
    "too large to fit",
    "non-zero",
    "0ns",
    "period_ms is",
    "config_ttl",
    "at line ",
    "[\"",
    "a value is required",
    "to pass '",
    "`encryption`",
];

/// Returns what is wrong with what a run says.
fn lacks(run: &Run, code: i32, what: &str, parts: &[&str]) -> Option<String> {
    let text = format!("{}{}", run.stdout, run.stderr);
    let missing = parts.iter().find(|part| !text.contains(**part));
    let foreign = FOREIGN.iter().find(|word| text.contains(**word));
    let is_wrong = missing.is_some()
        || foreign.is_some()
        || run.code != Some(code)
        || text.lines().count() != 1;
    is_wrong.then(|| format!("{what}: {missing:?}, {foreign:?}, {code}: {run:?}"))
}

/// Returns the options that an error names and its command does not have, apart from those that were
/// given.
fn unknown_options(arguments: &str, error: &str) -> Vec<String> {
    let path = commands(&[]).into_iter().filter(|path| {
        let words = format!(" {arguments} ");
        words.contains(&format!(" {path} "))
    });
    let path = path.max_by_key(String::len).unwrap_or_default();
    let mut known = weirgate("--help-global").stdout + &weirgate("--help").stdout;
    known += &weirgate(&*format!("{path} --help")).stdout;
    // Other commands that it names have options of their own.
    let pieces = error.split(['`', '\'']).collect::<Vec<_>>();
    let own = pieces
        .iter()
        .filter(|piece| !piece.starts_with("weirgate "))
        .flat_map(|piece| piece.split_whitespace());
    own.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '-'))
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .map(|word| word.split('=').next().unwrap_or_default().to_owned())
        .filter(|word| !arguments.contains(&**word) && !known.contains(&**word))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_only_options_that_its_command_has() {
    let table = Table::new().await;
    for command in [
        "peek user gpt-4",
        "acquire user gpt-4 rpm=1",
        "load user gpt-4 rpm=1 --rate 1",
        "usage --entity user --from 400d",
        "purge --yes",
        "erase user",
        "limits apply /dev/null",
        "limits set --system",
        "limits get --system",
        "limits delete --system",
        "entities get user",
        "split user gpt-4 --shards 3",
    ] {
        let run = table.run(command);
        assert_ne!(run.code, Some(0), "{command}: {run:?}");
        let unknown = unknown_options(command, &run.stderr);
        assert!(unknown.is_empty(), "{command}: {unknown:?}: {run:?}");
        let foreign = FOREIGN.iter().find(|word| run.stderr.contains(**word));
        assert_eq!(foreign, None, "{command}: {run:?}");
    }
    // What they name works.
    table.text("peek user gpt-4 rpm=1 --limit rpm=5/minute");
    table.text("usage --entity user --from 400d --kept 500d");
}

/// Whatever is missing or wrong between this process and DynamoDB.
#[test]
fn no_connection_is_told_in_one_sentence_with_endpoint_cause_and_remedy() {
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let alone =
        [("AWS_REGION", "eu-west-1"), ("AWS_EC2_METADATA_DISABLED", "true"), ("HOME", "/nowhere")];
    let html = "<html>It works!</html>";
    let answering = |status: &'static str| {
        let body = format!("HTTP/1.1 {status}\r\ncontent-type: text/html\r\nconnection: close\r\n");
        answering(&format!("{body}content-length: {}\r\n\r\n{html}", html.len()))
    };
    let (ok, missing, broken) =
        (answering("200 OK"), answering("404 Not Found"), answering("500 Internal Server Error"));
    let plain = ok.replace("http://", "https://");
    let smtp = self::answering("220 mail.example ESMTP\r\n");
    let closed = "http://127.0.0.1:1";
    let unknown = "http://dynamodb.invalid";
    let mut wrong = vec![];
    for (variables, url, code, parts) in [
        (&[][..], "", 2, ["no credentials", "set AWS_ACCESS_KEY_ID", "a profile"]),
        (
            &keys[..1],
            "",
            2,
            ["AWS_SECRET_ACCESS_KEY is not set", "AWS_ACCESS_KEY_ID is", "set both"],
        ),
        (
            &keys[1..],
            "",
            2,
            ["AWS_ACCESS_KEY_ID is not set", "AWS_SECRET_ACCESS_KEY is", "set both"],
        ),
        (&keys, closed, 6, [closed, "refuses connections", "check --region and --endpoint-url"]),
        (&keys, unknown, 6, [unknown, "has no address", "--endpoint-url"]),
        (&keys, &plain, 6, [&plain, "does not speak TLS", "http://"]),
        (&keys, &missing, 1, [&missing, "HTTP 404", "correct the endpoint"]),
        (&keys, &ok, 1, [&ok, "HTTP 200", "correct the endpoint"]),
        (&keys, &broken, 6, [&broken, "HTTP 500", "correct the endpoint"]),
        (&keys, &smtp, 6, [&smtp, "no usable answer", "the connection to"]),
    ] {
        for command in ["switches", "peek user gpt-4", "limits set --system rpm=5/minute"] {
            let mut words = vec!["--table", "limits", "--timeout", "3s"];
            if !url.is_empty() {
                words.extend(["--endpoint-url", url]);
            }
            words.extend(command.split(' '));
            let run = weirgate_with(&[&alone[..], variables].concat(), words);
            let what = format!("{url} {command}");
            wrong.extend(lacks(&run, code, &what, &parts));
            // All of them read first.
            let is_doubted = run.stderr.contains("may have been applied");
            wrong.extend(is_doubted.then(|| format!("{what}: {run:?}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_wrong_argument_names_thing_value_and_remedy() {
    let rows = rows("## without any table");
    assert!(rows.len() >= 75, "{}", rows.len());
    let wrong = rows.into_iter().filter_map(|(arguments, code, parts)| {
        lacks(&weirgate(arguments), code, arguments, &parts)
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_command_names_thing_value_and_remedy() {
    let table = Table::new().await;
    table.text("limits set --resource gpt-4 rpm=60/minute slots=2");
    table.text("acquire user gpt-4 rpm=1 slots=1 --lease 1h");
    let rows = rows("## on a table");
    assert!(rows.len() >= 19, "{}", rows.len());
    let wrong = rows
        .into_iter()
        .filter_map(|(command, code, parts)| lacks(&table.run(command), code, command, &parts));
    let mut wrong: Vec<_> = wrong.collect();
    let missing = Table::of(&Dynamo::empty()).run("switches");
    let parts = ["\"weirgate\"", "no such table", "check --table"];
    wrong.extend(lacks(&missing, 2, "no table", &parts));
    let file =
        Temporary::file("wrong.yaml", "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_week: 6}\n");
    let run = table.run(["limits", "apply", file.path()]);
    wrong.extend(lacks(&run, 2, "a file", &["wrong.yaml:4:11", "per_week", "per_minute"]));
    for (level, known) in [
        ("system", "limits, status, shadow, class"),
        ("resources: {r", "limits, status, shadow, class"),
        ("plans: {p", "limits, status, shadow, class, resources"),
        ("entities: {e", "limits, status, shadow, class, plan, parent, cascades, resources"),
    ] {
        let end = if level.contains('{') { "}" } else { "" };
        let text = format!("weirgate: 1\n{level}: {{wrong: 1}}{end}\n");
        let file = Temporary::file("unknown.yaml", &text);
        let run = table.run(["limits", "apply", file.path()]);
        wrong.extend(lacks(&run, 2, &text, &["\"wrong\" is unknown", known]));
    }
    let variables = [("AWS_CONFIG_FILE", "/nowhere"), ("AWS_PROFILE", "prod")];
    let run = weirgate_with(&variables, "--table weirgate switches");
    wrong.extend(lacks(&run, 2, "a profile", &["profile", "\"prod\"", "--profile"]));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

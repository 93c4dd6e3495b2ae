//! `weirgate local` as a terminal runs it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weirgate::{Clock, EntityId, Limit, RedisOptions, SystemClock, Table, Window};
use weirgate_shared::attr::{copied, copied_at};
use weirgate_shared::write::{self, AttributeUpdate, Update};
use weirgate_shared::{Millis, SnapshotKey};
use weirgate_store::ReturnValues;
use weirgate_testkit::server::ask;
use weirgate_testkit::{RedisServer, Temporary};

use super::fixtures::{Arguments, Run, weirgate, weirgate_with};
use super::wrong_uses::FOREIGN;

const LIMITS: &str = "weirgate: 1\nsystem: {limits: {rpm: {per_minute: 60}}}\n";

fn started(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    command.arg("local").args(arguments);
    // The table of a store has its own.
    if !arguments.contains(&"--store") {
        command.args(["--port", "0"]);
    }
    command.env_clear().stdout(Stdio::piped());
    command
}

/// `weirgate local`, which is stopped at the latest at the end.
struct Local {
    process: Child,
    /// What it says at the start.
    started: Value,
}

impl Local {
    fn start(arguments: &[&str]) -> Self {
        let mut process = started(arguments).arg("--json").spawn().unwrap();
        let mut line = String::new();
        let output = process.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let started = serde_json::from_str(&line).expect("one object");
        Self { process, started }
    }

    /// Runs a command with the environment that it says callers need.
    fn caller(&self, arguments: impl Arguments) -> Run {
        let variables = self.started["variables"].as_object().unwrap().iter();
        let variables = variables.map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
        weirgate_with(&variables.collect::<Vec<_>>(), arguments)
    }

    fn port(&self) -> &str {
        let endpoint = self.started["endpoint_url"].as_str().unwrap();
        endpoint.rsplit(':').next().unwrap()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn signal(process: &Child, signal: Signal) {
    let id = i32::try_from(process.id()).unwrap();
    kill(Pid::from_raw(id), signal).unwrap();
}

#[test]
fn its_variables_are_all_that_a_caller_needs_and_a_signal_ends_it() {
    let limits = Temporary::file("good.yaml", LIMITS);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut local = Local::start(&["--limits", limits.path()]);
        let take = || local.caller("acquire user-1 gpt-4 rpm=60");
        let (taken, denied) = (take(), take());
        assert_eq!((taken.code, denied.code), (Some(0), Some(3)), "{taken:?} {denied:?}");
        let peeked = local.caller("peek user-1 gpt-4 --json");
        let balances: Value = serde_json::from_str(&peeked.stdout).unwrap();
        assert_eq!(balances["limits"][0]["limit"], "rpm", "{balances}");
        // As `timeout` does it: to the process, and to its group.
        self::signal(&local.process, signal);
        self::signal(&local.process, signal);
        assert_eq!(local.process.wait().unwrap().code(), Some(0), "{signal}");
    }
}

/// As in a container, whose own address clients do not know.
#[test]
fn on_all_addresses_the_table_and_the_page_answer_by_their_allowed_names() {
    let address = ["--address", "0.0.0.0", "--allow-host", "weirgate"];
    let local = Local::start(&address);
    let status = |url: &str, path: &str, host: &str| {
        let address = local.started[url].as_str().unwrap();
        let address = address.trim_start_matches("http://").trim_end_matches('/');
        let (_, port) = address.split_once("127.0.0.1:").expect("an address to reach");
        let host = host.replace("PORT", port);
        ask(address, &format!("GET {path} HTTP/1.1\r\nhost: {host}"), "").0
    };
    for (host, table, page) in
        [("weirgate:1", 400, 200), ("127.0.0.1:PORT", 400, 200), ("other:PORT", 403, 403)]
    {
        let seen = [status("endpoint_url", "/", host), status("page_url", "/", host)];
        assert_eq!(seen, [table, page], "{host}");
    }
    let taken = local.caller("acquire user-1 gpt-4 rpm=60 --limit rpm=60/minute");
    assert_eq!(taken.code, Some(0), "{taken:?}");
}

#[test]
fn a_taken_port_and_a_wrong_file_are_one_line_with_the_remedy() {
    let local = Local::start(&[]);
    let wrong = "weirgate: 1\nsystem: {limits: {rpm: {per_minute: 0}}}\n";
    let wrong = Temporary::file("wrong.yaml", wrong);
    let in_use = format!("port {} of 127.0.0.1 is in use", local.port());
    let place = format!("{}:2:24: ", wrong.path());
    for (arguments, says) in [
        (&["--port", local.port()][..], [&*in_use, "--port"]),
        (&["--port", "0", "--limits", wrong.path()], [&*place, ""]),
    ] {
        let run = weirgate([&["local"], arguments].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(says.iter().all(|text| run.stderr.contains(text)), "{run:?}");
        assert_eq!((run.stderr.lines().count(), &*run.stdout), (1, ""), "{run:?}");
    }
}

#[test]
fn in_a_terminal_it_prints_exports_and_tells_what_the_functions_do() {
    let mut process = started(&[]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut exports = vec![];
    while exports.len() < 6 {
        let line = lines.next().expect("a line").unwrap();
        if let Some(export) = line.strip_prefix("export ") {
            let (name, value) = export.split_once('=').unwrap();
            exports.push((name.to_owned(), value.to_owned()));
        }
    }
    let exports: Vec<_> = exports.iter().map(|(name, value)| (&**name, &**value)).collect();
    let acquire = ["acquire", "user-1", "gpt-4", "rpm=1", "--limit", "rpm=60/minute"];
    let taken = weirgate_with(&exports, acquire);
    assert_eq!(taken.code, Some(0), "{taken:?}");

    let mut told = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.ends_with("aggregator 1 record, 1 usage copy\n"), "{line}");
    signal(&process, Signal::SIGINT);
    assert!(process.wait().unwrap().success());
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("error"), "{rest}");
}

/// What a process prints on a terminal of 100 columns.
struct Screen {
    terminal: std::fs::File,
    shown: String,
}

impl Screen {
    fn of(command: &mut Command) -> (Self, Child) {
        let size = nix::pty::Winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = nix::pty::openpty(&size, None).expect("a terminal");
        command.stdout(pty.slave.try_clone().expect("a copy"));
        let process = command.stderr(pty.slave).spawn().expect("it starts");
        let screen = Self { terminal: pty.master.into(), shown: String::new() };
        (screen, process)
    }

    /// Reads on until `is_shown` holds for all lines so far, also those that were replaced.
    fn until(&mut self, is_shown: impl Fn(&[&str]) -> bool) -> &str {
        while !is_shown(&self.shown.lines().flat_map(|line| line.split('\r')).collect::<Vec<_>>()) {
            let mut bytes = [0; 4_096];
            let read = self.terminal.read(&mut bytes).expect("it prints on");
            self.shown += &String::from_utf8_lossy(&bytes[..read]);
        }
        &self.shown
    }
}

/// Returns the number before a word of a line: 3 of `globex 9 granted, 3 denied`.
fn number_before(line: &str, word: &str) -> u64 {
    let (before, _) = line.split_once(word).unwrap_or_default();
    let number = before.split_whitespace().last();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns whether the page at this address tells a viewer of denials, within a minute.
fn shows_denials(page: &str) -> bool {
    let mut viewer = TcpStream::connect(page).expect("the page listens");
    let head = format!("GET /events?resource=chat HTTP/1.1\r\nhost: {page}\r\n\r\n");
    viewer.write_all(head.as_bytes()).expect("it reads");
    let end = Instant::now() + Duration::from_secs(60);
    let lines = BufReader::new(viewer).lines().map_while(Result::ok);
    let mut lines = lines.take_while(|_| Instant::now() < end);
    lines.any(|line| {
        let event = line.strip_prefix("data: ").unwrap_or_default();
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        event[0]["denied"].as_f64() > Some(0.0)
    })
}

#[test]
fn the_demo_has_traffic_denials_and_leases_and_its_commands_work() {
    let mut command = started(&["--page-port", "0", "--demo"]);
    let (mut screen, mut process) = Screen::of(&mut command);
    drop(command);
    let shown = screen.until(|lines| lines.iter().any(|line| line.contains("guide/start")));
    let shown = shown.to_owned();
    let exports = shown.lines().filter_map(|line| line.strip_prefix("  export "));
    let variables: Vec<_> = exports
        .flat_map(str::split_whitespace)
        .map(|variable| variable.split_once('=').expect("a value"))
        .collect();
    assert_eq!(variables.len(), 6, "{shown}");
    let commands = shown.lines().filter_map(|line| line.split_once("  weirgate "));
    let commands: Vec<_> = commands.map(|(_, command)| command).collect();
    assert_eq!(commands.len(), 5, "{shown}");
    let run = |command: &str| weirgate_with(&variables, command);

    // The second burst follows the denials of the first one.
    let second_burst = |line: &&str| {
        line.contains("globex")
            && number_before(&line[line.find("globex").unwrap()..], " granted") > 5
    };
    screen.until(|lines| lines.iter().any(&second_burst));
    let page = shown.split_once("Live page   http://").expect("a page").1;
    assert!(shows_denials(page.split_once('/').expect("a path").0));
    let leases = run("leases list initech jobs --json");
    let leases: Value = serde_json::from_str(&leases.stdout).expect("JSON");
    assert!(!leases["items"].as_array().expect("a list").is_empty(), "{leases}");
    let used = |tenant: &str| {
        let usage = run(&format!("usage --entity {tenant} --total --json")).stdout;
        let usage: Value = serde_json::from_str(&usage).expect("JSON");
        usage["usage"]["acquires"].as_u64().expect("a number")
    };
    let used = ["acme", "globex", "initech"].map(used);
    for command in commands {
        let run = run(command);
        assert_eq!(run.code, Some(0), "{command}: {run:?}");
        assert!(!run.stdout.is_empty(), "{command}: {run:?}");
    }
    // Two bursts of eight, of which none is denied any more.
    let counts = |line: &&str| {
        let globex = line.split(" | ").nth(1).filter(|_| line.contains("initech"))?;
        let [granted, denied] = [" granted", " denied"].map(|word| number_before(globex, word));
        globex.starts_with("globex").then_some((granted, denied))
    };
    let is_served = |lines: &[&str]| {
        let counts: Vec<_> = lines.iter().filter_map(counts).collect();
        let last = counts.last().copied().unwrap_or_default();
        let mut all = counts.iter();
        all.any(|(granted, denied)| granted + 16 <= last.0 && *denied == last.1)
    };
    let is_long = |lines: &[&str]| lines.iter().filter_map(counts).count() > 60;
    screen.until(|lines| is_served(lines) || is_long(lines));
    let shown = screen.shown.split(['\n', '\r']).collect::<Vec<_>>();
    assert!(is_served(&shown), "{shown:#?}");

    signal(&process, Signal::SIGINT);
    let mut rest = vec![];
    // A terminal without a process is an error to read from.
    let _ = screen.terminal.read_to_end(&mut rest);
    assert!(process.wait().unwrap().success());
    let rest = String::from_utf8(rest).expect("text");
    let last = rest.trim_end().rsplit(['\r', '\n']).next().unwrap_or_default();
    let tenants: Vec<_> = last.split(" | ").collect();
    let [acme, globex, initech] = tenants[..] else {
        panic!("{rest}");
    };
    assert!(number_before(globex, " denied") > 0, "{last}");
    for (tenant, used) in [acme, globex, initech].into_iter().zip(used) {
        assert!((1..=number_before(tenant, " granted")).contains(&used), "{last}: {used}");
    }
}

/// Returns the body of an answer of the live page.
fn page_answer(local: &Local, path: &str) -> Value {
    let url = local.started["page_url"].as_str().unwrap();
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let (status, body) = ask(host, &format!("GET {path} HTTP/1.1\r\nhost: {host}"), "");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn the_page_says_of_a_bucket_what_why_says() {
    let local = Local::start(&[]);
    for deed in [
        "limits set --resource gpu slots=8",
        "entities set user-1 --parent team",
        "exempt --entity team",
        "acquire user-1 gpu slots=3 --lease 1h",
    ] {
        let done = local.caller(deed);
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let why = local.caller("why user-1 gpu --json");
    let why: Value = serde_json::from_str(&why.stdout).unwrap();
    let page = page_answer(&local, "/why?entity=user-1&resource=gpu");
    assert_eq!(page, why);
    assert_eq!(why["limits"][0]["saturation"]["percent"], 38, "{why}");
    assert_eq!(why["lease_count"], 1);
    assert_eq!(why["changes"][0]["fields"][0]["after"], "exempt");
}

/// As `ssh -L` does it.
#[test]
fn a_request_for_another_host_is_refused_with_the_one_remedy() {
    let local = Local::start(&[]);
    let port: u16 = local.port().parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let table = TcpStream::connect(("127.0.0.1", port)).unwrap();
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), table.try_clone().unwrap()), (table, client)]
            {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    let run = weirgate(["--table", "weirgate", "--endpoint-url", &url, "switches"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.ends_with("or start the table with --allow-host\n"), "{run:?}");
}

#[test]
fn a_name_that_its_table_cannot_have_is_refused_with_the_remedy() {
    let arn = "arn:aws:dynamodb:eu-west-1:111111111111:table/weirgate";
    for name in ["weirgate-local", arn] {
        for run in [
            weirgate(["local", "--port", "0", "--table", name]),
            weirgate_with(&[("WEIRGATE_TABLE", name)], "local --port 0"),
        ] {
            assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
            let says = [name, "--table", "WEIRGATE_TABLE"];
            assert!(says.iter().all(|says| run.stderr.contains(says)), "{run:?}");
        }
    }
}

#[test]
fn a_folder_with_files_of_others_is_refused_and_they_stay() {
    let folder = Temporary::folder();
    let (lock, database) = (folder.join("lock"), folder.join("weirgate.sqlite"));
    std::fs::write(&lock, "kept").unwrap();
    std::fs::write(&database, "hello").unwrap();
    let data = ["local", "--port", "0", "--data", folder.path()];
    let run = weirgate(data);
    assert_eq!(run.code, Some(2), "{run:?}");
    for part in [database.to_str().unwrap(), "(--data)", "file is not a database"] {
        assert!(run.stderr.contains(part), "{run:?}");
    }
    let foreign = FOREIGN.iter().find(|word| run.stderr.contains(**word));
    assert_eq!(foreign, None, "{run:?}");
    assert_eq!(std::fs::read_to_string(&database).unwrap(), "hello");
    std::fs::remove_file(&database).unwrap();
    drop(Local::start(&data[3..]));
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), "kept");

    let mut other = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    other.args(&data[..4]).arg(OsStr::from_bytes(b"/tmp/weirgate-\xff"));
    let other = other.output().unwrap();
    let says = String::from_utf8(other.stderr).unwrap();
    assert_eq!(other.status.code(), Some(2), "{says}");
    assert!(says.contains("must be a path in UTF-8"), "{says}");
}

#[test]
fn the_pages_port_is_the_given_one_or_the_command_fails_with_the_option() {
    let first = Local::start(&[]);
    let url = first.started["page_url"].as_str().unwrap();
    let port = url.trim_end_matches('/').rsplit(':').next().unwrap();
    assert!((2775..2875).contains(&port.parse().unwrap()), "{url}");
    let taken = weirgate(["local", "--port", "0", "--page-port", port]);
    assert_eq!(taken.code, Some(2), "{taken:?}");
    let says = format!("port {port} of 127.0.0.1 is in use: choose another one (--page-port)");
    assert!(taken.stderr.contains(&says), "{taken:?}");
    // Without one, a second page is beside the first.
    let second = Local::start(&[]);
    assert_ne!(second.started["page_url"], first.started["page_url"]);
}

/// The most memory that a process had, in KiB.
fn peak_memory_kib(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

#[test]
fn twenty_large_bodies_at_once_take_the_memory_of_two() {
    let local = Local::start(&[]);
    let address = local.started["endpoint_url"].as_str().unwrap();
    let address = address.trim_start_matches("http://").to_owned();
    let filler = "x".repeat(15_900_000);
    let item = r#""Item": {"PK": {"S": "a"}, "SK": {"S": "b"}}"#;
    let body = format!(r#"{{"TableName": "weirgate", "Filler": "{filler}", {item}}}"#);
    let target = "x-amz-target: DynamoDB_20120810.PutItem";
    let head = format!("POST / HTTP/1.1\r\nhost: {address}\r\n{target}");
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let (status, answer) = ask(&address, &head, &body);
                assert_eq!(status, 200, "{answer}");
            });
        }
    });
    let peak = peak_memory_kib(&local.process);
    assert!(peak < 128 * 1024, "{peak} KiB");
}

/// The functions and the page of a table in Redis. Its password is shown nowhere.
#[test]
fn on_a_store_it_runs_the_functions_and_the_page_and_leaves_the_table() {
    let server = RedisServer::with(&["--requirepass", "s3cret"]);
    let store = format!("redis://:s3cret@127.0.0.1:{}/0", server.port());
    let limits = Temporary::file("store.yaml", "weirgate: 1\nsystem: {limits: {slots: 2}}\n");
    let on = |arguments: &str| {
        let words = ["--store", &store].into_iter();
        weirgate(words.chain(arguments.split(' ')).collect::<Vec<_>>())
    };
    let mut local = Local::start(&[
        "--store",
        &store,
        "--limits",
        limits.path(),
        "--reconcile-every",
        "50ms",
        "--page-port",
        "0",
        "--principal",
        "ops",
    ]);
    let said = local.started.to_string();
    let shown = format!("redis://127.0.0.1:{}/0", server.port());
    assert_eq!(local.started["store"], *shown, "{said}");
    assert_eq!(local.started["variables"]["WEIRGATE_STORE"], *shown);
    assert!(!said.contains("s3cret"), "{said}");
    // Nothing else returns the slot: no request comes to its bucket.
    let taken = on("acquire user-1 gpu slots=2 --lease 100ms");
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let begun = Instant::now();
    loop {
        let leases = on("--json leases list user-1 gpu");
        let leases: Value = serde_json::from_str(&leases.stdout).expect("JSON");
        if leases["items"].as_array().is_some_and(Vec::is_empty) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{leases}");
    }
    let address = local.started["page_url"].as_str().expect("a URL");
    let address = address.trim_start_matches("http://").trim_end_matches('/');
    let (status, page) = ask(address, &format!("GET / HTTP/1.1\r\nhost: {address}"), "");
    assert_eq!(status, 200, "{page}");
    signal(&local.process, Signal::SIGINT);
    assert_eq!(local.process.wait().unwrap().code(), Some(0));
    let kept = on("limits get --system");
    assert!(kept.stdout.contains("slots"), "{kept:?}");
    let audit = on("audit --system");
    assert!(audit.stdout.contains("ops"), "{audit:?}");
    for option in ["--demo", "--data=folder", "--port=0"] {
        let run = on(&format!("local {option}"));
        assert_eq!(run.code, Some(2), "{run:?}");
        let says = run.stderr.contains("got the store redis://127.0.0.1:");
        assert!(says && !run.stderr.contains("s3cret"), "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_on_a_store_it_shows_each_copy_that_is_refused() {
    let server = RedisServer::start();
    let table = Table::on_redis(&RedisOptions::new(server.url())).unwrap();
    table.records().unwrap().open().await.unwrap();
    // A copy that cannot be read, of an earlier life, in the snapshot of the day, whichever it is.
    let now = SystemClock.now();
    for at in [now, now.plus(Millis(86_400_000))] {
        let damaged = SnapshotKey {
            namespace: "default".try_into().unwrap(),
            entity: EntityId::new("user-1").unwrap(),
            resource: "r".try_into().unwrap(),
            window: Window::Daily,
            start: Window::Daily.start(at),
        };
        let set = |name, value| AttributeUpdate::Set(write::Path::of(name), value);
        let limit = Limit::per_day("rpd", 9).unwrap();
        let damaged = Update {
            key: damaged.item_key(),
            conditions: vec![],
            changes: vec![
                set(copied(limit.name(), 0), write::Value::Text("x".to_owned())),
                set(copied_at(0), write::Value::Int(1)),
            ],
        };
        let written = table.update(&damaged, ReturnValues::None).await;
        written.unwrap();
    }
    let store = ["--store", &server.url()].map(str::to_owned);
    let mut local = started(&["--page-port", "0", &store[0], &store[1]]);
    let mut local =
        Local { process: local.stderr(Stdio::piped()).spawn().unwrap(), started: Value::Null };
    let take = format!("{} acquire user-1 r rpd=3 --limit rpd=9/day", store.join(" "));
    let taken = weirgate(&*take);
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let mut said = vec![];
    let lines = BufReader::new(local.process.stderr.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        // It tells the batch after its refusals.
        let is_told = line.contains("1 refused write");
        said.push(line);
        if is_told {
            break;
        }
    }
    let of = |line: &String| line.contains("ERROR") && line.contains("rpd 3, 1 acquires");
    assert!(said.iter().any(of), "{said:#?}");
}

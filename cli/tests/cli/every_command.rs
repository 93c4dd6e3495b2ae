//! Every command with every error that any command meets: one line that says what to do, and the
//! exit code. The list of commands is that of the binary's own help.

use std::collections::BTreeSet;
use std::net::TcpListener;

use serde_json::Value;
use weirgate_testkit::server::{free_port, serve};
use weirgate_testkit::{Dynamo, RedisServer, Temporary};

use super::fixtures::{Table, commands, refusing, weirgate};

/// What a command does to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Changes nothing.
    Read,
    /// Changes something that another command restores, that ends by itself, or that callers do all
    /// the time.
    Write,
    /// Loses something, or denies callers what they have: it asks first.
    Destroy,
}
use Does::{Destroy, Read, Write};

/// Every command that reads or changes the table, with arguments that are right.
const ON_THE_TABLE: [(Does, &str, &[&str]); 51] = [
    (Read, "limits get", &["--system"]),
    (Write, "limits set", &["--system", "rpm=5/minute"]),
    (Destroy, "limits set", &["--system", "--disabled"]),
    (Destroy, "limits set", &["--resource", "gpt-4", "--replace", "rpm=5/day"]),
    (Destroy, "limits delete", &["--resource", "gpt-4"]),
    (Read, "limits list", &[]),
    (Read, "limits list", &["--resource", "gpt-4"]),
    (Read, "limits export", &[]),
    (Read, "limits diff", &["{file}"]),
    (Read, "limits plan", &["{file}"]),
    (Destroy, "limits apply", &["{plan}"]),
    (Read, "entities list", &[]),
    (Read, "entities children", &["team"]),
    (Read, "entities get", &["user"]),
    (Write, "entities set", &["user", "--parent", "team"]),
    (Write, "entities describe", &["user", "--name", "A"]),
    (Destroy, "entities delete", &["user"]),
    (Read, "plans list", &[]),
    (Destroy, "plans delete", &["pro"]),
    (Read, "usage", &["--plan", "pro"]),
    (Read, "namespaces", &[]),
    (Read, "buckets", &["--entity", "user"]),
    (Read, "leases list", &["user", "gpt-4"]),
    (Destroy, "leases release", &["user", "gpt-4", "0000000000011"]),
    (Read, "usage", &["--entity", "user"]),
    (Read, "why", &["user", "gpt-4"]),
    (Read, "peek", &["user", "gpt-4"]),
    (Write, "acquire", &["user", "gpt-4", "rpm=1"]),
    (Write, "load", &["user", "gpt-4", "rpm=1", "--rate", "1"]),
    (Destroy, "stop", &["--resource", "gpt-4"]),
    (Write, "exempt", &["--system"]),
    (Write, "start", &["--system"]),
    (Read, "switches", &[]),
    (Destroy, "reset", &["user", "gpt-4"]),
    (Destroy, "drain", &["user", "gpt-4"]),
    (Write, "top-up", &["user", "gpt-4", "rpm=1"]),
    (Write, "pause", &["user", "gpt-4", "30s"]),
    (Write, "resume", &["user", "gpt-4"]),
    (Write, "split", &["user", "gpt-4", "--shards", "2"]),
    (Write, "merge", &["user", "gpt-4"]),
    (Read, "audit", &[]),
    (Read, "audit", &["--system"]),
    (Destroy, "erase", &["user"]),
    (Destroy, "purge", &[]),
    (Write, "replay", &["{file}"]),
    (Read, "doctor", &[]),
    (Read, "page", &["--port", "0"]),
    (Write, "reconcile", &[]),
    (Read, "reconcile", &["--dry-run"]),
    (Read, "usage", &["--resource", "gpt-4", "--total"]),
    (Read, "buckets", &["--resource", "gpt-4"]),
];

/// Commands that use no table.
const ELSEWHERE: [&str; 4] = ["completions", "docs", "local", "man"];

#[test]
fn the_table_has_every_command() {
    let known = ON_THE_TABLE.iter().map(|(_, path, _)| *path).chain(ELSEWHERE);
    let known: BTreeSet<_> = known.map(str::to_owned).collect();
    let listed: BTreeSet<_> = commands(&[]).into_iter().collect();
    assert_eq!(listed, known, "a new command gets a row in this test");
}

/// Files that some commands read.
struct Files {
    limits: Temporary,
    plan: Temporary,
}

impl Files {
    fn new(name: &str) -> Self {
        let plan = r#"{"weirgate_plan":1,"table":"weirgate","namespace":"default","configs":[{"level":{"level":"system"},"version":0,"before":null,"after":{"limits":[{"name":"slots","slots":2}]}}],"entities":[]}"#;
        Self {
            limits: Temporary::file(
                name,
                "weirgate: 1\nsystem: {limits: {rpm: {per_minute: 60}}}\n",
            ),
            plan: Temporary::file(&format!("{name}-plan"), plan),
        }
    }

    fn fill<'a>(&'a self, argument: &'a str) -> &'a str {
        match argument {
            "{file}" => self.limits.path(),
            "{plan}" => self.plan.path(),
            other => other,
        }
    }
}

/// Runs every command with `options`, and requires this exit code and one line that contains
/// `remedy`, as text and as JSON.
fn every_command_fails(name: &str, options: &[&str], code: i32, remedy: &str) {
    let files = Files::new(name);
    for (does, path, arguments) in ON_THE_TABLE {
        let path: Vec<_> = path.split(' ').collect();
        let mut arguments: Vec<_> = arguments.iter().map(|argument| files.fill(argument)).collect();
        arguments.extend((does == Destroy).then_some("--yes"));
        let run = weirgate([&["--timeout", "1s"], options, &path[..], &arguments[..]].concat());
        let seen = format!("{path:?} {options:?}: {run:?}");
        assert_eq!(run.code, Some(code), "{seen}");
        assert!(run.stdout.is_empty(), "{seen}");
        assert_eq!(run.stderr.trim_end().lines().count(), 1, "{seen}");
        assert!(run.stderr.starts_with("error: ") && run.stderr.contains(remedy), "{seen}");
        // The crate's errors have remedies of their own, and one is enough.
        for other in ["deploy the stack", "the network", "needs this action", "if this repeats"] {
            assert!(!run.stderr.contains(other), "{seen}");
        }
    }
}

#[test]
fn a_wrong_argument_is_named_and_the_help_too() {
    let options = ["--no-such-option"];
    every_command_fails("wrong", &options, 2, "unexpected argument '--no-such-option' found; ");
    for (arguments, help) in [
        ("limits get --sytem", "limits get"),
        ("limits gte", "limits"),
        ("limit get", ""),
        ("--timeout x limits get --system", "limits get"),
        ("--table peek limits set --system rpm=5/week", "limits set"),
        ("peek user", "peek"),
        ("acquire limits get rpm", "acquire"),
        ("acquire user gpt-4 rpm=1 --wait soon", "acquire"),
        ("audit --system --from yesterday", "audit"),
        ("top-up user gpt-4 rpm=1 rpm=2", "top-up"),
    ] {
        let run = weirgate(arguments);
        let path = format!("weirgate {help}");
        let line = format!("; see '{} --help'\n", path.trim_end());
        let is_named = run.stderr.ends_with(&line);
        assert!(is_named && run.code == Some(2), "{arguments}: {run:?}");
    }
    let run = weirgate("--json peek");
    let error: serde_json::Value = serde_json::from_str(&run.stderr).expect("JSON");
    assert_eq!(error["error"]["exit_code"], 2, "{run:?}");
}

/// 3 to 7 are those of `acquire`, an endpoint without an answer and `diff`, in other tests here.
#[test]
fn the_guide_has_the_exit_codes_of_the_help() {
    let guide = include_str!("../../../docs/guide/command-line.md");
    let help = weirgate("--help").stdout;
    let (_, codes) = help.split_once("Exit codes:\n").expect("exit codes");
    let lines: Vec<_> = codes.lines().map_while(|line| line.strip_prefix("  ")).collect();
    assert_eq!(lines.len(), 8, "{help}");
    for line in lines {
        assert!(!line.contains("DynamoDB"), "the table may be in Redis: {line}");
        let (code, meaning) = line.split_once("  ").expect("a code and its meaning");
        assert!(guide.contains(&format!("\n- {code}: {meaning}\n")), "{line}");
    }
}

/// Gives a table something for each command that destroys. Returns the id of a lease.
fn fill(table: &Table) -> String {
    table.text("limits set --resource gpt-4 rpm=5/day slots=2");
    table.text("limits set --plan pro rpm=5/day");
    table.text("entities set user --parent team");
    let granted = table.json("acquire user gpt-4 rpm=2 slots=1 --lease 1h");
    let lease = granted["lease_id"].as_str().expect("slots have a lease");
    // A purge refuses a namespace that callers use.
    table.text("stop --system --yes");
    lease.to_owned()
}

/// Returns the arguments of a row, for a table with this lease.
fn row<'a>(lease: &'a str, files: &'a Files, path: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    let arguments = arguments.iter().map(|argument| match *argument {
        "0000000000011" => lease,
        "{plan}" => files.limits.path(),
        other => files.fill(other),
    });
    let mut all: Vec<_> = path.split(' ').chain(arguments).collect();
    all.extend(matches!(path, "erase" | "purge").then_some("--discard-leases"));
    all
}

/// A table with something for each command that destroys.
struct Filled {
    dynamo: Dynamo,
    table: Table,
    lease: String,
}

impl Filled {
    async fn new() -> Self {
        let dynamo = Dynamo::new().await;
        let table = Table::of(&dynamo);
        let lease = fill(&table);
        let _ = dynamo.take_operations();
        Self { dynamo, table, lease }
    }

    /// Returns the arguments of a row, for this table.
    fn fill<'a>(&'a self, files: &'a Files, path: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
        row(&self.lease, files, path, arguments)
    }

    /// Requires that nothing has written since the last call.
    fn assert_not_written(&self, what: &str) {
        let operations = self.dynamo.take_operations();
        let reads = ["BatchGetItem", "GetItem", "Query", "Scan"];
        let mut written = operations.keys();
        let written = written.find(|operation| !reads.contains(&operation.as_str()));
        assert_eq!(written, None, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_that_destroys_asks_and_has_a_dry_run_that_writes_nothing() {
    let files = Files::new("destroys");
    for (does, path, arguments) in ON_THE_TABLE {
        let help = weirgate(format!("{path} --help").as_str()).stdout;
        let has = |option: &str| help.lines().any(|line| line.trim_start().starts_with(option));
        // The doctor writes with --acceptance alone, which asks.
        let destroys = |row: &(Does, &str, &[&str])| row.0 == Destroy && row.1 == path;
        let asks = ON_THE_TABLE.iter().any(destroys) || path == "doctor";
        assert_eq!(has("--yes"), asks, "{help}");
        assert!(does != Destroy || has("--dry-run"), "{help}");
        if does != Destroy {
            continue;
        }
        let filled = Filled::new().await;
        let (table, items) = (&filled.table, filled.dynamo.items());
        let command = filled.fill(&files, path, arguments);
        let unasked = table.run(&command);
        assert_eq!(unasked.code, Some(2), "{command:?}: {unasked:?}");
        assert!(unasked.stderr.ends_with("there is no terminal to ask: add --yes\n"));
        filled.assert_not_written(path);
        let declined = table.run_typing("no\n", &command);
        assert_eq!(declined.code, Some(2), "{command:?}: {declined:?}");
        assert!(declined.stderr.contains("This will ") && declined.stderr.contains("Type "));
        filled.assert_not_written(path);
        let dry = table.run([&command[..], &["--dry-run"]].concat());
        assert_eq!(dry.code, Some(0), "{command:?}: {dry:?}");
        let said = dry.stdout + &dry.stderr;
        assert!(said.contains("dry run") || said.contains("would be"), "{said}");
        filled.assert_not_written(path);
        assert_eq!(filled.dynamo.items(), items, "{path}");
        let done = table.run([&command[..], &["--yes"]].concat());
        assert_eq!(done.code, Some(0), "{command:?}: {done:?}");
        assert_ne!(filled.dynamo.items(), items, "{path} destroys nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_reads_and_every_dry_run_leave_the_table_as_it_is() {
    let (files, filled) = (Files::new("reads"), Filled::new().await);
    let items = filled.dynamo.items();
    for (does, path, arguments) in ON_THE_TABLE {
        let help = weirgate(format!("{path} --help").as_str()).stdout;
        let has_dry_run = help.contains("--dry-run");
        if path == "page" || does != Read && !has_dry_run {
            continue;
        }
        let mut command = filled.fill(&files, path, arguments);
        let is_given = command.contains(&"--dry-run");
        command.extend((does != Read && !is_given).then_some("--dry-run"));
        let run = filled.table.run(&command);
        assert!(matches!(run.code, Some(0 | 1)), "{command:?}: {run:?}");
        assert_eq!(filled.dynamo.items(), items, "{command:?}: {run:?}");
    }
}

/// Commands that need a table in DynamoDB, and what they say of a store.
const NOT_ON_A_STORE: [(&str, &str); 3] = [
    ("split", "a bucket in Redis is one shard"),
    ("merge", "a bucket in Redis is one shard"),
    ("replay", "a store has no failure bucket"),
];

/// Exit codes other than 0, of commands that find something.
const CODES_ON_A_STORE: [(&str, i32); 3] = [
    // The system level has no limits, and is stopped.
    ("limits get", 1),
    ("acquire", 5),
    // The server of the test keeps nothing on disk.
    ("doctor", 1),
];

#[test]
fn every_command_works_on_a_store_or_is_refused_before_anything_is_sent() {
    let (files, server) = (Files::new("stores"), RedisServer::start());
    let mut wrong = vec![];
    let nowhere = Table::at(&format!("redis://some:s3cret@127.0.0.1:{}", free_port()));
    for (number, (does, path, arguments)) in ON_THE_TABLE.into_iter().enumerate() {
        // It ends by a signal alone.
        if path == "page" {
            continue;
        }
        let table = Table::at(&format!("{}?table=t{number}", server.url()));
        let refused = NOT_ON_A_STORE.iter().find(|(name, _)| *name == path);
        if let Some((_, reason)) = refused {
            let command = row("", &files, path, arguments);
            let run = nowhere.run(&command);
            assert_eq!(run.code, Some(2), "{command:?}: {run:?}");
            let said = format!(
                "error: {path} must be for a table in DynamoDB, got the store redis://127.0.0.1:"
            );
            assert!(run.stderr.starts_with(&said), "{command:?}: {run:?}");
            assert!(run.stderr.contains(reason), "{command:?}: {run:?}");
            assert_eq!(run.stderr.lines().count(), 1, "{command:?}: {run:?}");
            continue;
        }
        let lease = fill(&table);
        let mut command = row(&lease, &files, path, arguments);
        command.extend((does == Destroy).then_some("--yes"));
        command.extend((path == "load").then_some("--for=100ms"));
        let run = table.run(&command);
        let expected = CODES_ON_A_STORE.iter().find(|(name, _)| *name == path);
        let code = expected.map_or(0, |(_, code)| *code);
        wrong.extend((run.code != Some(code)).then(|| format!("{command:?}: {run:?}")));
        let unreachable = nowhere.run([&["--timeout", "1s"], &command[..]].concat());
        let expected = (Some(6), true);
        let says = unreachable.stderr.contains("check --store");
        assert_eq!((unreachable.code, says), expected, "{command:?}: {unreachable:?}");
        assert!(!unreachable.stderr.contains("s3cret"), "{unreachable:?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (option, remedy) in
        [("--acceptance", "run doctor without it"), ("--stack=weirgate", "leave --stack out")]
    {
        let run = nowhere.run(["doctor", option]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(remedy), "{run:?}");
    }
}

/// Commands that read something else than a list, as `usage --total` does.
const NO_LISTS: [&str; 9] = [
    "doctor",
    "entities get",
    "limits diff",
    "limits export",
    "limits get",
    "limits plan",
    "page",
    "peek",
    "why",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_json_of_every_list_is_its_items_and_how_it_goes_on() {
    let (files, filled) = (Files::new("lists"), Filled::new().await);
    let mut lists: Vec<_> = (ON_THE_TABLE.iter().copied())
        .filter(|(does, path, arguments)| {
            *does == Read && !NO_LISTS.contains(path) && !arguments.contains(&"--total")
        })
        .collect();
    lists.push((Read, "usage", &["--resource", "gpt-4", "--top"]));
    for (_, path, arguments) in lists {
        let command = filled.fill(&files, path, arguments);
        let list = filled.table.json(&command);
        assert!(list["items"].is_array(), "{command:?}: {list}");
        assert_eq!(list.get("next"), Some(&Value::Null), "{command:?}: {list}");
    }
}

/// Adds the names of all fields of a value, without the entries of maps, whose keys are names of limits, resources and
/// labels.
fn add_fields(value: &Value, fields: &mut BTreeSet<String>) {
    const MAPS: [&str; 5] = ["tokens", "before_tokens", "after_tokens", "resources", "labels"];
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                fields.insert(name.clone());
                match (value, MAPS.contains(&&**name)) {
                    (Value::Object(entries), true) => {
                        entries.values().for_each(|entry| add_fields(entry, fields));
                    }
                    _ => add_fields(value, fields),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_fields(value, fields)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_every_json_is_in_the_guide() {
    let guide = [
        include_str!("../../../docs/guide/command-line.md"),
        include_str!("../../../docs/guide/json.md"),
        include_str!("../../../docs/guide/functions.md"),
        include_str!("../../../docs/operations.md"),
    ]
    .concat();
    let files = Files::new("fields");
    let mut missing = BTreeSet::new();
    for (does, path, arguments) in ON_THE_TABLE {
        // Both run until a signal.
        if matches!(path, "page" | "load") {
            continue;
        }
        let filled = Filled::new().await;
        let mut command = vec!["--json"];
        command.extend(filled.fill(&files, path, arguments));
        let runs = match does {
            Destroy => vec!["--dry-run", "--yes"],
            _ => vec![""],
        };
        for option in runs {
            let mut command = command.clone();
            command.extend((!option.is_empty()).then_some(option));
            let run = filled.table.run(&command);
            let json = serde_json::from_str::<Value>(&run.stdout);
            let json = json.or_else(|_| serde_json::from_str(&run.stderr));
            let mut fields = BTreeSet::new();
            add_fields(&json.unwrap_or_else(|error| panic!("{error}: {run:?}")), &mut fields);
            let is_said = |field: &String| {
                guide.contains(&format!("`{field}`")) || guide.contains(&format!("\"{field}\":"))
            };
            fields.retain(|field| !is_said(field));
            missing.extend(fields.into_iter().map(|field| format!("{path}: {field}")));
        }
    }
    assert_eq!(missing, BTreeSet::new(), "write them into docs/guide/command-line.md");
}

/// Each error, with the options that bring every command into it.
#[test]
fn every_error_of_every_command_is_one_line_with_its_remedy() {
    let on = |endpoint: String| {
        let options = ["--table", "weirgate", "--endpoint-url"].map(str::to_owned);
        [&options[..], &[endpoint]].concat()
    };
    let denied = "User: arn:aws:sts::123456789012:assumed-role/dev/me is not authorized to perform: \
                  dynamodb:GetItem on resource: arn:aws:dynamodb:eu-west-1:123456789012:table/weirgate";
    let expired = "The security token included in the request is expired";
    // Bound and closed again, so nothing listens there.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let free = free.expect("a port is free");
    for (name, options, code, remedy) in [
        (
            "none",
            vec![],
            2,
            "give --table NAME or --store URL, or set WEIRGATE_TABLE or WEIRGATE_STORE",
        ),
        ("missing", on(serve(&Dynamo::empty())), 2, "check --table, --region and --profile"),
        (
            "denied",
            on(refusing("AccessDeniedException", denied)),
            2,
            "weirgate docs security#policies-for-callers",
        ),
        (
            "endpoint",
            on("http://127.0.0.1:8000.".to_owned()),
            2,
            "a port (1 to 65535) unless it is the standard one",
        ),
        ("unreachable", on(format!("http://{free}")), 6, "check --region and --endpoint-url"),
        (
            "expired",
            on(refusing("ExpiredTokenException", expired)),
            6,
            "sign in again, or give another --profile",
        ),
    ] {
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        every_command_fails(name, &options, code, remedy);
    }
}

#[test]
fn every_help_has_an_example_and_a_usage_within_80_columns() {
    let commands: BTreeSet<String> = commands(&[]).into_iter().collect();
    let groups = commands.iter().filter_map(|path| path.split_once(' '));
    let groups: BTreeSet<_> = groups.map(|(group, _)| group.to_owned()).collect();
    let mut wrong = vec![];
    for path in commands.union(&groups) {
        let help = weirgate(&*format!("{path} --help")).stdout;
        let usage = help.lines().skip_while(|line| !line.starts_with("Usage: "));
        let mut usage = usage.take_while(|line| !line.is_empty());
        // What is required first, then the options of which none is.
        let words = usage.clone().next().unwrap_or_default();
        let mut required = words.split('<').skip(1).filter(|group| group.starts_with("--"));
        let has_optional = required.any(|group| group.contains("page") || group.contains("all"));
        let is_long = usage.any(|line| line.chars().count() > 80);
        let (_, examples) = help.split_once("\nExample").unwrap_or_default();
        let is_group = !commands.contains(path) || path == "purge";
        let is_named = is_group || examples.contains(&format!("weirgate {path}"));
        let is_left = ["help", "completions", "man"].contains(&path.as_str());
        let has_example = is_left || help.contains("Example");
        if has_optional || is_long || !is_named || !has_example {
            wrong.push(help.clone());
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

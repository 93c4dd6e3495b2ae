//! Every command with every error that any command meets: one line that says what to do, and the
//! exit code. The list of commands is that of the binary's own help.

use std::collections::BTreeSet;
use std::net::TcpListener;

use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

use super::fixtures::{File, commands, refusing, weirgate};

/// Every command that reads or changes the table, with arguments that are right.
const ON_THE_TABLE: [(&str, &[&str]); 41] = [
    ("limits get", &["--system"]),
    ("limits set", &["--system", "rpm=5/minute"]),
    ("limits delete", &["--system"]),
    ("limits list", &["--resources"]),
    ("limits diff", &["{file}"]),
    ("limits plan", &["{file}"]),
    ("limits apply", &["{plan}"]),
    ("entities list", &[]),
    ("entities children", &["team"]),
    ("entities get", &["user"]),
    ("entities set", &["user", "--parent", "team"]),
    ("entities describe", &["user", "--name", "A"]),
    ("entities delete", &["user"]),
    ("namespaces", &[]),
    ("buckets", &["--entity", "user"]),
    ("leases list", &["user", "gpt-4"]),
    ("leases release", &["user", "gpt-4", "0000000000011"]),
    ("usage", &["--entity", "user"]),
    ("why", &["user", "gpt-4"]),
    ("peek", &["user", "gpt-4"]),
    ("acquire", &["user", "gpt-4", "rpm=1"]),
    ("load", &["user", "gpt-4", "rpm=1", "--rate", "1"]),
    ("stop", &["--system"]),
    ("exempt", &["--system"]),
    ("start", &["--system"]),
    ("switches", &[]),
    ("reset", &["user", "gpt-4"]),
    ("drain", &["user", "gpt-4"]),
    ("top-up", &["user", "gpt-4", "rpm=1"]),
    ("split", &["user", "gpt-4", "--shards", "2"]),
    ("merge", &["user", "gpt-4"]),
    ("audit", &["--system"]),
    ("erase", &["user", "--yes"]),
    ("purge", &["--yes"]),
    ("replay", &["{file}"]),
    ("doctor", &[]),
    ("page", &["--port", "0"]),
    ("reconcile", &[]),
    ("reconcile", &["--dry-run"]),
    ("usage", &["--resource", "gpt-4", "--total"]),
    ("buckets", &["--resource", "gpt-4"]),
];

/// Commands that use no table.
const ELSEWHERE: [&str; 4] = ["completions", "docs", "local", "man"];

#[test]
fn the_table_has_every_command() {
    let known = ON_THE_TABLE.iter().map(|(path, _)| *path).chain(ELSEWHERE);
    let known: BTreeSet<_> = known.map(str::to_owned).collect();
    let listed: BTreeSet<_> = commands(&[]).into_iter().collect();
    assert_eq!(listed, known, "a new command gets a row in this test");
}

/// Files that some commands read.
struct Files {
    limits: File,
    plan: File,
}

impl Files {
    fn new(name: &str) -> Self {
        let plan = r#"{"weirgate_plan":1,"table":"weirgate","namespace":"default","configs":[{"level":{"level":"system"},"version":0,"before":null,"after":{"limits":[{"name":"slots","slots":2}]}}],"entities":[]}"#;
        Self {
            limits: File::new(
                name,
                "weirgate: 1\nsystem: {limits: {rpm: {per_minute: 60}}}\n",
            ),
            plan: File::new(&format!("{name}-plan"), plan),
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
    for (path, arguments) in ON_THE_TABLE {
        let path: Vec<_> = path.split(' ').collect();
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| files.fill(argument))
            .collect();
        let run = weirgate([&["--timeout", "1"], options, &path[..], &arguments[..]].concat());
        let seen = format!("{path:?} {options:?}: {run:?}");
        assert_eq!(run.code, Some(code), "{seen}");
        assert!(run.stdout.is_empty(), "{seen}");
        assert_eq!(run.stderr.trim_end().lines().count(), 1, "{seen}");
        assert!(
            run.stderr.starts_with("error: ") && run.stderr.contains(remedy),
            "{seen}"
        );
        // The crate's errors have remedies of their own, and one is enough.
        for other in [
            "deploy the stack",
            "the network",
            "needs this action",
            "if this repeats",
        ] {
            assert!(!run.stderr.contains(other), "{seen}");
        }
    }
}

#[test]
fn a_wrong_argument_is_named_and_the_help_too() {
    let options = ["--no-such-option"];
    every_command_fails(
        "wrong",
        &options,
        2,
        "unexpected argument '--no-such-option' found; ",
    );
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
    let lines: Vec<_> = codes
        .lines()
        .map_while(|line| line.strip_prefix("  "))
        .collect();
    assert_eq!(lines.len(), 8, "{help}");
    for line in lines {
        let (code, meaning) = line.split_once("  ").expect("a code and its meaning");
        assert!(
            guide.contains(&format!("\n- {code}: {meaning}\n")),
            "{line}"
        );
    }
}

#[test]
fn every_command_has_a_usage_line_and_an_example() {
    for path in commands(&[]) {
        let help = weirgate(format!("{path} --help").as_str()).stdout;
        let example = format!("weirgate {path}");
        let (_, end) = help.split_once("\nExample").unwrap_or_default();
        assert!(end.contains(&example) || path == "purge", "{help}");
        // What is required first, then the options of which none is.
        let usage = help.lines().find(|line| line.starts_with("Usage: "));
        let usage = usage.unwrap_or_default();
        let groups = usage
            .split('<')
            .skip(1)
            .filter(|group| group.starts_with("--"));
        for option in groups.flat_map(|group| group.split(" --")) {
            assert!(
                !option.contains("page") && !option.contains("all"),
                "{usage}"
            );
        }
        assert!(usage.len() < 120, "{usage}");
    }
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
            "give --table NAME, or set WEIRGATE_TABLE",
        ),
        (
            "missing",
            on(serve(&Dynamo::empty())),
            2,
            "check --table, --region and --profile",
        ),
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
        (
            "unreachable",
            on(format!("http://{free}")),
            6,
            "check --region and --endpoint-url",
        ),
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

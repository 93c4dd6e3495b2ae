//! Text from the table, from files and from arguments is shown to a terminal, never obeyed by it.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use weirgate_shared::attr::INDEXED;
use weirgate_testkit::{Dynamo, Temporary};

use super::fixtures::{Run, Table};

/// A title, the clipboard, a cleared screen, C1, DEL, marks of direction, zero width, line and
/// paragraph separators, tags, fillers, a byte order mark.
const POISON: &str = "\u{1b}]0;x\u{7}\u{1b}]52;c;eA==\u{1b}\\\u{1b}[2J\r\u{8}\u{9b}2J\u{85}\u{7f}\
    \u{202e}\u{2066}\u{200e}\u{61c}\u{200b}\u{200d}\u{2028}\u{2029}\u{e0041}\u{3164}\u{ad}\u{fe0f}\
    \u{feff}\nerror: forged";

/// Commands that print one kind of item each.
const LISTS: [&[&str]; 8] = [
    &["buckets", "--resource", "gpt-4"],
    &["leases", "list", "user", "gpt-4"],
    &["audit", "--entity", "user"],
    &["limits", "list"],
    &["entities", "get", "user"],
    &["switches"],
    &["usage", "--entity", "user", "--by", "hour"],
    &["acquire", "user", "gpt-4", "slots=1"],
];

/// Other commands that print what the table has.
const OTHERS: [&[&str]; 17] = [
    &["why", "user", "gpt-4"],
    &["buckets", "--entity", "user"],
    &["leases", "release", "user", "gpt-4", "0000000000011", "--yes"],
    &["audit", "--resource", "gpt-4"],
    &["audit", "--system"],
    &["limits", "list", "--entity", "user"],
    &["limits", "get", "--resource", "gpt-4"],
    &["entities", "list"],
    &["entities", "children", "team"],
    &["namespaces"],
    &["peek", "user", "gpt-4"],
    &["usage", "--resource", "gpt-4", "--total"],
    &["usage", "--entity", "user", "--csv"],
    &["usage", "--entity", "user", "--chart"],
    &["usage", "--entity", "user", "--html"],
    &["reconcile", "--dry-run"],
    &["top-up", "user", "gpt-4", "rpm=1", "--dry-run"],
];

/// Requires that no character of the output does anything but be shown.
fn is_shown(run: &Run, what: &str) {
    const FORBIDDEN: [(char, char); 14] = [
        ('\u{0}', '\u{9}'),
        ('\u{b}', '\u{1f}'),
        ('\u{7f}', '\u{9f}'),
        ('\u{ad}', '\u{ad}'),
        ('\u{61c}', '\u{61c}'),
        ('\u{115f}', '\u{1160}'),
        ('\u{180b}', '\u{180f}'),
        ('\u{200b}', '\u{200f}'),
        ('\u{2028}', '\u{202e}'),
        ('\u{2060}', '\u{206f}'),
        ('\u{3164}', '\u{3164}'),
        ('\u{fe00}', '\u{fe0f}'),
        ('\u{feff}', '\u{feff}'),
        ('\u{e0000}', '\u{e0fff}'),
    ];
    for output in [&run.stdout, &run.stderr] {
        // Lines of CSV end so.
        let text = output.replace("\r\n", "\n");
        let found = text.chars().find(|character| {
            let mut ranges = FORBIDDEN.iter();
            ranges.any(|(first, last)| (first..=last).contains(&character))
        });
        assert_eq!(found, None, "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("error: forged")), "{what}: {text}");
    }
}

/// Returns all names of attributes, and of the entries of maps in them.
fn names(value: &Map<String, Value>, names: &mut BTreeSet<String>) {
    for (name, value) in value {
        if !INDEXED.contains(&name.as_str()) {
            names.insert(name.clone());
        }
        if let Some(inner) = value["M"].as_object() {
            self::names(inner, names);
        }
    }
}

/// Replaces what is under a name, on all levels; under every name if there is none. With `texts`,
/// only texts.
fn poison(value: &mut Map<String, Value>, at: Option<&str>, texts: bool) {
    for (name, value) in value {
        if INDEXED.contains(&name.as_str()) {
            continue;
        }
        let is_it = at.is_none_or(|at| at == name) && (!texts || value["S"].is_string());
        if is_it {
            *value = json!({"S": POISON});
        } else if let Some(inner) = value["M"].as_object_mut() {
            poison(inner, at, texts);
        }
    }
}

/// A table with an item of each kind.
async fn filled() -> (Dynamo, Table) {
    let dynamo = Dynamo::new().await;
    let table = Table::of(&dynamo);
    let limits = ["slots=5", "rpm=60/minute"];
    for level in [&["--system"][..], &["--resource", "gpt-4"], &["--entity", "user"]] {
        table.text([&["limits", "set"], level, &limits].concat());
    }
    table.text("entities set user --parent team");
    table.text("entities describe user --name A --label a=b");
    table.text("stop --resource other --yes");
    for _ in 0..2 {
        let owner = ["--principal", POISON, "acquire", "user", "gpt-4"];
        let run = table.run([&owner[..], &["slots=1", "rpm=1", "--lease", "1h"]].concat());
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    (dynamo, table)
}

fn run_all(table: &Table, what: &str, mut number: usize, commands: &[&[&str]]) -> usize {
    for command in commands {
        let takes_json =
            !["--csv", "--chart", "--html"].iter().any(|format| command.contains(format));
        let options: &[&str] = match number.is_multiple_of(2) && takes_json {
            true => &["--json"],
            false => &[],
        };
        number += 1;
        let run = table.run([options, *command].concat());
        is_shown(&run, &format!("{what} {options:?} {command:?}"));
        assert!(matches!(run.code, Some(0..=7)), "{what} {command:?}: {run:?}");
        if !options.is_empty() {
            for output in [&run.stdout, &run.stderr] {
                let is_json = output.is_empty() || serde_json::from_str::<Value>(output).is_ok();
                assert!(is_json, "{what} {command:?}: {output}");
            }
        }
    }
    number
}

#[tokio::test(flavor = "multi_thread")]
async fn no_stored_text_reaches_a_terminal_as_it_is() {
    let (dynamo, table) = filled().await;
    // Owners are any text.
    let leases = table.json("leases list user gpt-4");
    assert_eq!(leases["items"][0]["owner"], POISON, "JSON loses nothing");
    let every = [&LISTS[..], &OTHERS].concat();
    let mut number = run_all(&table, "owners", 0, &every);
    number = run_all(&table, "owners", number + 1, &every);
    let items = dynamo.items();
    let mut all = BTreeSet::new();
    for item in &items {
        names(item.as_object().expect("an item"), &mut all);
    }
    let rounds = all.iter().map(|name| (Some(name.as_str()), false));
    for (at, texts) in rounds.chain([(None, false), (None, true)]) {
        for item in &items {
            let mut item = item.clone();
            let attributes = item.as_object_mut().expect("an item");
            poison(attributes, at, texts);
            // Names of attributes are text too.
            attributes.insert(format!("b_{POISON}_tk"), json!({"N": "1"}));
            dynamo.put(&item);
        }
        let commands = if at.is_some() { &LISTS[..] } else { &every };
        number = run_all(&table, &format!("{at:?} {texts}"), number + 1, commands);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_of_a_file_or_an_argument_reaches_a_terminal_as_it_is() {
    let table = Table::new().await;
    let arn =
        |region: &str, name: &str| format!("arn:aws:dynamodb:{region}:1:table/{name}/stream/x");
    let record = |arn: &str| json!({"eventSource": "aws:dynamodb", "eventSourceARN": arn});
    let wrapped = |records: Value| {
        let event = json!({"Records": records}).to_string();
        json!({"payload": event}).to_string()
    };
    let objects = [
        POISON.to_owned(),
        format!("{{\"payload\":{}}}", json!(POISON)),
        json!({ "payload": {POISON: POISON} }).to_string(),
        wrapped(json!([record(POISON)])),
        wrapped(json!([record(&arn("eu-west-1", POISON))])),
        wrapped(json!([record(&arn(POISON, "weirgate"))])),
        wrapped(json!([record(&arn("eu-west-1", "other; rm -rf ~"))])),
        wrapped(json!([{"eventSource": POISON, "eventName": POISON, POISON: POISON}])),
        wrapped(
            json!([{"eventSource": "aws:dynamodb", "eventSourceARN": arn("eu-west-1", "weirgate"),
            "eventName": "MODIFY", "dynamodb": {"SequenceNumber": POISON, "Keys": {"PK": {"S": POISON}},
            "NewImage": {POISON: {"S": POISON}}}}]),
        ),
    ];
    for (at, object) in objects.iter().enumerate() {
        // Without the separator of paths, a name is any text.
        let file = Temporary::file(&format!("{at}-{POISON}"), object);
        for options in [&[][..], &["--json"]] {
            let run = table.run([options, &["replay", file.path()]].concat());
            is_shown(&run, object);
            let all = format!("{}{}", run.stdout, run.stderr);
            assert!(!all.contains("rm -rf"), "no such command is suggested: {all}");
        }
        for command in [&["limits", "diff"][..], &["limits", "plan"], &["limits", "apply"]] {
            let run = table.run([command, &[file.path()]].concat());
            is_shown(&run, object);
            assert_ne!(run.code, Some(0), "{run:?}");
        }
    }
    for arguments in [
        &["buckets", "--entity", POISON][..],
        &["buckets", "--page", POISON],
        &["leases", "release", "user", "gpt-4", POISON, "--yes"],
        &["acquire", "user", "gpt-4", POISON],
        &["acquire", "user", "gpt-4", "a=1", "--limit", POISON],
        &["acquire", "user", "gpt-4", "a=1", "--limit", "a=1", "--", POISON],
        &["limits", "set", "--system", POISON],
        &["entities", "set", "user", "--parent", POISON],
        &["replay", POISON],
        &["erase", POISON, "--yes"],
        &["--namespace", POISON, "purge", "--yes"],
        &["--endpoint-url", POISON, "switches"],
        &["doctor", "--stack", POISON],
        &[POISON],
    ] {
        for options in [&[][..], &["--json"]] {
            is_shown(&table.run([options, arguments].concat()), &format!("{arguments:?}"));
        }
    }
}

#[test]
fn the_help_shows_no_value_of_a_variable() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_weirgate"))
        .args(["limits", "set", "--help-global"])
        .env_clear()
        .env("WEIRGATE_TABLE", POISON)
        .output();
    let help = help.expect("it runs").stdout;
    let help = String::from_utf8(help).expect("it is text");
    assert!(help.contains("WEIRGATE_TABLE") && !help.contains("]0;x"), "{help}");
}

//! What people get wrong, and that the one line they read names the thing, its value and the remedy.

use weirgate_testkit::Dynamo;

use super::fixtures::{File, Run, Table, weirgate, weirgate_with};

/// Arguments that are wrong without any table, and what the error must name.
const ARGUMENTS: [(&str, [&str; 3]); 31] = [
    ("limits get --system", ["table", "no table", "--table NAME"]),
    ("limts get --system", ["subcommand", "'limts'", "'limits'"]),
    (
        "limits gte --system",
        ["subcommand", "'gte'", "limits --help"],
    ),
    (
        "limits get --sytem",
        ["argument", "'--sytem'", "'--system'"],
    ),
    (
        "limits get",
        [
            "<--system|--entity <ID>|--resource <NAME>>",
            "not provided",
            "limits get --help",
        ],
    ),
    (
        "limits get --system --resource r",
        ["'--system'", "'--resource <NAME>'", "cannot be used with"],
    ),
    (
        "limits set --system",
        ["system", "nothing to set", "rpm=500/minute"],
    ),
    (
        "limits set rpm=5/minute",
        ["--system", "not provided", "limits set --help"],
    ),
    (
        "limits set --system rpm",
        ["LIMIT", "'rpm'", "NAME=TOKENS/second"],
    ),
    (
        "limits set --system rpm=5/week",
        ["LIMIT", "'rpm=5/week'", "/minute, /hour, /day"],
    ),
    (
        "limits set --system rpm=5/min",
        ["LIMIT", "'rpm=5/min'", "/minute"],
    ),
    (
        "limits set --system rpm=0/minute",
        ["capacity", "0", "1 to 10^12"],
    ),
    (
        "limits set --system rpm=5/minute,mode=off",
        ["LIMIT", "mode=off", "enforced, shadow or soft"],
    ),
    (
        "limits set --system rpm=5/minute rpm=6/minute",
        ["LIMIT", "\"rpm\"", "give it once"],
    ),
    (
        "limits list --entities --resources",
        ["'--entities'", "'--resources'", "cannot be used with"],
    ),
    ("version", ["subcommand", "'version'", "give --version"]),
    ("limits list -o json", ["argument", "'-o'", "give --json"]),
    (
        "--output json switches",
        ["argument", "'--output'", "give --json"],
    ),
    (
        "entities set user --cascades",
        ["--parent <ID>", "not provided", "entities set --help"],
    ),
    (
        "acquire user rpm=1",
        ["NAME=TOKENS", "not provided", "acquire --help"],
    ),
    (
        "peek rpm=1 user gpt-4",
        ["NAME=TOKENS", "'gpt-4'", "tpm=500"],
    ),
    (
        "acquire user gpt-4 rpm=1.5",
        ["whole number", "\"1.5\"", "acquire --help"],
    ),
    (
        "acquire user gpt-4 rpm=1 --wait 10",
        ["'--wait <SPAN>'", "'10'", "30s, 10m"],
    ),
    (
        "--timeout 5min switches",
        ["'--timeout <SPAN>'", "'5min'", "for example 5s"],
    ),
    (
        "usage --entity user --from yesterday",
        ["'--from <WHEN>'", "'yesterday'", "2026-11-23"],
    ),
    (
        "audit --system --page x",
        ["'--page <TOKEN>'", "'x'", "audit --help"],
    ),
    (
        "load user r rpm=1 --rate 0",
        ["'--rate <NUMBER>'", "'0'", "from 1 to 1000000"],
    ),
    (
        "--table t --endpoint-url localhost:8000 switches",
        ["'--endpoint-url <URL>'", "localhost:8000", "http://"],
    ),
    (
        "--table t limits diff no-such.yaml",
        ["no-such.yaml", "cannot be read", "check"],
    ),
    (
        "local --demo --data table",
        ["'--demo'", "'--data <DIR>'", "cannot be used with"],
    ),
    (
        "local --demo --limits limits.yaml",
        ["'--demo'", "'--limits <FILE>'", "cannot be used with"],
    ),
];

/// Commands that are wrong for this table.
const COMMANDS: [(&str, i32, [&str; 3]); 12] = [
    ("peek a/b gpt-4", 2, ["entity", "\"a/b\"", "A-Z"]),
    ("peek user 1st", 2, ["resource", "\"1st\"", "A-Z"]),
    (
        "acquire user gpt-4 tpm=1",
        2,
        ["\"tpm\"", "not among those configured", "rpm"],
    ),
    (
        "acquire user other rpm=1",
        2,
        ["user", "other", "limits set --resource other"],
    ),
    ("acquire user gpt-4 rpm=61", 4, ["rpm", "61", "60"]),
    (
        "split user gpt-4 --shards 3",
        2,
        ["shard", "3", "power of two"],
    ),
    (
        "drain user gpt-4 slots --yes",
        2,
        ["\"slots\"", "leases", "release"],
    ),
    (
        "top-up user gpt-4",
        2,
        ["NAME=TOKENS", "not provided", "top-up --help"],
    ),
    ("erase user", 2, ["user", "no terminal", "add --yes"]),
    (
        "entities get user",
        1,
        ["user", "no item", "weirgate entities set"],
    ),
    (
        "entities set user --parent user",
        2,
        ["user", "ancestor", "another parent"],
    ),
    (
        "limits set --resource gpt-4 slots=5/minute",
        2,
        ["slots", "rate", "another name"],
    ),
];

/// Returns what is wrong with what a run says.
fn lacks(run: &Run, code: i32, what: &str, parts: &[&str]) -> Option<String> {
    let text = format!("{}{}", run.stdout, run.stderr);
    let missing = parts.iter().find(|part| !text.contains(**part));
    let is_wrong = missing.is_some() || run.code != Some(code) || text.lines().count() != 1;
    is_wrong.then(|| format!("{what}: {missing:?}, {code}: {run:?}"))
}

#[test]
fn a_wrong_argument_names_thing_value_and_remedy() {
    let wrong = ARGUMENTS
        .into_iter()
        .filter_map(|(arguments, parts)| lacks(&weirgate(arguments), 2, arguments, &parts));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_command_names_thing_value_and_remedy() {
    let table = Table::new().await;
    table.text("limits set --resource gpt-4 rpm=60/minute slots=2");
    table.text("acquire user gpt-4 rpm=1 slots=1 --lease 1h");
    let mut wrong: Vec<_> = COMMANDS
        .into_iter()
        .filter_map(|(command, code, parts)| lacks(&table.run(command), code, command, &parts))
        .collect();
    let missing = Table::of(&Dynamo::empty()).run("switches");
    let parts = ["\"weirgate\"", "no such table", "check --table"];
    wrong.extend(lacks(&missing, 2, "no table", &parts));
    let file = File::new(
        "wrong.yaml",
        "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_week: 6}\n",
    );
    let run = table.run(["limits", "apply", file.path()]);
    wrong.extend(lacks(
        &run,
        2,
        "a file",
        &["wrong.yaml:4:11", "per_week", "per_minute"],
    ));
    let variables = [("AWS_CONFIG_FILE", "/nowhere"), ("AWS_PROFILE", "prod")];
    let run = weirgate_with(&variables, "--table weirgate switches");
    wrong.extend(lacks(
        &run,
        2,
        "a profile",
        &["profile", "\"prod\"", "--profile"],
    ));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

//! What people get wrong, and that the one line they read names the thing, its value and the remedy.

use weirgate_testkit::Dynamo;

use super::fixtures::{File, Run, Table, answering, commands, weirgate, weirgate_with};

/// Arguments that are wrong without any table, and what the error must name.
const ARGUMENTS: [(&str, [&str; 3]); 75] = [
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
            "<--system|--entity <ID>|--plan <NAME>|--resource <NAME>>",
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
        "entities set user --no-parent --cascades",
        ["'--no-parent'", "'--cascades'", "cannot be used with"],
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
        ["whole number of tokens", "\"1.5\"", "acquire --help"],
    ),
    (
        "acquire user gpt-4 rpm=1 --wait 10",
        ["'--wait <SPAN>'", "'10'", "from 0s to 1d, such as 30s"],
    ),
    (
        "acquire user gpt-4 rpm=1 --queue 0s",
        ["'--queue <SPAN>'", "'0s'", "from 1ms to 1h, such as 30s"],
    ),
    (
        "acquire user gpt-4 rpm=1 --queue 2h",
        ["'--queue <SPAN>'", "'2h'", "from 1ms to 1h"],
    ),
    (
        "acquire user gpt-4 rpm=1 --queue 30s --wait 10s",
        ["'--queue <SPAN>'", "'--wait <SPAN>'", "cannot be used with"],
    ),
    (
        "acquire user gpt-4 rpm=1 --class a@b",
        ["'--class <NAME>'", "\"a@b\"", "1 to 32 of A-Z"],
    ),
    (
        "limits set --system rpm=100/minute --class 1a",
        ["'--class <NAME>'", "\"1a\"", "1 to 32 of A-Z"],
    ),
    (
        "limits set --system rpm=9/minute,class=a:1%",
        ["\"a\"", "at least 1 token, got 0.09", "raise the limit"],
    ),
    (
        "acquire user gpt-4 rpm=1 --now",
        ["--queue <SPAN>", "not provided", "acquire --help"],
    ),
    (
        "doctor --agent localhost:2774",
        [
            "'--agent <URL>'",
            "'localhost:2774'",
            "http://127.0.0.1:2774",
        ],
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
        "--store http://some:secret@host switches",
        [
            "the URL of the store",
            "http://..",
            "begin it with redis://",
        ],
    ),
    (
        "--store redis://host --table limits switches",
        ["'--store <URL>'", "'--table <NAME>'", "cannot be used with"],
    ),
    (
        "--store redis://host --profile dev switches",
        [
            "'--store <URL>'",
            "'--profile <NAME>'",
            "cannot be used with",
        ],
    ),
    (
        "--store redis://some:secret@host split user gpt-4 --shards 2",
        ["split", "the store redis://host:6379/0", "leave it out"],
    ),
    (
        "--timeout 5 switches",
        ["'--timeout <SPAN>'", "'5'", "with its unit"],
    ),
    (
        "acquire user gpt-4 rpm=99999999999999999999",
        ["rpm", "up to 10^12", "acquire --help"],
    ),
    (
        "acquire user gpt-4 rpm=1 --lease 0s",
        ["'--lease <SPAN>'", "'0s'", "from 1ms to 1d"],
    ),
    (
        "why user gpt-4 --over 0s",
        ["'--over <SPAN>'", "'0s'", "from 1ms to 1h"],
    ),
    (
        "why user gpt-4 --over 9999d",
        ["'--over <SPAN>'", "'9999d'", "from 1ms to 1h"],
    ),
    (
        "load user r rpm=1 --rate 1 --for 0s",
        ["'--for <SPAN>'", "'0s'", "from 1ms to 1d"],
    ),
    (
        "load user r rpm=1 --rate 1 --entities 0",
        ["'--entities <NUMBER>'", "'0'", "from 1 to 1000000"],
    ),
    (
        "load user r rpm=1 --rate 1 --in-flight 99999999999999999999",
        ["'--in-flight <NUMBER>'", "from 1 to", "load --help"],
    ),
    (
        "--audit-retention 0s switches",
        ["'--audit-retention <SPAN>'", "'0s'", "from 1s to 36500d"],
    ),
    (
        "--audit-retention 99999d switches",
        ["'--audit-retention <SPAN>'", "'99999d'", "or `forever`"],
    ),
    (
        "local --reconcile-every 0s",
        ["'--reconcile-every <SPAN>'", "'0s'", "from 10ms to 1d"],
    ),
    (
        "local --port 99999",
        ["'--port <PORT>'", "'99999'", "from 0 to 65535"],
    ),
    (
        "page --read-units 0",
        ["'--read-units <UNITS>'", "'0'", "from 1 to 1000000"],
    ),
    (
        "split user gpt-4 --shards x",
        ["'--shards <COUNT>'", "'x'", "from 1 to"],
    ),
    (
        "usage --entity user --top rpm --count 0",
        ["'--count <COUNT>'", "'0'", "from 1 to 10000"],
    ),
    (
        "limits set gpt-4 rpm=5/minute",
        ["'gpt-4'", "--resource gpt-4", "limits set --help"],
    ),
    (
        "limits set --system rpm=5/minute,burst=x",
        ["LIMIT", "burst=x", "its burst must be"],
    ),
    (
        "limits set --system rpm=99999999999999999999/minute",
        ["LIMIT", "its number must be", "at most 10^12"],
    ),
    (
        "limits set --system rpm=5/400d",
        ["LIMIT", "'rpm=5/400d'", "its period must be"],
    ),
    (
        "limits set --system rpm=5/minute,brst=8",
        ["LIMIT", "brst=8", "burst=TOKENS"],
    ),
    (
        "limits set --system rpm=5/minute,brst=none",
        ["LIMIT", "brst=none", "burst=TOKENS"],
    ),
    (
        "limits set --system slots=5,day=none",
        ["LIMIT", "day=none", "burst=TOKENS"],
    ),
    (
        "limits set --system rpm=5/minute,burst=none",
        ["LIMIT", "burst=none", "its burst must be"],
    ),
    (
        "limits plan l.yaml --output l.plan",
        ["argument", "'--output'", "; give --out; see"],
    ),
    (
        "limits plan l.yaml -o l.plan",
        ["argument", "'-o'", "; give --out; see"],
    ),
    (
        "plans delete x --forces",
        ["argument", "'--forces'", "exists: '--force'; see"],
    ),
    (
        "acquire u r rpm=1 version",
        ["NAME=TOKENS", "'version'", "tpm=500; see"],
    ),
    (
        "limits list --force",
        ["argument", "'--force'", "see 'weirgate limits list"],
    ),
    (
        "--table t limits diff /dev/null",
        ["a regular file", "/dev/null", "give - in its place"],
    ),
    (
        "limits set --system --status disabled",
        ["'--status'", "unexpected", "give --disabled"],
    ),
    (
        "audit --from now --to 1h",
        ["--from must be", "before --to", "swap them"],
    ),
    (
        "usage --entity user --from 2999-01-01 --to 2999-01-02",
        [
            "--from must be",
            "got 2999-01-01T00:00:00Z",
            "earlier --from",
        ],
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
const COMMANDS: [(&str, i32, [&str; 3]); 19] = [
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
        "erase user --yes",
        2,
        [
            "user",
            "leases that have not expired",
            "give --discard-leases",
        ],
    ),
    (
        "entities get user",
        1,
        ["user", "no item", "weirgate entities set"],
    ),
    (
        "entities set user --cascades",
        2,
        ["user", "no parent", "give --parent ID"],
    ),
    (
        "entities set user --parent user",
        2,
        ["user", "ancestor", "another parent"],
    ),
    (
        "entities get user-2",
        1,
        ["user-2", "no item", "weirgate entities set"],
    ),
    (
        "limits get --entity user-2",
        1,
        [
            "entity user-2",
            "no configuration",
            "weirgate limits set --entity user-2",
        ],
    ),
    (
        "usage --entity user --top rmp",
        2,
        ["--top must be", "got rmp", "rpm"],
    ),
    (
        "drain user gpt-4 tpm --yes",
        2,
        ["\"tpm\"", "rpm, slots", "name one"],
    ),
    ("purge --yes", 2, ["not stopped", "stop its system", "1m"]),
    (
        "limits set --resource gpt-4 slots=5/minute",
        2,
        ["slots", "rate", "another name"],
    ),
];

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
    let keys = [
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let alone = [
        ("AWS_REGION", "eu-west-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("HOME", "/nowhere"),
    ];
    let html = "<html>It works!</html>";
    let answering = |status: &'static str| {
        let body = format!("HTTP/1.1 {status}\r\ncontent-type: text/html\r\nconnection: close\r\n");
        answering(&format!(
            "{body}content-length: {}\r\n\r\n{html}",
            html.len()
        ))
    };
    let (ok, missing, broken) = (
        answering("200 OK"),
        answering("404 Not Found"),
        answering("500 Internal Server Error"),
    );
    let plain = ok.replace("http://", "https://");
    let smtp = self::answering("220 mail.example ESMTP\r\n");
    let closed = "http://127.0.0.1:1";
    let unknown = "http://dynamodb.invalid";
    let mut wrong = vec![];
    for (variables, url, code, parts) in [
        (
            &[][..],
            "",
            2,
            ["no credentials", "set AWS_ACCESS_KEY_ID", "a profile"],
        ),
        (
            &keys[..1],
            "",
            2,
            [
                "AWS_SECRET_ACCESS_KEY is not set",
                "AWS_ACCESS_KEY_ID is",
                "set both",
            ],
        ),
        (
            &keys[1..],
            "",
            2,
            [
                "AWS_ACCESS_KEY_ID is not set",
                "AWS_SECRET_ACCESS_KEY is",
                "set both",
            ],
        ),
        (
            &keys,
            closed,
            6,
            [
                closed,
                "refuses connections",
                "check --region and --endpoint-url",
            ],
        ),
        (
            &keys,
            unknown,
            6,
            [unknown, "has no address", "--endpoint-url"],
        ),
        (&keys, &plain, 6, [&plain, "does not speak TLS", "http://"]),
        (
            &keys,
            &missing,
            1,
            [&missing, "HTTP 404", "correct the endpoint"],
        ),
        (&keys, &ok, 1, [&ok, "HTTP 200", "correct the endpoint"]),
        (
            &keys,
            &broken,
            6,
            [&broken, "HTTP 500", "correct the endpoint"],
        ),
        (
            &keys,
            &smtp,
            6,
            [&smtp, "no usable answer", "the connection to"],
        ),
    ] {
        for command in [
            "switches",
            "peek user gpt-4",
            "limits set --system rpm=5/minute",
        ] {
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
    for (level, known) in [
        ("system", "limits, status, shadow, class"),
        ("resources: {r", "limits, status, shadow, class"),
        ("plans: {p", "limits, status, shadow, class, resources"),
        (
            "entities: {e",
            "limits, status, shadow, class, plan, parent, cascades, resources",
        ),
    ] {
        let end = if level.contains('{') { "}" } else { "" };
        let text = format!("weirgate: 1\n{level}: {{wrong: 1}}{end}\n");
        let file = File::new("unknown.yaml", &text);
        let run = table.run(["limits", "apply", file.path()]);
        wrong.extend(lacks(&run, 2, &text, &["\"wrong\" is unknown", known]));
    }
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

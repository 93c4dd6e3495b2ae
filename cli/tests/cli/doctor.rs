//! `weirgate doctor` on tables of this machine. The drill runs it against functions and alarms.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use weirgate_testkit::server::{serve, serve_json, serve_with_faults};
use weirgate_testkit::{Dynamo, Fault};

use super::fixtures::{Table, answering, weirgate, weirgate_with};

/// State and text of a check.
fn of<'a>(diagnosis: &'a Value, check: &str) -> (&'a str, &'a str) {
    let findings = diagnosis["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["check"] == check);
    let found = found.unwrap_or_else(|| panic!("no check {check}: {diagnosis}"));
    let text = |field: &str| found[field].as_str().expect("text");
    (text("state"), text("found"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_as_the_template_has_it_is_fine() {
    let table = Table::new().await;
    let diagnosis = table.json("doctor");
    for check in ["table", "indexes", "stream", "expiry", "clock"] {
        assert_eq!(of(&diagnosis, check).0, "fine", "{check}: {diagnosis}");
    }
    assert_eq!(of(&diagnosis, "functions").0, "unknown");
    let allowed = "allowed: read, list, acquire, administer, erase, purge";
    assert_eq!(of(&diagnosis, "permissions"), ("fine", allowed));
    let text = table.text("doctor");
    assert!(text.contains("nothing is wrong"), "{text}");
}

/// A session is advice, because its bucket works and does not split.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_named_because_their_buckets_do_not_split() {
    let table = Table::new().await;
    let fine = ("fine", "no limit is a session: all hot buckets split");
    assert_eq!(of(&table.json("doctor"), "sessions"), fine);
    for levels in ["--resource gpt-4", "--plan pro", "--entity acme --resource gpt-4"] {
        table.text(format!("limits set {levels} s=session:200/5h rpm=60/minute").as_str());
    }
    table.text("limits set --resource other rpm=60/minute tpm=quota:9/month");
    let diagnosis = table.json("doctor");
    let advice = "a bucket with a session does not split, so it takes at most about 1,000 writes a second: \
                  entity acme on resource gpt-4 (s), plan pro (s), resource gpt-4 (s)";
    assert_eq!(of(&diagnosis, "sessions"), ("advice", advice));
    assert!(table.text("doctor").contains("nothing is wrong"));
}

/// Findings about the limits of vendors, by an agent whose metrics have these lines.
fn of_vendors(table: &Table, metrics: &str) -> Vec<(String, String, String)> {
    let length = metrics.len();
    let agent = answering(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{metrics}"));
    let diagnosis = table.json(format!("doctor --agent {agent}/").as_str());
    let findings = diagnosis["findings"].as_array().expect("a list");
    let vendors = findings.iter().filter(|finding| finding["check"] == "vendor");
    let text = |finding: &Value, field: &str| finding[field].as_str().expect("text").to_owned();
    let of = |finding| (text(finding, "state"), text(finding, "found"), text(finding, "remedy"));
    vendors.map(of).collect()
}

/// The lines are those of the agent, by its own test.
#[tokio::test(flavor = "multi_thread")]
async fn a_vendors_limit_that_an_agent_knows_is_compared_with_the_one_that_follows_it() {
    let table = Table::new().await;
    let requests = include_str!("../../../agent/tests/agent/requests.txt");
    let lines = requests.lines().filter(|line| line.starts_with("weirgate_vendor_limit"));
    let metrics = lines.collect::<Vec<_>>().join("\n");
    let found = of_vendors(&table, &metrics);
    let states: Vec<_> = found.iter().map(|(state, ..)| state.as_str()).collect();
    assert_eq!(states, ["unknown", "advice", "unknown"], "{found:?}");
    assert_eq!(found[0].1, "the vendor's limit of r is 600 requests, and no limit follows it");
    assert!(found[0].2.contains("--follow-vendor requests=LIMIT"), "{found:?}");
    assert_eq!(
        found[1].1,
        "the vendor's limit of r is 2,000,000 tokens a minute, configured are 100,000 (tpm)"
    );
    assert!(found[1].2.contains("set tpm by limits set"), "{found:?}");
    let same = metrics.replace("} 100000", "} 2000000");
    assert_eq!(of_vendors(&table, &same)[1].0, "fine");
    for other in [
        "",
        "weirgate_vendor_limit{ 5",
        "weirgate_vendor_limit{resource=\"a b\",counts=\"tokens\"} x",
    ] {
        let found = of_vendors(&table, other);
        assert_eq!(found.len(), 1, "{other}: {found:?}");
        assert!(found[0].1.contains("has no report"), "{found:?}");
    }
    let refused = answering("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n");
    let closed = format!("http://127.0.0.1:{}", weirgate_testkit::server::free_port());
    for (agent, why) in [(refused, "HTTP status 401"), (closed, "not checked: ")] {
        let run = table.run(format!("doctor --agent {agent}").as_str());
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(
            run.stdout.contains(why) && run.stdout.contains("give the URL of an agent"),
            "{run:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_changes_nothing() {
    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let run = weirgate(["--table", "weirgate", "--endpoint-url", &endpoint, "doctor"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(dynamo.items().is_empty());
    assert!(dynamo.stream().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acceptance_tells_its_cost_and_asks_before_it_writes() {
    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let endpoint = &endpoint;
    let json = |option| {
        let options = ["--json", "--table", "weirgate", "--endpoint-url", endpoint];
        let run = weirgate([&options[..], &["doctor", "--acceptance", option]].concat());
        serde_json::from_str::<serde_json::Value>(&run.stdout).expect("JSON")
    };
    assert_eq!(json("--clean"), json!({"deleted": 0}));
    assert!(json("--dry-run")["estimate"]["write_units"].is_u64());
    for (option, code) in [(None, 2), (Some("--dry-run"), 0), (Some("--clean"), 0)] {
        let options = ["--table", "weirgate", "--endpoint-url", endpoint, "doctor"];
        let run =
            weirgate(options.into_iter().chain(["--acceptance"]).chain(option).collect::<Vec<_>>());
        assert_eq!(run.code, Some(code), "{run:?}");
        let is_told = (run.stdout.clone() + &run.stderr).contains(" cents on demand");
        assert_eq!(is_told, option != Some("--clean"), "{run:?}");
        assert!(dynamo.stream().is_empty(), "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_interrupted_acceptances_left_is_deleted_after_a_question() {
    let dynamo = Dynamo::new().await;
    dynamo.put(&json!({"PK": {"S": "acceptance/RUNS#"}, "SK": {"S": "#acceptance-1"}}));
    let endpoint = serve(&dynamo);
    let table = ["--table", "weirgate", "--endpoint-url", &endpoint, "doctor"];
    let shown = ["--json", "--acceptance", "--clean", "--dry-run"];
    let shown = weirgate([&table[..], &shown].concat());
    let list: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(list, json!({"items": ["acceptance-1"], "next": null}));
    for (option, code, left) in [(None, 2, 1), (Some("--dry-run"), 0, 1), (Some("--yes"), 0, 0)] {
        let options = ["--acceptance", "--clean"].into_iter().chain(option);
        let run = weirgate(table.into_iter().chain(options).collect::<Vec<_>>());
        assert_eq!(run.code, Some(code), "{run:?}");
        assert_eq!(dynamo.items().len(), left, "{run:?}");
        let told = run.stdout.clone() + &run.stderr;
        assert!(told.contains("acceptance-1"), "{run:?}");
    }
}

/// Once a process handles a signal, the system ends it by none.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_clean_up_of_an_acceptance_and_clean_is_named() {
    let dynamo = Dynamo::new().await;
    let mut is_tried = false;
    dynamo.fail_transactions(move |_| {
        let first = !std::mem::replace(&mut is_tried, true);
        (!first).then_some(Fault::Conflict)
    });
    let endpoint = serve_with_faults(&dynamo);
    let options = ["--table", "weirgate", "--endpoint-url", &endpoint];
    let run = Command::new(env!("CARGO_BIN_EXE_weirgate"))
        .args(options)
        .args(["doctor", "--acceptance", "--yes"])
        .env_clear()
        .stderr(Stdio::piped())
        .spawn();
    let mut run = run.expect("the binary runs");
    let lines = BufReader::new(run.stderr.take().expect("it is a pipe")).lines();
    let id = Pid::from_raw(run.id().try_into().expect("an id"));
    while dynamo.items().is_empty() {
        assert_eq!(run.try_wait().expect("it is a child"), None);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    kill(id, Signal::SIGINT).expect("it runs");
    let mut last = String::new();
    for line in lines {
        last = line.expect("it is text");
        if last.starts_with("deleting what was written") {
            let begun = Instant::now();
            while run.try_wait().expect("it is a child").is_none() {
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
                kill(id, Signal::SIGINT).expect("it runs");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    assert_eq!(run.wait().expect("it ended").code(), Some(1), "{last}");
    assert!(last.contains("--clean"), "{last}");
    let is_note = |item: &Value| item["PK"]["S"] == "acceptance/RUNS#";
    assert!(dynamo.items().iter().any(is_note));
}

/// Returns the error of an acceptance of a table that DescribeTable answers so. It writes nothing.
fn refused_acceptance(code: u16, described: Value, exit_code: i32) -> String {
    let endpoint = serve_json(move |operation, request| match operation {
        "DescribeTable" => (code, described.to_string()),
        "Query" => {
            let none = json!({"Items": [], "Count": 0, "ScannedCount": 0});
            (200, none.to_string())
        }
        other => panic!("{other}: {request}"),
    });
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ];
    let arguments = ["--table", "weirgate", "doctor", "--acceptance", "--yes"];
    let run = weirgate_with(&variables, arguments);
    assert_eq!(run.code, Some(exit_code), "{run:?}");
    run.stderr
}

/// Two Regions grant the same tokens, and which Regions there are only DescribeTable tells.
#[tokio::test(flavor = "multi_thread")]
async fn an_acceptance_writes_only_to_a_table_that_is_known_to_have_no_replicas() {
    let global = json!({"Table": {
        "TableStatus": "ACTIVE", "Replicas": [{"RegionName": "eu-west-1"}],
    }});
    let text = refused_acceptance(200, global, 2);
    assert!(text.contains("a replica in eu-west-1"), "{text}");
    let error = |code: &str| json!({"__type": format!("com.amazon#{code}"), "message": "no"});
    let text = refused_acceptance(400, error("AccessDeniedException"), 2);
    assert!(text.contains("allows dynamodb:DescribeTable"), "{text}");
    let text = refused_acceptance(400, error("ValidationException"), 2);
    assert!(text.contains("DescribeTable"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_problem_of_a_table_without_indexes_and_stream_has_a_remedy() {
    let dynamo = Dynamo::empty();
    let mut request = dynamo.client().await.create_table().table_name("weirgate");
    for (name, key) in [("PK", KeyType::Hash), ("SK", KeyType::Range)] {
        let attribute = AttributeDefinition::builder().attribute_name(name);
        let attribute = attribute.attribute_type(ScalarAttributeType::S).build();
        let element = KeySchemaElement::builder().attribute_name(name).key_type(key);
        request = request
            .attribute_definitions(attribute.expect("it is whole"))
            .key_schema(element.build().expect("it is whole"));
    }
    let created = request.billing_mode(BillingMode::PayPerRequest).send().await;
    created.expect("the table is created");
    let endpoint = serve(&dynamo);
    let arguments = ["--json", "--table", "weirgate", "--endpoint-url", &endpoint, "doctor"];
    let run = weirgate(arguments);
    assert_eq!(run.code, Some(1), "{run:?}");
    let diagnosis: Value = serde_json::from_str(&run.stdout).expect("it is JSON");
    assert_eq!(of(&diagnosis, "table").0, "fine");
    let (state, text) = of(&diagnosis, "indexes");
    assert_eq!(state, "problem");
    for index in ["GSI1", "GSI2", "GSI3", "DueIndex"] {
        assert!(text.contains(&format!("{index} is missing")), "{text}");
    }
    assert_eq!(of(&diagnosis, "stream").0, "problem");
    assert_eq!(of(&diagnosis, "expiry").0, "problem");
    for finding in diagnosis["findings"].as_array().expect("a list") {
        let has_remedy = finding["remedy"].as_str().is_some_and(|text| !text.is_empty());
        assert!(finding["state"] != "problem" || has_remedy, "{finding}");
    }
}

//! `weirgate doctor` on tables of this machine. The drill runs it against functions and alarms.

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use serde_json::{Value, json};
use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

use super::fixtures::{Table, weirgate};

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
    for (option, code) in [(None, 2), (Some("--dry-run"), 0), (Some("--clean"), 0)] {
        let options = ["--table", "weirgate", "--endpoint-url", &endpoint, "doctor"];
        let run = weirgate(
            options
                .into_iter()
                .chain(["--acceptance"])
                .chain(option)
                .collect::<Vec<_>>(),
        );
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
    for (option, code, left) in [
        (None, 2, 1),
        (Some("--dry-run"), 0, 1),
        (Some("--yes"), 0, 0),
    ] {
        let options = ["--acceptance", "--clean"].into_iter().chain(option);
        let run = weirgate(table.into_iter().chain(options).collect::<Vec<_>>());
        assert_eq!(run.code, Some(code), "{run:?}");
        assert_eq!(dynamo.items().len(), left, "{run:?}");
        let named = (run.stdout.clone() + &run.stderr).contains("acceptance-1");
        assert_eq!(named, option != Some("--yes"), "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_problem_of_a_table_without_indexes_and_stream_has_a_remedy() {
    let dynamo = Dynamo::empty();
    let mut request = dynamo.client().await.create_table().table_name("weirgate");
    for (name, key) in [("PK", KeyType::Hash), ("SK", KeyType::Range)] {
        let attribute = AttributeDefinition::builder().attribute_name(name);
        let attribute = attribute.attribute_type(ScalarAttributeType::S).build();
        let element = KeySchemaElement::builder()
            .attribute_name(name)
            .key_type(key);
        request = request
            .attribute_definitions(attribute.expect("it is whole"))
            .key_schema(element.build().expect("it is whole"));
    }
    let created = request
        .billing_mode(BillingMode::PayPerRequest)
        .send()
        .await;
    created.expect("the table is created");
    let endpoint = serve(&dynamo);
    let arguments = [
        "--json",
        "--table",
        "weirgate",
        "--endpoint-url",
        &endpoint,
        "doctor",
    ];
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
        let has_remedy = finding["remedy"]
            .as_str()
            .is_some_and(|text| !text.is_empty());
        assert!(finding["state"] != "problem" || has_remedy, "{finding}");
    }
}

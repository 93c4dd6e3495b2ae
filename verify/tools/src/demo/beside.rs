//! A second stack on the table of the first one: `ExistingTableStreamArn`.

use serde_json::{Value, json};

use super::account::call;
use super::stack::Stack;

const NAME: &str = "weirgate-beside";

/// Deploys a second stack, and lets its functions work on the table, under their own roles.
///
/// # Errors
/// If it has a table of its own, names another one, or its functions cannot use the table.
pub(super) async fn check(stack: &Stack) -> Result<(), String> {
    let stream = stack.output("TableStreamArn")?;
    let outputs = stack.deploy_beside(NAME, stream).await?;
    for name in ["TableName", "TableArn", "TableStreamArn"] {
        let (own, first) = (outputs.get(name).map(String::as_str), stack.output(name)?);
        if own != Some(first) {
            return Err(format!("{name} must be {first}, got {own:?}"));
        }
    }
    let (aggregator, reconciler) = (format!("{NAME}-aggregator"), format!("{NAME}-reconciler"));
    let event = include_str!("../../../../events/aggregator-modify.json");
    let answers = call(
        &stack.endpoint,
        &json!([
            ["dynamodb", "list_tables", {}],
            ["lambda", "list_event_source_mappings", {"FunctionName": aggregator}],
            ["lambda", "invoke", {"FunctionName": aggregator, "Payload": event}],
            ["lambda", "invoke", {"FunctionName": reconciler}],
        ]),
    )
    .await?;
    let expect = |holds: bool, at: usize| match holds {
        true => Ok(()),
        false => Err(format!("the second stack is wrong: {}", answers[at])),
    };
    let works = |answer: &Value| answer["StatusCode"] == 200 && answer["FunctionError"].is_null();
    expect(
        answers[0]["TableNames"] == json!([stack.output("TableName")?]),
        0,
    )?;
    let mapping = &answers[1]["EventSourceMappings"][0];
    expect(mapping["EventSourceArn"] == stream, 1)?;
    let text = answers[2]["Payload"].as_str().unwrap_or_default();
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    expect(
        works(&answers[2]) && answer == json!({"batchItemFailures": []}),
        2,
    )?;
    expect(works(&answers[3]), 3)
}

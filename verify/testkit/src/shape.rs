//! The shape of a request: what the store's contract must have tried before it is sent to a table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::Value;

/// The shapes that the contract must have.
const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../store/contract/shapes.txt");

/// What says where and how much, and not what is asked.
const SHAPELESS: [&str; 5] = [
    "ClientRequestToken",
    "ExpressionAttributeNames",
    "ExpressionAttributeValues",
    "ReturnConsumedCapacity",
    "TableName",
];

static LISTED: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(|| {
    let list = include_str!("../../../store/contract/shapes.txt");
    Mutex::new(list.lines().map(str::to_owned).collect())
});

/// Returns the shapes that the contract must have, as recorded.
pub fn listed() -> BTreeSet<String> {
    LISTED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Requires that these shapes are listed. With `WRITTEN=1` it lists them.
pub fn require_listed(shapes: &BTreeSet<String>) {
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    if shapes.is_subset(&listed) {
        return;
    }
    assert!(
        std::env::var_os("WRITTEN").is_some(),
        "{LIST} must have all of {shapes:#?}: run this with WRITTEN=1, and give store/contract/ a case \
         of each new one"
    );
    // Another process may have written too.
    let written = std::fs::read_to_string(LIST).expect("the list is there");
    listed.extend(written.lines().map(str::to_owned));
    listed.extend(shapes.iter().cloned());
    let all: String = listed.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(LIST, all).expect("the list is written");
}

/// Returns the parts of a request's shape, without names and values: a line for its fields, and one
/// for each kind of condition and change. Of values, the type counts; of lists of keys, whether one
/// is alone.
pub fn shape(operation: &str, request: &Value) -> BTreeSet<String> {
    match operation {
        "TransactWriteItems" => {
            let parts = request["TransactItems"].as_array().into_iter().flatten();
            let parts: Vec<_> = parts.filter_map(Value::as_object).flatten().collect();
            let of_parts =
                parts.iter().flat_map(|(kind, part)| shape(&format!("{operation}.{kind}"), part));
            let number = format!("{operation} of {}", count(parts.len()));
            of_parts.chain([number]).collect()
        }
        "BatchGetItem" => {
            let tables = request["RequestItems"].as_object().into_iter().flatten();
            tables.flat_map(|(_, table)| of_fields("BatchGetItem", table)).collect()
        }
        _ => of_fields(operation, request),
    }
}

fn count(number: usize) -> &'static str {
    if number == 1 { "one" } else { "several" }
}

fn of_fields(operation: &str, request: &Value) -> BTreeSet<String> {
    let (mut fields, mut lines) = (BTreeMap::new(), BTreeSet::new());
    let values = &request["ExpressionAttributeValues"];
    for (name, value) in request.as_object().into_iter().flatten() {
        let text = value.as_str().unwrap_or_default();
        match name.as_str() {
            name if SHAPELESS.contains(&name) => {}
            "ConditionExpression" => {
                let parts = text.split(" AND ").map(|part| general(part, values));
                lines.extend(parts.map(|part| format!("condition {part}")));
            }
            "UpdateExpression" => lines.extend(changes(&general(text, values))),
            name if name.ends_with("Expression") => {
                fields.insert(name, general(text, values));
            }
            name => {
                let of = match value {
                    Value::Bool(is) => is.to_string(),
                    Value::String(text) => text.clone(),
                    Value::Array(parts) => count(parts.len()).to_owned(),
                    _ => "given".to_owned(),
                };
                fields.insert(name, of);
            }
        }
    }
    let fields: Vec<_> =
        fields.into_iter().map(|(name, value)| format!(" {name}={value}")).collect();
    lines.insert(format!("{operation}{}", fields.concat()));
    lines
}

/// Returns the changes of an update without their numbers: each verb with each form of its.
fn changes(update: &str) -> BTreeSet<String> {
    let mut verb = "";
    let mut found = BTreeSet::new();
    // The store separates changes by a comma alone, and arguments by one with a space.
    for part in update.replace(", ", "; ").split(',') {
        let mut rest = part;
        while !rest.is_empty() {
            let verbs = ["SET ", "ADD ", "DELETE ", "REMOVE "];
            let next = verbs.iter().filter_map(|verb| Some((rest.find(verb)?, verb)));
            let (at, next_verb) = next.min().unwrap_or((rest.len(), &""));
            let change = rest[..at].trim();
            if !change.is_empty() {
                found.insert(format!("change {verb}{}", change.replace("; ", ", ")));
            }
            if at == rest.len() {
                break;
            }
            verb = next_verb;
            rest = &rest[at + verb.len()..];
        }
    }
    found
}

/// Returns an expression with `#` for each name, and `:` and the type for each value.
fn general(expression: &str, values: &Value) -> String {
    let mut general = String::new();
    let mut rest = expression.chars().peekable();
    while let Some(char) = rest.next() {
        general.push(char);
        if !matches!(char, '#' | ':') {
            continue;
        }
        let mut name = char.to_string();
        while let Some(next) = rest.next_if(|next| next.is_alphanumeric() || *next == '_') {
            name.push(next);
        }
        let kind = values[&name].as_object().and_then(|of| of.keys().next());
        general.extend(kind.into_iter().flat_map(|kind| kind.chars()));
    }
    general
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_shape_has_no_names_and_numbers() {
        let request = |number: &str| {
            json!({
                "TableName": "t",
                "Key": {"PK": {"S": number}},
                "ConditionExpression": "#0 >= :0 AND (attribute_not_exists(#1.#2) OR #1 <= :0)",
                "UpdateExpression": "SET #0 = if_not_exists(#0, :0),#1 = :0 REMOVE #2.#3,#4",
                "ExpressionAttributeNames": {"#0": number},
                "ExpressionAttributeValues": {":0": {"N": number}},
                "ReturnValues": "ALL_NEW",
            })
        };
        let shape = shape("UpdateItem", &request("1"));
        assert_eq!(shape, super::shape("UpdateItem", &request("2")));
        let expected = [
            "UpdateItem Key=given ReturnValues=ALL_NEW",
            "change REMOVE #",
            "change REMOVE #.#",
            "change SET # = :N",
            "change SET # = if_not_exists(#, :N)",
            "condition # >= :N",
            "condition (attribute_not_exists(#.#) OR # <= :N)",
        ];
        assert_eq!(shape, expected.map(str::to_owned).into());
    }

    #[test]
    fn one_key_is_another_shape_than_several() {
        let of = |keys: &[&str]| {
            let keys: Vec<_> = keys.iter().map(|key| json!({"PK": {"S": key}})).collect();
            shape(
                "BatchGetItem",
                &json!({"RequestItems": {"t": {"Keys": keys, "ConsistentRead": true}}}),
            )
        };
        assert_eq!(of(&["a", "b"]), of(&["a", "b", "c"]));
        assert_ne!(of(&["a"]), of(&["a", "b"]));
    }
}

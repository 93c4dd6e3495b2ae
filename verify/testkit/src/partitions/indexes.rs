//! What a write changes in the indexes.

use serde_json::{Value, json};
use weirgate_shared::attr;
use weirgate_store::{Index, indexes};

use super::balances::size;
use super::target::Target;
use crate::dynamo::{Dynamo, TABLE};

/// What a write costs one partition of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Charge {
    pub index: &'static str,
    pub pk: String,
    pub units: u64,
}

/// The cost of an item's change from `before` to `after`: an entry that goes and an entry that
/// comes are a write each.
pub(super) fn charges(before: &Value, after: &Value) -> Vec<Charge> {
    let mut charges = vec![];
    for index in indexes() {
        let (old, new) = (entry(before, &index), entry(after, &index));
        if old != new {
            let charge = |entry: Value| Charge {
                index: index.name,
                pk: entry[index.hash]["S"].as_str().unwrap_or_default().to_owned(),
                units: size(&entry).div_ceil(1024).max(1),
            };
            charges.extend([old, new].into_iter().flatten().map(charge));
        }
    }
    charges
}

/// The keys that an index has of an item.
fn entry(item: &Value, index: &Index) -> Option<Value> {
    let names = [attr::PK, attr::SK, index.hash, index.range.0];
    let keys = names.map(|name| item.get(name).map(|value| (name.to_owned(), value.clone())));
    Some(Value::Object(keys.into_iter().collect::<Option<_>>()?))
}

/// Whether a request may change an entry of an index: an update says so by the attributes that it
/// names.
pub(super) fn are_touched(request: &Value) -> bool {
    let is_key =
        |name: &Value| indexes().iter().any(|index| name == index.hash || name == index.range.0);
    let names_key = |of: &Value| {
        of["ExpressionAttributeNames"].as_object().is_some_and(|of| of.values().any(is_key))
    };
    let is_update = |of: &Value| !of["UpdateExpression"].is_null();
    let touches = |of: &Value| !is_update(of) || names_key(of);
    match request["TransactItems"].as_array() {
        Some(actions) => {
            let mut actions = actions.iter().filter_map(Value::as_object).flatten();
            actions.any(|(kind, of)| kind != "ConditionCheck" && touches(of))
        }
        None => touches(request),
    }
}

/// A table beside the table, on which a request is tried before it is let in.
#[derive(Debug)]
pub(super) struct Scratch(Dynamo);

impl Scratch {
    pub fn new() -> Self {
        let dynamo = Dynamo::empty();
        let text = |name: &str| json!({"AttributeName": name, "AttributeType": "S"});
        let key = |name: &str, kind: &str| json!({"AttributeName": name, "KeyType": kind});
        let definition = json!({
            "TableName": TABLE,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [text(attr::PK), text(attr::SK)],
            "KeySchema": [key(attr::PK, "HASH"), key(attr::SK, "RANGE")],
        });
        let (status, answer) = dynamo.run("CreateTable", &definition);
        assert_eq!(status, 200, "{answer}");
        Self(dynamo)
    }

    /// The cost of a request for each of its items, which are `before` it.
    pub fn charges(
        &self,
        operation: &str,
        request: &Value,
        targets: &[Target<'_>],
        before: &[Value],
    ) -> Vec<Vec<Charge>> {
        for item in before.iter().filter(|item| !item.is_null()) {
            self.0.put(item);
        }
        let mut request = request.clone();
        if let Some(fields) = request.as_object_mut() {
            fields.remove("ClientRequestToken");
        }
        let _ = self.0.run(operation, &request);
        let after = targets.iter().map(|target| self.0.item(target.pk, target.sk));
        let charges =
            before.iter().zip(after).map(|(before, after)| charges(before, &after)).collect();
        for target in targets {
            self.0.delete(target.pk, target.sk);
        }
        charges
    }
}

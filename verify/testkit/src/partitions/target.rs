//! The items that a request writes.

use serde_json::Value;

use crate::dynamo::{Request, TRANSACTION};

/// An item that a request writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub pk: &'a str,
    pub sk: &'a str,
    /// It is only checked, by a transaction.
    pub is_check: bool,
}

impl<'a> Target<'a> {
    fn of(key: &'a Value, is_check: bool) -> Self {
        let text = |name: &str| key[name]["S"].as_str().expect("a key is text");
        Self { pk: text("PK"), sk: text("SK"), is_check }
    }

    pub fn key(&self) -> (String, String) {
        (self.pk.to_owned(), self.sk.to_owned())
    }
}

/// The items that a request writes or, in a transaction, checks; none if it only reads.
pub(super) fn targets<'a>(operation: &str, request: &'a Value) -> Vec<Target<'a>> {
    match operation {
        "UpdateItem" | "DeleteItem" => vec![Target::of(&request["Key"], false)],
        "PutItem" => vec![Target::of(&request["Item"], false)],
        TRANSACTION => {
            let actions =
                request["TransactItems"].as_array().map(Vec::as_slice).unwrap_or_default();
            let actions =
                actions.iter().flat_map(|action| action.as_object().into_iter().flatten());
            let key = |of: &'a Value| of.get("Key").unwrap_or_else(|| &of["Item"]);
            actions.map(|(kind, of)| Target::of(key(of), kind == "ConditionCheck")).collect()
        }
        _ => vec![],
    }
}

impl Request {
    /// Returns the keys of the items that it writes or, in a transaction, checks; none if it only
    /// reads.
    pub fn written_keys(&self) -> Vec<(String, String)> {
        let targets = targets(&self.operation, &self.body);
        targets.iter().map(Target::key).collect()
    }
}

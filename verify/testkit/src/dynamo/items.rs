//! What the table contains, read and written beside its callers, and its stream.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use serde_json::{Value, json};

use super::{Dynamo, TABLE, from};

/// Partition of the mark of the functions.
const MARKED: &str = "FUNCTIONS";

impl Dynamo {
    /// One item as DynamoDB JSON, or `null`.
    pub fn item(&self, pk: &str, sk: &str) -> Value {
        let request = json!({"TableName": TABLE, "Key": {"PK": {"S": pk}, "SK": {"S": sk}}});
        let (_, answer) = self.run("GetItem", &request);
        serde_json::from_str::<Value>(&answer)
            .map_or(Value::Null, |mut answer| answer["Item"].take())
    }

    /// Marks that the functions know quotas. In no stream: it was before what a test delivers.
    pub(super) fn mark_functions(&self) {
        let mark = json!({"PK": {"S": MARKED}, "SK": {"S": "#VERSION"}, "quotas": {"BOOL": true}});
        import(self, [mark].into_iter());
    }

    /// All items but the mark of the functions, which every table has, as DynamoDB JSON.
    pub fn items(&self) -> Vec<Value> {
        let (mut items, mut start) = (vec![], Value::Null);
        loop {
            let mut request = json!({"TableName": TABLE});
            if !start.is_null() {
                request["ExclusiveStartKey"] = start.take();
            }
            let (_, answer) = self.run("Scan", &request);
            let mut answer: Value = serde_json::from_str(&answer).expect("an answer is JSON");
            items.extend(answer["Items"].as_array_mut().map(std::mem::take).unwrap_or_default());
            start = answer["LastEvaluatedKey"].take();
            if start.is_null() {
                items.retain(|item| item["PK"]["S"] != MARKED);
                return items;
            }
        }
    }

    /// The items of all namespaces but this one, by key.
    pub fn items_of_others(&self, namespace: &str) -> BTreeMap<String, Value> {
        let key = |item: &Value| {
            [&item["PK"]["S"], &item["SK"]["S"]]
                .map(|part| part.as_str().unwrap_or_default())
                .join(" ")
        };
        let items = self.items().into_iter().map(|item| (key(&item), item));
        items.filter(|(key, _)| !key.starts_with(&format!("{namespace}/"))).collect()
    }

    /// Writes an item given as DynamoDB JSON.
    pub fn put(&self, item: &Value) {
        let (status, answer) = self.run("PutItem", &json!({"TableName": TABLE, "Item": item}));
        assert_eq!(status, 200, "{answer}");
    }

    /// Deletes an item, as TTL or an operator does.
    pub fn delete(&self, pk: &str, sk: &str) {
        let key = json!({"PK": {"S": pk}, "SK": {"S": sk}});
        let gone = self.db.delete_item(from(json!({"TableName": TABLE, "Key": key})));
        assert!(gone.is_ok(), "the item is deleted");
    }

    /// The stream's records since the last call, as Lambda would deliver them.
    pub fn stream(&self) -> Vec<Value> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records = vec![];
        loop {
            let found = cursor.read(1000).expect("the stream is readable");
            if found.is_empty() {
                return records;
            }
            let value = |record| serde_json::to_value(record).expect("a record is JSON");
            records.extend(found.iter().map(value));
        }
    }
}

/// Loads items given as DynamoDB JSON, many at once.
pub fn import(dynamo: &Dynamo, items: impl Iterator<Item = Value>) {
    let items = items.map(from).collect();
    dynamo
        .db()
        .import_items(TABLE, items, dynoxide::ImportOptions::default())
        .expect("items are imported");
}

//! Converts values to the SDK's attributes and back.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::write::Value;
use weirgate_shared::{
    Attr, ItemError, ItemKey, Meter, Shard, Snapshot, attr, is_merged, read_key, read_live,
    read_shard, read_snapshot,
};

/// An item as DynamoDB returned it.
#[derive(Debug, Clone, PartialEq)]
pub struct Item(pub(crate) HashMap<String, AttributeValue>);

impl Item {
    /// Reads the item as a shard.
    ///
    /// # Errors
    /// [`ItemError`] naming the attribute that is wrong or missing.
    pub fn bucket(&self) -> Result<Shard, ItemError> {
        read_shard(self.attributes())
    }

    /// Returns the item's partition key, empty if it has none.
    #[must_use]
    pub fn pk(&self) -> String {
        self.0.get(attr::PK).and_then(|pk| pk.as_s().ok()).cloned().unwrap_or_default()
    }

    /// Reads the usage counters of a shard, live or merged away.
    ///
    /// # Errors
    /// [`ItemError`] naming the attribute that is wrong or missing.
    pub fn live(&self) -> Result<Meter, ItemError> {
        read_live(self.attributes())
    }

    /// Reads the item as a usage snapshot.
    ///
    /// # Errors
    /// [`ItemError`] naming the attribute that is wrong or missing.
    pub fn snapshot(&self) -> Result<Snapshot, ItemError> {
        read_snapshot(self.attributes())
    }

    /// Returns whether the item is a shard that was merged away.
    #[must_use]
    pub fn is_merged(&self) -> bool {
        is_merged(self.0.keys().map(String::as_str))
    }

    /// Returns the item's keys; `None` if one is missing or no string.
    #[must_use]
    pub fn key(&self) -> Option<ItemKey> {
        read_key(self.attributes())
    }

    /// Returns the item for a log, with its attributes by name.
    #[must_use]
    pub fn shown(&self) -> impl std::fmt::Debug {
        self.0.iter().collect::<BTreeMap<_, _>>()
    }

    /// Returns the item's attributes.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, Attr<'_>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), read(value)))
    }
}

fn read(value: &AttributeValue) -> Attr<'_> {
    match value {
        AttributeValue::N(number) => Attr::N(number),
        AttributeValue::S(text) => Attr::S(text),
        AttributeValue::Bool(is) => Attr::Bool(*is),
        AttributeValue::Ns(numbers) => Attr::Numbers(numbers.iter().map(String::as_str).collect()),
        AttributeValue::M(map) => {
            Attr::M(map.iter().map(|(name, value)| (name.as_str(), read(value))).collect())
        }
        _ => Attr::Other,
    }
}

pub(crate) fn write(value: &Value) -> AttributeValue {
    match value {
        Value::Int(number) => AttributeValue::N(number.to_string()),
        Value::Count(count) => AttributeValue::N(count.to_string()),
        Value::Tokens(amount) => AttributeValue::N(amount.to_string()),
        Value::Text(text) => AttributeValue::S(text.clone()),
        Value::Bool(is) => AttributeValue::Bool(*is),
        Value::Numbers(numbers) => {
            AttributeValue::Ns(numbers.iter().map(ToString::to_string).collect())
        }
        Value::Map(map) => AttributeValue::M(
            map.iter().map(|(name, value)| (name.clone(), write(value))).collect(),
        ),
    }
}

pub(crate) fn key(key: &ItemKey) -> HashMap<String, AttributeValue> {
    HashMap::from([
        (attr::PK.to_owned(), AttributeValue::S(key.pk.clone())),
        (attr::SK.to_owned(), AttributeValue::S(key.sk.clone())),
    ])
}

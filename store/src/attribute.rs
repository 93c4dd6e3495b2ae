//! Values to the SDK's attributes and back.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::write::Value;
use weirgate_shared::{Attr, Bucket, Counted, ItemError, ItemKey, attr, read_bucket, read_counted, read_key};

/// An item as DynamoDB returned it.
#[derive(Debug, Clone, PartialEq)]
pub struct Item(pub(crate) HashMap<String, AttributeValue>);

impl Item {
    /// The item as a bucket shard.
    ///
    /// # Errors
    /// [`ItemError`] naming the attribute that is wrong or missing.
    pub fn bucket(&self) -> Result<Bucket, ItemError> {
        read_bucket(self.attributes())
    }

    /// The item's partition key, as far as it has one.
    #[must_use]
    pub fn pk(&self) -> String {
        self.0.get(attr::PK).and_then(|pk| pk.as_s().ok()).cloned().unwrap_or_default()
    }

    /// How far the item, a usage snapshot, has counted a bucket shard.
    ///
    /// # Errors
    /// [`ItemError`] naming the attribute that is wrong.
    pub fn counted(&self, shard: u32) -> Result<Counted, ItemError> {
        read_counted(self.attributes(), shard)
    }

    /// The item's keys; `None` if one is missing or no string.
    #[must_use]
    pub fn key(&self) -> Option<ItemKey> {
        read_key(self.attributes())
    }

    /// The item's attributes.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, Attr<'_>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), read(value)))
    }
}

fn read(value: &AttributeValue) -> Attr<'_> {
    match value {
        AttributeValue::N(number) => Attr::N(number),
        AttributeValue::S(text) => Attr::S(text),
        AttributeValue::Bool(is) => Attr::Bool(*is),
        AttributeValue::M(map) => Attr::M(map.iter().map(|(name, value)| (name.as_str(), read(value))).collect()),
        _ => Attr::Other,
    }
}

pub(crate) fn write(value: &Value) -> AttributeValue {
    match value {
        Value::Int(number) => AttributeValue::N(number.to_string()),
        Value::Tokens(amount) => AttributeValue::N(amount.to_string()),
        Value::Text(text) => AttributeValue::S(text.clone()),
        Value::Bool(is) => AttributeValue::Bool(*is),
        Value::Map(map) => AttributeValue::M(map.iter().map(|(name, value)| (name.clone(), write(value))).collect()),
    }
}

pub(crate) fn key(key: &ItemKey) -> HashMap<String, AttributeValue> {
    HashMap::from([
        (attr::PK.to_owned(), AttributeValue::S(key.pk.clone())),
        (attr::SK.to_owned(), AttributeValue::S(key.sk.clone())),
    ])
}

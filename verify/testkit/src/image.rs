//! Items in DynamoDB's JSON, as values.

use serde_json::Value;
use weirgate_shared::{Attr, Meter, Shard, Snapshot, read_live, read_shard, read_snapshot};

/// The attributes of an item, or of a stream record's image.
pub fn attributes(item: &Value) -> impl Iterator<Item = (&str, Attr<'_>)> {
    item.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), attribute(value)))
}

/// A live bucket shard.
pub fn bucket(item: &Value) -> Shard {
    read_shard(attributes(item)).unwrap_or_else(|error| panic!("{error} in {item}"))
}

/// What a bucket shard, live or merged away, has counted.
pub fn live(item: &Value) -> Meter {
    read_live(attributes(item)).unwrap_or_else(|error| panic!("{error} in {item}"))
}

/// A usage snapshot.
pub fn snapshot(item: &Value) -> Snapshot {
    read_snapshot(attributes(item)).unwrap_or_else(|error| panic!("{error} in {item}"))
}

fn attribute(value: &Value) -> Attr<'_> {
    let Some((kind, value)) = value.as_object().and_then(|of| of.iter().next()) else {
        return Attr::Other;
    };
    match (kind.as_str(), value) {
        ("N", Value::String(text)) => Attr::N(text),
        ("S", Value::String(text)) => Attr::S(text),
        ("BOOL", Value::Bool(is)) => Attr::Bool(*is),
        ("NS", Value::Array(numbers)) => {
            Attr::Numbers(numbers.iter().filter_map(Value::as_str).collect())
        }
        ("M", Value::Object(of)) => {
            Attr::M(of.iter().map(|(name, value)| (name.as_str(), attribute(value))).collect())
        }
        _ => Attr::Other,
    }
}

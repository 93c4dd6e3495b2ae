//! Records as an event of Lambda, which the aggregator reads.

use serde_json::{Map, Value, json};
use weirgate_shared::{Attr, attr};
use weirgate_store::{Item, StreamRecord};

/// Returns the event of these records, in their order.
pub(crate) fn event(records: &[StreamRecord]) -> String {
    let records: Vec<_> = records.iter().map(record).collect();
    json!({ "Records": records }).to_string()
}

fn record(record: &StreamRecord) -> Value {
    let name = match (&record.old, &record.new) {
        (None, _) => "INSERT",
        (Some(_), Some(_)) => "MODIFY",
        (Some(_), None) => "REMOVE",
    };
    let mut of_item = json!({
        "ApproximateCreationDateTime": seconds(record.at.0),
        "Keys": { attr::PK: {"S": record.key.pk}, attr::SK: {"S": record.key.sk} },
        "SequenceNumber": record.id,
    });
    for (name, item) in [("OldImage", &record.old), ("NewImage", &record.new)] {
        if let Some(item) = item {
            of_item[name] = image(item);
        }
    }
    json!({ "eventName": name, "dynamodb": of_item })
}

fn image(item: &Item) -> Value {
    let attributes = item.attributes().filter_map(|(name, value)| {
        let value = match value {
            Attr::N(number) => json!({ "N": number }),
            Attr::S(text) => json!({ "S": text }),
            Attr::Bool(is) => json!({ "BOOL": is }),
            Attr::Numbers(numbers) => json!({ "NS": numbers }),
            // No image in Redis has maps.
            _ => return None,
        };
        Some((name.to_owned(), value))
    });
    Value::Object(attributes.collect::<Map<_, _>>())
}

/// Returns a number of seconds, which has three digits after the point.
fn seconds(ms: i64) -> Value {
    let text = format!("{}.{:03}", ms.div_euclid(1_000), ms.rem_euclid(1_000));
    text.parse().map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_seconds_with_three_digits() {
        assert_eq!(seconds(1_795_197_600_007).to_string(), "1795197600.007");
        assert_eq!(seconds(1_000).to_string(), "1.0");
    }
}

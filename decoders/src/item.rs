//! Items of the table, as DynamoDB writes them in JSON.

use serde_json::Value;
use weirgate_shared::{
    Attr, EntityId, EpochMillis, read_audit, read_bucket, read_config, read_counted, read_entity, read_key,
    read_schema, write_audit, write_bucket, write_config, write_entity, write_units,
};

use crate::plans::{self, Case};

/// Reads an item as everything it could be, and plans every write to what was read.
///
/// # Panics
/// If an error does not say which attribute is wrong.
pub fn item(bytes: &[u8]) {
    let Ok(Value::Object(attributes)) = serde_json::from_slice(bytes) else { return };
    let attributes: Vec<_> = attributes.iter().map(|(name, value)| (name.as_str(), attr(value))).collect();
    let attributes = || attributes.iter().cloned();

    let errors = [
        read_bucket(attributes()).map(|bucket| {
            let _ = write_bucket(&bucket);
            for now in [i64::MIN, 0, 1_795_195_341_000, i64::MAX] {
                plans::every(&Case::of(bucket.clone(), EpochMillis(now)));
            }
        }),
        read_config(attributes()).map(|stored| {
            if let Some(config) = stored.value {
                let _ = (config.check(), write_config(&config));
            }
        }),
        EntityId::new("e").map_or(Ok(()), |id| {
            read_entity(id, attributes()).map(|(entity, _)| {
                let _ = write_entity(&entity);
            })
        }),
        read_audit(attributes()).map(|event| {
            let _ = write_audit(&event);
        }),
        read_counted(attributes(), 0).map(|counted| assert_eq!(counted.gaps.to_string().parse(), Ok(counted.gaps))),
        read_schema(attributes()).map(|_| ()),
    ];
    for error in errors.into_iter().filter_map(Result::err) {
        assert!(!error.attribute.is_empty() && !error.takes.is_empty(), "{error:?}");
    }
    let _ = (read_key(attributes()), write_units(attributes()));
}

fn attr(value: &Value) -> Attr<'_> {
    let Some((kind, value)) = value.as_object().and_then(|typed| typed.iter().next()) else { return Attr::Other };
    match (kind.as_str(), value) {
        ("N", Value::String(text)) => Attr::N(text),
        ("S", Value::String(text)) => Attr::S(text),
        ("BOOL", Value::Bool(is)) => Attr::Bool(*is),
        ("M", Value::Object(map)) => Attr::M(map.iter().map(|(name, value)| (name.as_str(), attr(value))).collect()),
        _ => Attr::Other,
    }
}

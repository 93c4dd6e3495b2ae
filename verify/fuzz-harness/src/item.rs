//! Items of the table, as DynamoDB writes them in JSON.

use serde_json::Value;
use weirgate_shared::write::UsageCopy;
use weirgate_shared::{
    Attr, BucketKey, EntityId, EpochMillis, Meter, Millis, ShardUsageCopy, Snapshot, UsageHorizon,
    Window, is_merged, read_audit, read_config, read_entity, read_key, read_live, read_operation,
    read_schema, read_shard, read_snapshot, read_stamp, read_switches, usage, write_audit,
    write_config, write_entity, write_shard, write_units,
};

use crate::plans;

/// Reads an item as everything it could be, and plans every write to what was read.
pub fn item(bytes: &[u8]) {
    let Ok(Value::Object(attributes)) = serde_json::from_slice(bytes) else {
        return;
    };
    // DynamoDB has no attribute without a name.
    if attributes.contains_key("") {
        return;
    }
    let attributes: Vec<_> =
        attributes.iter().map(|(name, value)| (name.as_str(), attr(value))).collect();
    let attributes = || attributes.iter().cloned();

    let errors = [
        read_shard(attributes()).map(|bucket| {
            let _ = write_shard(&bucket);
            plans::every(&bucket);
        }),
        read_config(attributes()).map(|stored| {
            if let Some(config) = stored.value {
                let _ = (config.check(), write_config(&config));
            }
        }),
        EntityId::new("e").map_or(Ok(()), |id| {
            read_entity(id, attributes()).map(|(stored, _)| {
                let _ = stored.value.as_ref().map(write_entity);
            })
        }),
        read_audit(attributes()).map(|event| {
            let _ = write_audit(&event);
        }),
        read_snapshot(attributes()).map(|snapshot| copied(&snapshot, &[])),
        read_live(attributes()).map(|live| {
            for is_final in [false, true] {
                let copy = UsageCopy::of(&live, Window::Daily, is_final, 90);
                let copied =
                    ShardUsageCopy { write_seq: copy.v, usage: copy.usage.clone(), is_final };
                assert_eq!(
                    copy.after(&Snapshot {
                        shards: [(copy.shard, copied)].into(),
                        ..Snapshot::default()
                    }),
                    None
                );
            }
            copied(&Snapshot::default(), &[live]);
        }),
        read_schema(attributes()).map(|_| ()),
        read_switches(attributes()).map(|_| ()),
        read_operation(attributes()).map(|_| ()),
        BucketKey::parse("n/BUCKET#e#r#0").map_or(Ok(()), |key| {
            read_stamp(attributes()).map(|stamp| {
                let _ = stamp.update(&key);
            })
        }),
    ];
    for error in errors.into_iter().filter_map(Result::err) {
        assert!(!error.attribute.is_empty() && !error.takes.is_empty(), "{error:?}");
    }
    let is_merged = is_merged(attributes().map(|(name, _)| name));
    assert!(!is_merged || read_shard(attributes()).is_err(), "what was merged away is no bucket");
    let _ = (read_key(attributes()), write_units(attributes()));
}

/// The usage of windows, from what a snapshot or an item says.
fn copied(snapshot: &Snapshot, live: &[Meter]) {
    for window in Window::ALL {
        let starts =
            live.iter().map(|live| live.start(window)).chain([window.start(EpochMillis(0))]);
        for (start, now) in
            starts.flat_map(|start| [EpochMillis(0), EpochMillis(i64::MAX)].map(|now| (start, now)))
        {
            // The same snapshot as that of the window, and of its day.
            let of = [(window, start), (Window::Daily, Window::Daily.start(start))];
            let snapshots = of.map(|of| (of, snapshot.clone()));
            for retention in [Millis(0), Millis(i64::MAX)] {
                let at = UsageHorizon::of_stream(now, retention);
                let _ = usage(window, start, &snapshots.clone().into(), live, &at);
            }
        }
    }
}

fn attr(value: &Value) -> Attr<'_> {
    let Some((kind, value)) = value.as_object().and_then(|typed| typed.iter().next()) else {
        return Attr::Other;
    };
    match (kind.as_str(), value) {
        ("N", Value::String(text)) => Attr::N(text),
        ("S", Value::String(text)) => Attr::S(text),
        ("BOOL", Value::Bool(is)) => Attr::Bool(*is),
        ("NS", Value::Array(numbers)) => {
            Attr::Numbers(numbers.iter().filter_map(Value::as_str).collect())
        }
        ("M", Value::Object(map)) => {
            Attr::M(map.iter().map(|(name, value)| (name.as_str(), attr(value))).collect())
        }
        _ => Attr::Other,
    }
}

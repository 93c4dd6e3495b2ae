//! Events of the table's stream.

use std::collections::BTreeMap;

use weirgate_aggregator::parse::{After, Record};
use weirgate_aggregator::plan::WriteKind;
use weirgate_aggregator::{Config, parse, plan};
use weirgate_shared::write::{UsageCopy, finish_writes};
use weirgate_shared::{BucketKey, EpochMillis, ItemKey, ShardUsageCopy, Snapshot, WriteId};

/// Reads an event and plans its writes, at several instants.
pub fn stream(bytes: &[u8]) {
    // The runtime hands over text.
    let Ok(event) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(batch) = parse::records(event) else {
        return;
    };
    let read = batch.records.len() + batch.skipped + batch.undecodable.len();
    assert_eq!(read, batch.sequence_numbers.len(), "every record is one of the three");
    let texts = parse::texts(event);
    // A second list of records is a mistake that only one of the passes passes over.
    assert!(texts.is_empty() || texts.len() == read, "{} texts of {read} records", texts.len());
    let namespaces: BTreeMap<_, _> = batch
        .records
        .iter()
        .map(|record| (record.index, of(record).namespace.to_string()))
        .collect();

    let table_name = "t".to_owned();
    let config = Config {
        table_name,
        snapshot_ttl_days: 3650,
        write_concurrency: 1,
        max_shards: 64,
        refill_writes: 1,
        hot_units: 0,
    };
    let shards = plan::shards(batch.records);
    for now in [EpochMillis(i64::MIN), EpochMillis(1_795_195_341_000), EpochMillis(i64::MAX)] {
        for write in plan::writes(&shards, &config, now) {
            let namespace = namespaces.get(&write.record).expect("a write stands for a record");
            for key in keys(&write.kind, now) {
                assert!(
                    key.pk.starts_with(&format!("{namespace}/")),
                    "{key:?} is written for {namespace}"
                );
            }
        }
    }
}

/// The items that a planned write changes, at any try.
fn keys(kind: &WriteKind<'_>, now: EpochMillis) -> Vec<ItemKey> {
    match kind {
        WriteKind::Copy(copy) => {
            let after = seen(copy).into_iter().filter_map(|snapshot| copy.after(&snapshot));
            std::iter::once(copy.first()).chain(after).map(|update| update.key).collect()
        }
        WriteKind::Refill(update) => vec![update.key.clone()],
        WriteKind::Split(split) => {
            let _ = split.is_wanted(split.image, now);
            let first = split.first(split.image, WriteId::from_bits(0), now);
            let rest = finish_writes(split.image).into_iter().flatten();
            first.into_iter().chain(rest).map(|update| update.key).collect()
        }
    }
}

/// The bucket shard that a record is about.
fn of(record: &Record) -> &BucketKey {
    match (&record.after, &record.before) {
        (After::Live(bucket), _) => &bucket.key,
        (After::Merged(meter), _) => &meter.key,
        (After::Gone, before) => &before.as_ref().expect("what is gone was there").key,
    }
}

/// What a snapshot may have of a shard when a copy is refused.
fn seen(copy: &UsageCopy) -> Vec<Snapshot> {
    let versions = [i64::MIN, copy.birth.saturating_sub(1), copy.birth, copy.v, i64::MAX];
    let seen = versions.into_iter().flat_map(|v| [true, false].map(|is_final| (v, is_final)));
    let with = |(v, is_final)| {
        let copied = ShardUsageCopy { write_seq: v, usage: copy.usage.clone(), is_final };
        Snapshot { shards: [(copy.shard, copied)].into(), ..Snapshot::default() }
    };
    seen.map(with).chain([Snapshot::default()]).collect()
}

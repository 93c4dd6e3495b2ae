//! Events of the table's stream.

use std::collections::BTreeMap;

use weirgate_aggregator::plan::Kind;
use weirgate_aggregator::{Config, Snapshots, parse, plan};
use weirgate_shared::write::Action;
use weirgate_shared::{Counted, EpochMillis, ItemKey, Ranges, Window, WriteId};

/// Reads an event and plans its writes, at several instants.
///
/// # Panics
/// If a record is lost, or one leads to a write in another namespace than that of its key.
pub fn stream(bytes: &[u8]) {
    // The runtime hands over text.
    let Ok(event) = std::str::from_utf8(bytes) else { return };
    let Ok(batch) = parse::records(event) else { return };
    let read = batch.records.len() + batch.skipped + batch.undecodable.len();
    assert_eq!(read, batch.sequence_numbers.len(), "every record is one of the three");
    let texts = parse::texts(event);
    // A second list of records is a mistake that only one of the passes passes over.
    assert!(texts.is_empty() || texts.len() == read, "{} texts of {read} records", texts.len());
    let namespaces: BTreeMap<_, _> =
        batch.records.iter().map(|record| (record.index, record.bucket.key.namespace.to_string())).collect();

    let snapshots = Snapshots { windows: Window::ALL.to_vec(), ttl_days: 3650 };
    let config = Config { table_name: "t".to_owned(), snapshots, write_concurrency: 1, max_shards: 64 };
    let usage = plan::usage(batch.records);
    for now in [EpochMillis(i64::MIN), EpochMillis(1_795_195_341_000), EpochMillis(i64::MAX)] {
        for write in plan::writes(&usage, &config, now) {
            let namespace = namespaces.get(&write.record).expect("a write stands for a record");
            for key in keys(&write.kind) {
                assert!(key.pk.starts_with(&format!("{namespace}/")), "{key:?} is written for {namespace}");
            }
        }
    }
}

/// The items that a planned write changes, at any try.
fn keys(kind: &Kind<'_>) -> Vec<ItemKey> {
    match kind {
        Kind::Count(count) => {
            let counted = |through, gaps: Ranges| Counted { through, gaps };
            let tries = [
                counted(None, Ranges::default()),
                counted(Some(i64::MIN), Ranges::default()),
                counted(Some(0), Ranges::one(i64::MIN, 0)),
                counted(Some(i64::MAX), Ranges::one(i64::MIN, i64::MAX)),
            ];
            let rest = tries.iter().filter_map(|counted| count.rest(counted));
            std::iter::once(count.next()).chain(rest).map(|update| update.key).collect()
        }
        Kind::Refill(update) => vec![update.key.clone()],
        Kind::Split(split) => {
            let _ = split.is_wanted(split.image);
            let actions = split.actions(split.image, WriteId::from_bits(0));
            actions.iter().flatten().map(key).collect()
        }
    }
}

fn key(action: &Action) -> ItemKey {
    match action {
        Action::Update(update) => update.key.clone(),
        Action::Delete(key, _) | Action::Check(key, _) => key.clone(),
    }
}

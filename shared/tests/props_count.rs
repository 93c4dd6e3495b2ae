//! Counting usage as a model: whatever is cut, doubled, left out, replayed or reordered, every
//! write of a bucket shard counts once.

mod model;

use std::collections::BTreeMap;

use model::{Item, config, limit_name};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::{Count, Piece};
use weirgate_shared::{Counted, EpochMillis, LimitName, MilliTokens, SnapshotKey, Window};

/// One write of a bucket shard, as its stream record tells it.
#[derive(Debug, Clone)]
struct Written {
    shard: u32,
    at: EpochMillis,
    piece: Piece,
}

/// The snapshots of one window, by its start.
type Snapshots = BTreeMap<EpochMillis, Item>;

fn key(window: Window, start: EpochMillis) -> SnapshotKey {
    let bucket = model::bucket_key(0);
    SnapshotKey { namespace: bucket.namespace, entity: bucket.entity, resource: bucket.resource, window, start }
}

fn limits() -> [LimitName; 2] {
    [limit_name("rpm"), limit_name("tpm")]
}

/// The writes of two shards over some hours. A shard is deleted and made anew now and then: `v` rises over it.
fn writes() -> impl Strategy<Value = Vec<Written>> {
    let step = (0..1_500_000i64, any::<bool>(), prop::bool::weighted(0.1), (-2000..9000i64, 0..5i64), 0..2i64);
    vec(step, 1..30).prop_map(|steps| {
        let mut at = EpochMillis(1_700_000_000_000);
        let mut v = [at.0 * 1000, at.0 * 1000 + 7];
        let written = |(wait, second, anew, (rpm, tpm), events): (i64, bool, bool, (i64, i64), i64)| {
            at.0 += wait;
            let v = &mut v[usize::from(second)];
            *v = if anew { *v + 5000 } else { *v };
            let span = Some((*v, *v + 1));
            *v += 1;
            let tokens = vec![MilliTokens(rpm), MilliTokens(tpm)];
            Written { shard: u32::from(second), at, piece: Piece { span, tokens, events } }
        };
        steps.into_iter().map(written).collect()
    })
}

/// One invocation of the function: what it was given, and how old its first look at the snapshots is.
#[derive(Debug, Clone)]
struct Batch {
    from: Index,
    size: usize,
    /// Records left out: other shards of the stream, or a failure that ended the batch early.
    without: Vec<bool>,
    looks_back: usize,
}

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let without = prop_oneof![Just(vec![]), vec(prop::bool::weighted(0.3), 12)];
    let batch = (any::<Index>(), 1..12usize, without, 0..4usize);
    let batch = batch.prop_map(|(from, size, without, looks_back)| Batch { from, size, without, looks_back });
    vec(batch, 0..25)
}

/// Counts some writes as the function does: per shard and window one update for each run without a gap.
fn deliver(
    batch: &[&Written],
    window: Window,
    snapshots: &mut Snapshots,
    looks: &[Snapshots],
) -> Result<(), TestCaseError> {
    let mut runs: Vec<(u32, EpochMillis, Vec<Piece>)> = vec![];
    for shard in [0, 1] {
        for written in batch.iter().filter(|written| written.shard == shard) {
            let start = window.start(written.at);
            let follows = |(run_shard, run_start, run): &&mut (u32, EpochMillis, Vec<Piece>)| {
                let end = run.last().and_then(|piece| piece.span).map(|(_, through)| through);
                *run_shard == shard && *run_start == start && end == written.piece.span.map(|(after, _)| after)
            };
            match runs.last_mut().filter(|run| follows(run)) {
                Some((_, _, run)) => run.push(written.piece.clone()),
                None => runs.push((shard, start, vec![written.piece.clone()])),
            }
        }
    }
    for (shard, start, pieces) in runs {
        let limits = limits();
        let count = Count { key: key(window, start), shard, limits: &limits, pieces: &pieces, ttl_seconds: 1 };
        prop_assert!(count.is_exact());
        let mut item = snapshots.remove(&start).unwrap_or_default();
        if !item.apply(&count.next()) {
            // The answer to a failed condition, or one that is older: another function may count at the same time.
            let stale = looks.iter().filter_map(|look| look.get(&start)).map(|item| item.counted(shard));
            let updates: Vec<_> =
                stale.chain([item.counted(shard)]).map(|counted: Counted| count.rest(&counted)).collect();
            let applied = updates.iter().any(|update| update.as_ref().is_some_and(|update| item.apply(update)));
            let fresh = updates.last().expect("one look is fresh");
            prop_assert!(applied || fresh.is_none(), "nobody could ever count {:?}", pieces);
            // Whoever wrote, nothing is left to count of these pieces.
            prop_assert_eq!(count.rest(&item.counted(shard)), None);
        }
        snapshots.insert(start, item);
    }
    Ok(())
}

fn totals(writes: &[Written], window: Window) -> BTreeMap<EpochMillis, [i128; 3]> {
    let mut totals = BTreeMap::<_, [i128; 3]>::new();
    for Written { at, piece, .. } in writes {
        let sums = totals.entry(window.start(*at)).or_default();
        for (sum, amount) in sums.iter_mut().zip([piece.tokens[0].0, piece.tokens[1].0, piece.events * 1000]) {
            *sum += i128::from(amount);
        }
    }
    totals
}

fn counted(snapshots: &Snapshots) -> BTreeMap<EpochMillis, [i128; 3]> {
    let sums = |item: &Item| ["rpm", "tpm", "total_events"].map(|attribute| item.tokens(attribute));
    snapshots.iter().map(|(start, item)| (*start, sums(item))).collect()
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn i3_every_write_counts_once_however_it_is_delivered(
        writes in writes(),
        batches in batches(),
        last in (1..12usize).prop_flat_map(|size| (Just(size), vec(any::<u64>(), 40))),
        window in prop::sample::select(Window::ALL.as_slice()),
    ) {
        let mut snapshots = Snapshots::new();
        let mut looks: Vec<Snapshots> = vec![];
        for batch in &batches {
            let from = batch.from.index(writes.len());
            let until = writes.len().min(from + batch.size);
            let left_out = |at: usize| batch.without.get(at).copied().unwrap_or_default();
            let given: Vec<_> =
                writes[from..until].iter().enumerate().filter(|(at, _)| !left_out(*at)).map(|(_, one)| one).collect();
            looks.push(snapshots.clone());
            let old = &looks[looks.len().saturating_sub(batch.looks_back)..];
            deliver(&given, window, &mut snapshots, old)?;
        }
        // In the end all arrive at least once, in batches that come in any order.
        let (size, order) = last;
        let mut rest: Vec<_> = writes.chunks(size).zip(order).collect();
        rest.sort_by_key(|(_, place)| *place);
        for (batch, _) in rest {
            deliver(&batch.iter().collect::<Vec<_>>(), window, &mut snapshots, &[])?;
        }
        prop_assert_eq!(counted(&snapshots), totals(&writes, window));
    }

    /// What was not counted is kept: at any moment a snapshot holds what was delivered, not more.
    #[test]
    fn i3_what_was_never_delivered_is_not_counted(
        writes in writes(), without in vec(any::<bool>(), 30), window in prop::sample::select(Window::ALL.as_slice()),
    ) {
        let given: Vec<_> = writes.iter().zip(without).filter(|(_, out)| !out).map(|(one, _)| one.clone()).collect();
        let mut snapshots = Snapshots::new();
        for _ in 0..2 {
            deliver(&given.iter().collect::<Vec<_>>(), window, &mut snapshots, &[])?;
        }
        prop_assert_eq!(counted(&snapshots), totals(&given, window));
    }

    /// Without `v` a repeat cannot be told from a new write; the caller is told so, and nothing is lost.
    #[test]
    fn pieces_without_a_span_count_at_every_delivery(amounts in vec(0..9000i64, 1..5), times in 1..4i128) {
        let piece = |amount: &i64| Piece { span: None, tokens: vec![MilliTokens(*amount)], events: 1 };
        let (pieces, limits) = (amounts.iter().map(piece).collect::<Vec<_>>(), [limit_name("rpm")]);
        let (key, mut item) = (key(Window::Hourly, EpochMillis(0)), Item::default());
        let count = Count { key, shard: 0, limits: &limits, pieces: &pieces, ttl_seconds: 1 };
        prop_assert!(!count.is_exact());
        for _ in 0..times {
            prop_assert!(item.apply(&count.next()));
        }
        prop_assert_eq!(item.tokens("rpm"), times * i128::from(amounts.iter().sum::<i64>()));
    }
}

#[test]
fn a_snapshot_says_which_window_it_is_of_and_until_when_it_is_kept() {
    let (limits, start) = ([limit_name("rpm")], EpochMillis(1_700_002_800_000));
    let pieces = [Piece { span: Some((6, 7)), tokens: vec![MilliTokens(1250)], events: 2 }];
    let key = key(Window::Hourly, start);
    let mut item = Item::default();
    assert!(item.apply(&Count { key: key.clone(), shard: 3, limits: &limits, pieces: &pieces, ttl_seconds: 9 }.next()));
    assert_eq!(weirgate_shared::read_key(item.attributes()).as_ref().and_then(SnapshotKey::parse), Some(key));
    let texts: BTreeMap<_, _> = item.attributes().map(|(name, value)| (name, format!("{value:?}"))).collect();
    for (name, value) in [
        ("rpm", r#"N("1.25")"#),
        ("total_events", r#"N("2")"#),
        ("window", r#"S("hourly")"#),
        ("window_start", r#"S("2023-11-14T23:00:00Z")"#),
        ("window_end", r#"S("2023-11-15T00:00:00Z")"#),
        ("ttl", r#"N("9")"#),
        ("q3", r#"N("7")"#),
        ("g3", r#"S("0-6")"#),
        ("entity_id", r#"S("user-1")"#),
        ("resource", r#"S("api/search")"#),
    ] {
        assert_eq!(texts[name], value, "{name}");
    }
}

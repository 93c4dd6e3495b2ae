//! Numbers that no bucket of ours has, and that an item or a record can hold all the same: nothing overflows on them, and
//! what is written of them is read back.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use weirgate_shared::write::{Change, Count, Piece, Value};
use weirgate_shared::{
    Attr, Bucket, BucketKey, Counted, EpochMillis, Limit, LimitName, MilliTokens, Ranges, Shard, SnapshotKey, Whole,
    Window, attr, read_counted,
};

fn count<'a>(limits: &'a [LimitName], pieces: &'a [Piece]) -> Count<'a> {
    let BucketKey { namespace, entity, resource, .. } = BucketKey::parse("d/BUCKET#e#r#0").unwrap();
    let key = SnapshotKey { namespace, entity, resource, window: Window::Hourly, start: EpochMillis(0) };
    Count { key, shard: 0, limits, pieces, ttl_seconds: 0 }
}

fn piece(span: Option<(i64, i64)>, events: i64) -> Piece {
    Piece { span, tokens: vec![MilliTokens(events)], events }
}

/// Somebody who writes his own item can let `takes` jump as far as it goes, twice in a batch.
#[test]
fn acquires_past_all_numbers_are_a_sum_that_stops_there() {
    let limits = [LimitName::new("rpm").unwrap()];
    for events in [i64::MAX, i64::MIN] {
        let update = count(&limits, &[piece(None, events), piece(None, events)]).next();
        let total = update.changes.iter().find_map(|change| match change {
            Change::Add(path, Value::Int(total)) if path.0 == [attr::TOTAL_EVENTS] => Some(*total),
            _ => None,
        });
        assert_eq!(total, Some(events));
    }
}

/// The number of a shard is in its key, so anybody can make it up.
#[test]
fn a_shard_of_any_number_has_a_count_above_it() {
    for (index, count) in [(0, 1), (1, 2), (2, 4), (63, 64), (1 << 31, u32::MAX), (u32::MAX - 1, u32::MAX)] {
        assert_eq!(Shard::born(index), Shard { index, count });
    }
}

/// A missing range that is written and cannot be read keeps a snapshot from ever counting again.
#[test]
fn a_gap_between_numbers_below_zero_is_read_back() {
    let limits = [LimitName::new("rpm").unwrap()];
    let counted = Counted { through: Some(-10), gaps: Ranges::default() };
    let update = count(&limits, &[piece(Some((-5, -4)), 1)]).rest(&counted).unwrap();
    let gaps = update.changes.iter().find_map(|change| match change {
        Change::Set(path, Value::Text(gaps)) if path.0 == ["g0"] => Some(gaps.clone()),
        _ => None,
    });
    let gaps = gaps.expect("the gap is kept");
    let read = read_counted([("q0", Attr::N("-4")), ("g0", Attr::S(&gaps))].into_iter(), 0).unwrap();
    assert_eq!(read, Counted { through: Some(-4), gaps: Ranges::one(-10, -5) });
}

/// Such a gap would be written before one that it is above, and never be read again.
#[test]
fn a_gap_above_what_was_counted_is_refused() {
    for gaps in ["10-20", "1-2 4-6"] {
        let error = read_counted([("g0", Attr::S(gaps)), ("q0", Attr::N("5"))].into_iter(), 0).unwrap_err();
        assert_eq!((error.attribute.as_str(), error.value.as_str()), ("g0", format!("{gaps:?}").as_str()));
    }
    assert!(read_counted([("g0", Attr::S("1-2 4-5")), ("q0", Attr::N("5"))].into_iter(), 0).is_ok());
}

/// The search for the instant must end, also where it begins so early that no step reaches the end of time.
#[test]
fn what_never_comes_is_not_waited_for_from_the_beginning_of_time() {
    let key = BucketKey::parse("d/BUCKET#e#r#0").unwrap();
    let (limit, start) = (Limit::per_day("rpm", 1).unwrap(), EpochMillis(i64::MIN));
    let whole = Whole::new(vec![Bucket::full(key, std::slice::from_ref(&limit), start)]);
    assert_eq!(whole.ready_at(limit.name(), MilliTokens(i64::MAX), start), None);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn ranges_of_any_numbers_are_read_back_from_their_text(bounds in prop::collection::btree_set(any::<i64>(), 0..12)) {
        let (mut ranges, bounds) = (Ranges::default(), Vec::from_iter(bounds));
        for pair in bounds.chunks_exact(2) {
            ranges.push(pair[0], pair[1]);
        }
        prop_assert_eq!(ranges.to_string().parse(), Ok(ranges));
    }

    /// Up to the last instant that a date can be written of, and the first that begins a day after it.
    #[test]
    fn a_window_ends_after_it_starts_also_when_dates_end(
        at in prop_oneof![253_399_000_000_000..=253_402_300_799_999_i64, -62_167_219_200_000..=253_402_300_799_999_i64],
        window in prop::sample::select(Window::ALL.as_slice()),
    ) {
        let start = window.start(EpochMillis(at));
        prop_assert!(start.0 <= at && at < window.end(start).0, "{window} {at}");
    }
}

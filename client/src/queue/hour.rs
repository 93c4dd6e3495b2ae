//! Which hour a write counts for, and whether it begins it.

use weirgate_shared::write::Roll;
use weirgate_shared::{EpochMillis, Hour, Millis, Shard, Window};

use super::ShardQueue;
use crate::inner::Inner;

/// Acquires that must be expected since an hour began, and have been counted before, until a
/// process takes for granted that one of them began it.
const MIN_EXPECTED_ACQUIRES: i64 = 4;

impl ShardQueue {
    /// The hour that a write at `now` counts for. Where others write often, one of them has begun
    /// the hour by now: to begin it once more would fail, for each of as many processes as there
    /// are.
    pub(crate) fn roll(&self, inner: &Inner, now: EpochMillis) -> Roll {
        let hour = Hour::of(EpochMillis(now.0.saturating_sub(inner.roll_lag.0)));
        let begun = now.since(hour.start());
        let now_aged = self.summary.ages.now();
        let state = self.state();
        let is_begun = state
            .view
            .as_ref()
            .filter(|_| state.has_company != Some(false))
            .is_some_and(|view| {
                let age = Millis::from(now_aged.since(view.seen_at));
                let seen = EpochMillis(now.0.saturating_sub(age.0));
                // What was seen since the hour began shows whether it was.
                age > begun && expected_acquires(&view.shard, seen, begun) >= MIN_EXPECTED_ACQUIRES
            });
        Roll {
            hour,
            by_others: is_begun,
        }
    }
}

/// The acquires expected within `time`, if there are as many as in the bucket's hour, or its life,
/// until it was `seen`; no more than were counted then.
pub(super) fn expected_acquires(shard: &Shard, seen: EpochMillis, time: Millis) -> i64 {
    let since = shard.hour.start().max(EpochMillis(shard.birth_seq / 1000));
    let counted = shard.acquires.used(Window::Hourly);
    let expected =
        i128::from(counted) * i128::from(time.0) / i128::from(seen.since(since).0.max(1));
    counted.min(i64::try_from(expected).unwrap_or(i64::MAX))
}

//! The hour that a write counts for, and whether the write begins it.

use weirgate_shared::write::Roll;
use weirgate_shared::{EpochMillis, Hour, Millis, Shard, Window};

use super::shard_state::ShardState;
use crate::session::Env;

/// Acquires that a process must expect since the hour began before it assumes that one of them
/// began the hour, 4.
const MIN_EXPECTED_ACQUIRES: i64 = 4;

impl ShardState {
    /// Returns the hour that a write at `now` counts for. Where other processes write often, one of
    /// them has already begun the hour: beginning it again would fail, once per process.
    pub(crate) fn roll(&self, env: &Env, now: EpochMillis) -> Roll {
        let hour = Hour::of(EpochMillis(now.0.saturating_sub(env.roll_lag.0)));
        let begun = now.since(hour.start());
        let now_aged = self.summary.ages.now();
        let state = self.state();
        let is_begun = state
            .view
            .as_ref()
            .filter(|_| !state.others.are_none())
            .is_some_and(|view| {
                let age = Millis::from(now_aged.since(view.seen_at));
                let seen = EpochMillis(now.0.saturating_sub(age.0));
                // A view from after the hour's beginning shows whether it was begun.
                age > begun && expected_acquires(&view.shard, seen, begun) >= MIN_EXPECTED_ACQUIRES
            });
        Roll {
            hour,
            by_others: is_begun,
        }
    }
}

/// Returns the acquires expected within `time`, at the rate of the shard's hour, or of its life if
/// shorter, until it was `seen`. Never more than were counted by then.
pub(super) fn expected_acquires(shard: &Shard, seen: EpochMillis, time: Millis) -> i64 {
    let since = shard.hour.start().max(EpochMillis(shard.birth_seq / 1000));
    let counted = shard.acquires.used(Window::Hourly);
    let expected =
        counted.saturating_mul(i128::from(time.0)) / i128::from(seen.since(since).0.max(1));
    i64::try_from(counted.min(expected)).unwrap_or(i64::MAX)
}

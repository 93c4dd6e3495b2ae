//! Plans the write for one due shard: pure, sends nothing.

use weirgate_shared::write::{ExpiredLeases, Update, expire, sample};
use weirgate_shared::{EpochMillis, Shard};

/// A write, and the tokens of expired leases that it returns.
pub type Planned = (Update, ExpiredLeases);

/// Returns the write for `shard` at `now`. `None` if the index was behind, or another process has
/// done the work.
#[must_use]
pub fn plan(shard: &Shard, now: EpochMillis) -> Option<Planned> {
    let is_due = shard.due_at.is_some_and(|due| due <= now);
    is_due.then(|| expire(shard, now)).flatten()
}

/// Returns the write for `shard`, one of several, when its bucket is reviewed at `now`: [`plan`],
/// with a new activity sample.
#[must_use]
pub fn plan_sample(shard: &Shard, now: EpochMillis) -> Option<Planned> {
    if shard.shard().count == 1 || shard.scaling.sample.is_some_and(|sample| sample.at >= now) {
        return plan(shard, now);
    }
    Some(sample(shard, now))
}

/// Returns whether a write planned for `seen`, whose response was lost, was applied before `found`.
///
/// The write raises `due` or removes it, and a take can only lower it. That distinguishes the
/// write from a take that reclaimed the same leases, even after later writes. Two cases remain:
/// the same write by another run, which reserved concurrency prevents, and a client that found
/// more expired leases than one take reclaims. Then both report it. Only the report is wrong;
/// the tokens are returned once.
#[must_use]
pub fn was_applied(seen: &Shard, found: &Shard) -> bool {
    let is_raised = |due| seen.due_at.is_some_and(|seen| due > seen);
    found.due_at.is_none_or(is_raised)
}

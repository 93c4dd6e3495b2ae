//! Cold shards become one, which has all their tokens; and what is to be done when an item is
//! missing.
//!
//! A merge happens only if nobody has written to the shards since they were seen, so what they
//! become is known.

use std::collections::BTreeMap;

use super::expire::expired;
use super::replace::{bury, count_units, make, next_due, replace};
use super::{Action, Condition, Path, same_count, same_leases};
use crate::limit::WCU;
use crate::math::refilled;
use crate::{
    Bucket, Counter, EpochMillis, Hour, Limit, LimitState, Look, MilliTokens, Scaling, Shard,
    WriteId, attr,
};

/// The shard that `lower` and `upper` are halves of, with what both have at `now`, and by the
/// limits of `lower`. `None` if it cannot be: they are no halves of one shard, a split of one is
/// not finished, leases are held in `upper`, the limits differ by name, or a clock ran ahead. What
/// was consumed in `upper` stays counted there.
#[must_use]
pub fn joined(lower: &Bucket, upper: &Bucket, now: EpochMillis) -> Option<Bucket> {
    let whole = lower.shard().whole()?;
    let is_split = lower.escrow.is_some() || upper.escrow.is_some();
    let is_pair =
        !is_split && lower.shard() == whole.halves().0 && upper.shard() == whole.halves().1;
    let ((mut next, _), (freed, _)) = (expired(lower, now), expired(upper, now));
    let is_free = freed.leases.as_ref().is_none_or(BTreeMap::is_empty);
    let same_names = lower.limits.keys().eq(upper.limits.keys());
    if !is_pair || !is_free || !same_names || next.rf > now || freed.rf > now {
        return None;
    }
    let limits: Vec<_> = next
        .limits
        .iter()
        .map(|(name, state)| Limit::of(name.clone(), state.rule))
        .collect();
    let from = freed.advanced(&limits, now).limits;
    for (name, state) in &mut next.limits {
        let add = from.get(name).map_or(MilliTokens::ZERO, |state| state.tk);
        let here = refilled(state.tk, &state.rule, lower.shard(), next.rf, now);
        state.tk = add
            + if state.rule.is_concurrent() {
                state.tk
            } else {
                here
            };
    }
    next.write_units_left = next.write_units_at(now);
    next.rf = now;
    next.shard_count = whole.count;
    // Above every `v` of the upper shard, so that one of its number can be made again.
    next.v = lower.v.max(upper.v).saturating_add(1);
    let min_shards = next.scaling.min_shards.max(upper.scaling.min_shards);
    next.scaling = Scaling {
        look: Some(Look { at: now, v: next.v }),
        min_shards,
        ..Scaling::default()
    };
    next.due = next_due(&next, now);
    next.ttl = None;
    Some(next)
}

/// Replaces `lower` by `joined`, and leaves of the shards `gone` that are part of it what they have
/// counted: usage of their windows, which the next shard of the same number goes on with.
#[must_use]
pub fn merge(lower: &Bucket, mut joined: Bucket, gone: &[&Bucket]) -> Vec<Action> {
    let now = joined.rf;
    count_units(&mut joined, 2);
    let mut actions = vec![Action::Update(replace(lower, joined))];
    actions.extend(
        gone.iter()
            .map(|shard| Action::Update(bury(shard, &expired(shard, now).0, now))),
    );
    actions
}

/// Deletes the shard `gone`, whose tokens are all in `whole` too: it is of a time before somebody
/// deleted items by hand.
///
/// Also while callers who do not know that yet write to it, if only its leases are those that were
/// seen: what they took is in the stream.
#[must_use]
pub fn remove(gone: &Bucket, whole: &Bucket) -> Vec<Action> {
    let here = vec![
        Condition::Present(Path::of(attr::RF)),
        same_count(gone.shard()),
        same_leases(gone),
    ];
    vec![Action::Delete(gone.key.item_key(), here), still(whole)]
}

/// Asks that `bucket` is still the shard that it is: neither split nor merged, nor gone.
#[must_use]
pub fn still(bucket: &Bucket) -> Action {
    let same = vec![
        Condition::Present(Path::of(attr::RF)),
        same_count(bucket.shard()),
    ];
    Action::Check(bucket.key.item_key(), same)
}

/// Makes the missing `shard` of the bucket that `other` is of: without tokens of rates, as nobody
/// knows what it had, and with `slots` of the concurrency limits. Only while `other` is the shard
/// that it is.
#[must_use]
pub fn fill(
    shard: Shard,
    other: &Bucket,
    slots: impl Fn(&Limit) -> MilliTokens,
    op: WriteId,
    now: EpochMillis,
) -> Vec<Action> {
    let v = now.0.saturating_mul(1000).max(other.v).saturating_add(1);
    let mut made = Bucket {
        key: other.key.with_shard(shard.index),
        shard_count: shard.count,
        rf: now,
        v,
        birth: v,
        hour: Hour::of(now),
        takes: Counter::default(),
        unheld: BTreeMap::new(),
        write_units_left: WCU.capacity,
        op: Some(op),
        ttl: None,
        leases: Some(BTreeMap::new()),
        scaling: Scaling {
            look: Some(Look { at: now, v }),
            min_shards: other.scaling.min_shards,
            ..Scaling::default()
        },
        escrow: None,
        ..other.clone()
    };
    for (name, state) in &mut made.limits {
        let limit = Limit::of(name.clone(), state.rule);
        let tk = if state.rule.is_concurrent() {
            slots(&limit)
        } else {
            MilliTokens::ZERO
        };
        *state = LimitState::new(tk, state.rule);
    }
    made.due = next_due(&made, now);
    vec![Action::Update(make(&made)), still(other)]
}

//! Cold shards become one, which has all their tokens; and what is to be done when an item is
//! missing.
//!
//! A merge happens only if nobody has written to the shards since they were seen, so what they
//! become is known.

use std::collections::BTreeMap;

use super::expire::expired;
use super::replace::{count_units, make, next_due, replace, retire};
use super::{Action, Condition, Path, require_same_leases, require_shard_count};
use crate::limit::WCU;
use crate::math::refilled;
use crate::{
    ActivitySample, Counter, EpochMillis, Hour, Limit, LimitState, MilliTokens, Scaling, Shard,
    ShardIndex, WriteId, attr,
};

/// The shard that `lower` and `upper` are halves of, with what both have at `now`, and by the
/// limits of `lower`. `None` if it cannot be: they are no halves of one shard, a split of one is
/// not finished, leases are held in `upper`, the limits differ by name, or a clock ran ahead. What
/// was consumed in `upper` stays counted there.
#[must_use]
pub fn merged(lower: &Shard, upper: &Shard, now: EpochMillis) -> Option<Shard> {
    let whole = lower.shard().parent()?;
    let is_split = lower.escrow.is_some() || upper.escrow.is_some();
    let is_pair =
        !is_split && lower.shard() == whole.halves().0 && upper.shard() == whole.halves().1;
    let ((mut next, _), (freed, _)) = (expired(lower, now), expired(upper, now));
    let is_free = freed.leases.as_ref().is_none_or(BTreeMap::is_empty);
    let same_names = lower.limits.keys().eq(upper.limits.keys());
    if !is_pair || !is_free || !same_names || next.refilled_at > now || freed.refilled_at > now {
        return None;
    }
    let limits: Vec<_> = next
        .limits
        .iter()
        .map(|(name, state)| Limit::of(name.clone(), state.rule))
        .collect();
    let from = freed.projected(&limits, now).limits;
    for (name, state) in &mut next.limits {
        let add = from
            .get(name)
            .map_or(MilliTokens::ZERO, |state| state.available);
        let here = refilled(
            state.available,
            &state.rule,
            lower.shard(),
            next.refilled_at,
            now,
        );
        state.available = if state.rule.is_concurrent() {
            state.available + add
        } else {
            // A rule that was changed in one shard only may have left more there.
            here + add.min(upper.shard().share(state.rule.capacity))
        };
    }
    next.write_units_left = next.write_units_at(now);
    next.refilled_at = now;
    next.shard_count = whole.count;
    // Above every `v` of the upper shard, so that one of its number can be made again.
    next.write_seq = lower.write_seq.max(upper.write_seq).saturating_add(1);
    let min_shards = next.scaling.min_shards.max(upper.scaling.min_shards);
    next.scaling = Scaling {
        sample: Some(ActivitySample {
            at: now,
            write_seq: next.write_seq,
        }),
        min_shards,
        ..Scaling::default()
    };
    next.due_at = next_due(&next, now);
    next.ttl = None;
    Some(next)
}

/// Replaces `lower` by `joined`, and leaves of the shards `gone` that are part of it what they have
/// counted: usage of their windows, which the next shard of the same number goes on with.
#[must_use]
pub fn merge(lower: &Shard, mut joined: Shard, gone: &[&Shard]) -> Vec<Action> {
    let now = joined.refilled_at;
    count_units(&mut joined, 2);
    let mut actions = vec![Action::Update(replace(lower, joined))];
    actions.extend(
        gone.iter()
            .map(|shard| Action::Update(retire(shard, &expired(shard, now).0, now))),
    );
    actions
}

/// Deletes the shard `gone`, whose tokens are all in `whole` too: it is of a time before somebody
/// deleted items by hand.
///
/// Also while callers who do not know that yet write to it, if only its leases are those that were
/// seen: what they took is in the stream.
#[must_use]
pub fn remove_covered(gone: &Shard, whole: &Shard) -> Vec<Action> {
    let here = vec![
        Condition::Present(Path::of(attr::RF)),
        require_shard_count(gone.shard()),
        require_same_leases(gone),
    ];
    vec![
        Action::Delete(gone.key.item_key(), here),
        require_unchanged(whole),
    ]
}

/// Asks that `bucket` is still the shard that it is: neither split nor merged, nor gone.
#[must_use]
pub fn require_unchanged(shard: &Shard) -> Action {
    let same = vec![
        Condition::Present(Path::of(attr::RF)),
        require_shard_count(shard.shard()),
    ];
    Action::Check(shard.key.item_key(), same)
}

/// Makes the missing `shard` of the bucket that `other` is of: without tokens of rates, as nobody
/// knows what it had, and with `slots` of the concurrency limits. Only while `other` is the shard
/// that it is.
#[must_use]
pub fn recreate(
    shard: ShardIndex,
    other: &Shard,
    slots: impl Fn(&Limit) -> MilliTokens,
    op: WriteId,
    now: EpochMillis,
) -> Vec<Action> {
    let v = now
        .0
        .saturating_mul(1000)
        .max(other.write_seq)
        .saturating_add(1);
    let mut made = Shard {
        key: other.key.with_shard(shard.index),
        shard_count: shard.count,
        refilled_at: now,
        write_seq: v,
        birth_seq: v,
        hour: Hour::of(now),
        acquires: Counter::default(),
        departed: BTreeMap::new(),
        write_units_left: WCU.capacity,
        last_write_id: Some(op),
        ttl: None,
        leases: Some(BTreeMap::new()),
        scaling: Scaling {
            sample: Some(ActivitySample {
                at: now,
                write_seq: v,
            }),
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
    made.due_at = next_due(&made, now);
    vec![Action::Update(make(&made)), require_unchanged(other)]
}

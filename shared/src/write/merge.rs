//! Merging idle shards into one, which has all their tokens; and repairing a bucket with missing
//! items.
//!
//! A merge requires that no write reached the shards since they were read, so their state is known.

use std::collections::BTreeMap;

use super::expire::expired;
use super::replace::{forget_departed, make, next_due, replace, retire};
use super::{Action, Condition, Path, require_same_leases, require_shard_count, ttl};
use crate::math::{MIN_BALANCE, refilled};
use crate::{
    ActivitySample, Counter, EpochMillis, Hour, Limit, LimitKind, LimitState, MAX_BUCKET_LIMITS,
    MilliTokens, Pause, Scaling, Shard, ShardIndex, WriteId, attr,
};

/// Returns the shard that `lower` and `upper` are halves of, with the balances of both at `now` and
/// the limits of `lower`. Consumption of `upper` stays counted in its item.
///
/// Returns `None` if they are not the halves of one shard, a split of one is unfinished, `upper`
/// holds leases, the names or kinds of the limits differ, a clock was fast, or an operator's change
/// has reached only one of them, which may be under way, or a quota of both is in windows that end at
/// different times. One whose window has ended is as if it was not used. The item of `upper`
/// must not keep more limits than the next half of its number can bear, so they are not merged on
/// a day in which `upper` counts many that it no longer has.
#[must_use]
pub fn merged(lower: &Shard, upper: &Shard, now: EpochMillis) -> Option<Shard> {
    let whole = lower.shard().parent()?;
    let is_split = lower.escrow.is_some() || upper.escrow.is_some();
    let is_pair =
        !is_split && lower.shard() == whole.halves().0 && upper.shard() == whole.halves().1;
    let ((mut next, _), (mut freed, _)) = (expired(lower, now), expired(upper, now));
    forget_departed(&mut freed, now);
    // The limits of the lower half hold, however new those of the upper one are.
    freed.limits_changed_at = None;
    let is_free = freed.leases.as_ref().is_none_or(BTreeMap::is_empty);
    let kind = |(name, state): (_, &LimitState)| (name, state.rule.kind());
    let are_same = lower.limits.iter().map(kind).eq(upper.limits.iter().map(kind));
    let has_room = freed.limits.len() + freed.departed.len() <= MAX_BUCKET_LIMITS;
    let edit = lower.edit.max(upper.edit);
    let is_half_edited =
        lower.edit != upper.edit && edit.is_some_and(|edit| edit.may_be_under_way(now));
    if is_half_edited || !is_pair || !is_free || !are_same || !has_room {
        return None;
    }
    if next.refilled_at > now || freed.refilled_at > now {
        return None;
    }
    // A pool that is gone in one shard ends in the other.
    let limits: Vec<_> = next
        .limits
        .iter()
        .filter(|(name, _)| !lower.is_gone(name))
        .map(|(name, state)| Limit::of(name.clone(), state.rule))
        .collect();
    let from = freed.projected(&limits, now).limits;
    for (name, state) in &mut next.limits {
        let Some(there) = from.get(name) else {
            continue;
        };
        let add = there.available;
        state.available = match state.rule.kind() {
            // If a rule changed in one shard only, the other may have more than its share.
            LimitKind::Rate => {
                let (rule, rf) = (&state.rule, next.refilled_at);
                let here = refilled(state.available, rule, lower.shard(), rf, now);
                here + add.min(upper.shard().share(rule.capacity))
            }
            LimitKind::Slots => state.available + add,
            LimitKind::Quota => {
                // Not as projected: a late take may still be of the window that has ended.
                let seen = &freed.limits[name];
                let end = state.window_end.max(seen.window_end);
                let is_behind = |of: &LimitState| of.window_end < end;
                let is_same = state.rule.window_code() == seen.rule.window_code();
                // An end belongs to its rule.
                let is_apart = |of: &LimitState| !of.has_ended(now) && (!is_same || is_behind(of));
                if is_apart(state) || is_apart(seen) {
                    return None;
                }
                let here = match is_behind(state) {
                    true => lower.share(state),
                    false => state.available,
                };
                let is_as_seen = !is_behind(seen) && seen.rule == state.rule;
                state.window_end = end;
                here + if is_as_seen { seen.available } else { add }
            }
        };
        if state.available < MIN_BALANCE {
            return None;
        }
    }
    next.refilled_at = now;
    next.shard_count = whole.count;
    // Above every `v` of the upper shard, so that a later split can create a shard of its number.
    next.write_seq = lower.write_seq.max(upper.write_seq).saturating_add(1);
    let min_shards = next.scaling.min_shards.max(upper.scaling.min_shards);
    next.scaling = Scaling {
        sample: Some(ActivitySample { at: now, write_seq: next.write_seq }),
        min_shards,
        ..Scaling::default()
    };
    next.due_at = next_due(&next, now);
    // Its callers may be gone. If limits are configured for it, the next take removes `ttl`.
    let is_whole = next.shard_count == 1 && min_shards == 0;
    next.ttl = is_whole.then(|| ttl::of_whole(&next, now));
    next.edit = edit;
    next.pause = Pause::later(lower.pause, upper.pause);
    Some(next)
}

/// Replaces `lower` by `joined`. The items of the merged shards `gone` keep only their usage
/// counters, which the next shard of the same number continues.
#[must_use]
pub fn merge(lower: &Shard, joined: Shard, gone: &[&Shard]) -> Vec<Action> {
    let now = joined.refilled_at;
    let mut actions = vec![Action::Update(replace(lower, joined))];
    actions.extend(
        gone.iter().map(|shard| Action::Update(retire(shard, &expired(shard, now).0, now))),
    );
    actions
}

/// Deletes the shard `gone`, whose tokens are all in `whole` too: it dates from before items were
/// deleted manually.
///
/// Requires only that its leases are unchanged, so it also works while other processes still write
/// to the shard. The usage of their takes is in the stream.
#[must_use]
pub fn remove_covered(gone: &Shard, whole: &Shard) -> Vec<Action> {
    let here = vec![
        Condition::Present(Path::of(attr::REFILLED_AT)),
        require_shard_count(gone.shard()),
        require_same_leases(gone),
    ];
    vec![Action::Delete(gone.key.item_key(), here), require_unchanged(whole)]
}

/// Requires that the shard exists and was neither split nor merged.
#[must_use]
pub fn require_unchanged(shard: &Shard) -> Action {
    let same =
        vec![Condition::Present(Path::of(attr::REFILLED_AT)), require_shard_count(shard.shard())];
    Action::Check(shard.key.item_key(), same)
}

/// Creates the missing `shard` of the bucket of `other`: with `slots` of the concurrency limits,
/// and without tokens of rates, because its balance is unknown. Requires that `other` was neither
/// split nor merged.
#[must_use]
pub fn recreate(
    shard: ShardIndex,
    other: &Shard,
    slots: impl Fn(&Limit) -> MilliTokens,
    op: WriteId,
    now: EpochMillis,
) -> Vec<Action> {
    let v = now.0.saturating_mul(1000).max(other.write_seq).saturating_add(1);
    let mut made = Shard {
        key: other.key.with_shard(shard.index),
        shard_count: shard.count,
        refilled_at: now,
        write_seq: v,
        birth_seq: v,
        hour: Hour::of(now),
        acquires: Counter::default(),
        departed: BTreeMap::new(),
        last_write_id: Some(op),
        ttl: None,
        leases: Some(BTreeMap::new()),
        scaling: Scaling {
            sample: Some(ActivitySample { at: now, write_seq: v }),
            min_shards: other.scaling.min_shards,
            ..Scaling::default()
        },
        escrow: None,
        ..other.clone()
    };
    for (name, state) in &mut made.limits {
        let limit = Limit::of(name.clone(), state.rule);
        let tk = match state.rule.kind() {
            LimitKind::Rate => MilliTokens::ZERO,
            LimitKind::Slots => slots(&limit),
            LimitKind::Quota => MilliTokens::ZERO,
        };
        let window_end = state.window_end;
        *state = LimitState { window_end, ..LimitState::new(tk, state.rule) };
    }
    made.due_at = next_due(&made, now);
    vec![Action::Update(make(&made)), require_unchanged(other)]
}

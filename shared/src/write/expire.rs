//! Returning the tokens of expired leases, all leases of a shard in one write.

use std::collections::BTreeMap;

use super::replace::{REST_INTERVAL, REVIEW_INTERVAL, first_expiry, next_due, replace};
use super::{
    AttributeUpdate, Condition, Path, Update, Value, count_write, require_same_leases,
    require_shard_count, roll,
};
use crate::{ActivitySample, EpochMillis, Hour, LimitName, MilliTokens, Shard, attr};

/// Tokens that one write of [`expire`] returns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpiredLeases {
    /// Number of expired leases removed.
    pub leases: usize,
    /// Amounts added to the balances, by limit.
    pub tokens: BTreeMap<LimitName, MilliTokens>,
}

/// Removes every expired lease of `shard` and returns its tokens. Moves `due` to the next work or
/// removes it. Requires that no write reached the shard since it was read: `due` must stay at or
/// before every expiry, also of new leases.
///
/// Returns `None` if there is nothing to change.
#[must_use]
pub fn expire(shard: &Shard, now: EpochMillis) -> Option<(Update, ExpiredLeases)> {
    let (next, restored) = expired(shard, now);
    if next == *shard {
        return None;
    }
    Some((replace(shard, next), restored))
}

/// Returns a write that stores an activity sample, with all that [`expire`] does.
///
/// A busy shard changes between any read and write. If no lease has expired, the write requires
/// only that the leases are unchanged, so `due` is at or before every expiry. Takes since the read
/// count after the sample. A shard that was idle since the last sample is due for the next one after
/// [`REST_INTERVAL`].
#[must_use]
pub fn sample(shard: &Shard, now: EpochMillis) -> (Update, ExpiredLeases) {
    let v = shard.write_seq.saturating_add(1);
    let (mut next, restored) = expired(shard, now);
    next.scaling.sample = Some(ActivitySample { at: now, write_seq: v });
    // A mark of an older client has no end of its own.
    next.scaling.hot_at = None;
    let rests = restored.leases == 0 && is_idle(shard, now);
    next.due_at = if rests {
        first_expiry(&next).into_iter().chain([now.plus(REST_INTERVAL)]).min()
    } else {
        next_due(&next, now)
    };
    if restored.leases > 0 || rests {
        return (replace(shard, next), restored);
    }
    let conditions = vec![
        Condition::Present(Path::of(attr::REFILLED_AT)),
        require_shard_count(shard.shard()),
        require_same_leases(shard),
    ];
    let mut changes = count_write();
    changes.push(AttributeUpdate::Set(Path::of(attr::SAMPLE_AT), Value::Int(now.0)));
    changes.push(AttributeUpdate::Set(Path::of(attr::SAMPLE_WRITE_SEQ), Value::Int(v)));
    changes.extend(shard.scaling.hot_at.map(|_| AttributeUpdate::Remove(Path::of(attr::HOT))));
    let (due, partition) = (Path::of(attr::DUE), Path::of(attr::DUE_SHARD));
    match next.due_at {
        Some(at) => {
            changes.push(AttributeUpdate::Set(due, Value::Int(at.0)));
            changes.push(AttributeUpdate::Set(partition, Value::Text(shard.key.due_shard())));
        }
        None => changes.extend([AttributeUpdate::Remove(due), AttributeUpdate::Remove(partition)]),
    }
    (Update { key: shard.key.item_key(), conditions, changes }, restored)
}

/// Returns whether no write reached the shard since a sample that is old enough for a merge. The
/// reason why it was not merged (an operator's number, or a sibling that differs) probably holds.
/// Reviewing it every minute would cost writes indefinitely.
fn is_idle(shard: &Shard, now: EpochMillis) -> bool {
    let sample = shard.scaling.sample.filter(|look| look.at.plus(REVIEW_INTERVAL) <= now);
    sample.is_some_and(|sample| shard.write_seq <= sample.write_seq)
}

/// Returns `shard` without its expired leases, with a correct `due`.
///
/// `rf` stays, also in the future: only a wrong clock or a process with a newer clock sets it so,
/// and the two cannot be told apart. The shard gains nothing until then.
pub(super) fn expired(shard: &Shard, now: EpochMillis) -> (Shard, ExpiredLeases) {
    let mut next = shard.clone();
    let leases: Vec<_> = shard.expired(now).collect();
    let mut restored = ExpiredLeases { leases: leases.len(), ..ExpiredLeases::default() };
    if let Some(left) = &mut next.leases {
        left.retain(|_, lease| lease.expires_at > now);
    }
    // A return after the hour counts in the present one: windows that ended never change.
    let hour = Hour::of(now);
    let consumed = |name| {
        let leases = leases.iter().map(|(_, lease)| *lease);
        shard.lease_return(name, leases).consumed
    };
    let is_counted = |name| consumed(name) != MilliTokens::ZERO;
    if shard.hour < hour && shard.limits.keys().any(is_counted) {
        roll::roll(&mut next, hour);
    }
    for (name, state) in &mut next.limits {
        let back = shard.lease_return(name, leases.iter().map(|(_, lease)| *lease));
        let held = state.available;
        state.available += back.available;
        state.consumed -= back.consumed;
        if state.rule.kind().refills() {
            state.available = state.available.min(shard.share(state).max(held));
        }
        if back.available > MilliTokens::ZERO {
            restored.tokens.insert(name.clone(), state.available - held);
        }
    }
    next.due_at = next_due(&next, now);
    (next, restored)
}

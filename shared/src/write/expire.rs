//! Restoring what expired leases held, all of a bucket in one write.

use std::collections::BTreeMap;

use super::replace::{REVIEW, count_units, first_expiry, next_due, replace};
use super::{Change, Condition, Path, Update, Value, every_write, same_count, same_leases};
use crate::{Bucket, EpochMillis, LimitName, Look, MilliTokens, Millis, attr, math};

/// How far ahead of this clock an `rf` may be before it counts as a mistake: clocks of a fleet
/// differ by less.
const CLOCK_TOLERANCE: Millis = Millis(10_000);

/// What one write of [`expire`] gives back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Expired leases removed.
    pub leases: usize,
    /// Added to the balances, by limit.
    pub tokens: BTreeMap<LimitName, MilliTokens>,
}

/// Removes every expired lease of `bucket`, gives its tokens back, moves `due` to what comes next
/// or removes it, and pulls back an `rf` from a clock that ran ahead. Only if nobody wrote to the
/// bucket since it was read: `due` must stay at or before every expiry, also that of a lease taken
/// meanwhile.
///
/// `None` if nothing is to be done.
#[must_use]
pub fn expire(bucket: &Bucket, now: EpochMillis) -> Option<(Update, Restored)> {
    let (mut next, restored) = expired(bucket, now);
    if next == *bucket {
        return None;
    }
    count_units(&mut next, 1);
    Some((replace(bucket, next), restored))
}

/// A look at how often the shard is written to, with all that [`expire`] does.
///
/// A busy shard is written to between any read and write. If nothing is to be given back, the look
/// asks only that the leases are those that were seen: then `due` is at or before every expiry, and
/// what was taken meanwhile counts as taken since the look. A shard that has been at rest since the
/// last look, and still is, is not due for another one.
#[must_use]
pub fn look(bucket: &Bucket, now: EpochMillis) -> (Update, Restored) {
    let v = bucket.v.saturating_add(1);
    let (mut next, restored) = expired(bucket, now);
    next.scaling.look = Some(Look { at: now, v });
    next.scaling.is_hot = false;
    let rests = restored.leases == 0 && is_at_rest(bucket, now);
    next.due = if rests {
        first_expiry(&next)
    } else {
        next_due(&next, now)
    };
    if restored.leases > 0 || next.rf != bucket.rf || rests {
        count_units(&mut next, 1);
        return (replace(bucket, next), restored);
    }
    let conditions = vec![
        Condition::Present(Path::of(attr::RF)),
        same_count(bucket.shard()),
        same_leases(bucket),
    ];
    let mut changes = every_write(Some(bucket), MilliTokens::ZERO);
    changes.push(Change::Set(Path::of(attr::LOOK_AT), Value::Int(now.0)));
    changes.push(Change::Set(Path::of(attr::LOOK_V), Value::Int(v)));
    changes.extend(
        bucket
            .scaling
            .is_hot
            .then(|| Change::Remove(Path::of(attr::HOT))),
    );
    let (due, partition) = (Path::of(attr::DUE), Path::of(attr::DUE_SHARD));
    match next.due {
        Some(at) => {
            changes.push(Change::Set(due, Value::Int(at.0)));
            changes.push(Change::Set(partition, Value::Text(bucket.key.due_shard())));
        }
        None => changes.extend([Change::Remove(due), Change::Remove(partition)]),
    }
    (
        Update {
            key: bucket.key.item_key(),
            conditions,
            changes,
        },
        restored,
    )
}

/// Whether nobody has written to the shard since a look that is old enough for a merge. What kept
/// it from being merged now (an operator asked for it, or it is not like its sibling) keeps it
/// until somebody writes to it; to look at it every minute until then would cost forever.
fn is_at_rest(bucket: &Bucket, now: EpochMillis) -> bool {
    let look = bucket
        .scaling
        .look
        .filter(|look| look.at.after(REVIEW) <= now);
    look.is_some_and(|look| bucket.v <= look.v)
}

/// `bucket` without its expired leases, with a `due` and an `rf` that are right.
pub(super) fn expired(bucket: &Bucket, now: EpochMillis) -> (Bucket, Restored) {
    let mut next = bucket.clone();
    let leases: Vec<_> = bucket.expired(now).collect();
    let mut restored = Restored {
        leases: leases.len(),
        ..Restored::default()
    };
    if let Some(left) = &mut next.leases {
        left.retain(|_, lease| lease.expires > now);
    }
    let rf_ahead = bucket.rf > now.after(CLOCK_TOLERANCE);
    if rf_ahead {
        next.rf = now;
    }
    for (name, state) in &mut next.limits {
        let back = bucket.give_back(name, leases.iter().map(|(_, lease)| *lease));
        let held = state.tk;
        state.tk += back.tk;
        state.tc -= back.tc;
        if !state.rule.is_concurrent() {
            state.tk = state.tk.min(bucket.share(state).max(held));
        }
        if back.tk > MilliTokens::ZERO {
            restored.tokens.insert(name.clone(), state.tk - held);
        }
        if rf_ahead {
            // What the fast clock credited for a time still to come is taken back, as far as it was
            // not used.
            let early = math::credit(&state.rule, bucket.shard(), now, bucket.rf);
            state.tk = (state.tk - early).max(state.tk.min(MilliTokens::ZERO));
        }
    }
    next.due = next_due(&next, now);
    (next, restored)
}

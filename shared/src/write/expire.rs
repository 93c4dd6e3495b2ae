//! Restoring what expired leases held, all of a bucket in one write (design, sections 5 and 8).

use std::collections::BTreeMap;

use super::{Change, Condition, Path, Update, Value, add_tokens, every_write};
use crate::attr::{self, Field};
use crate::{Bucket, EpochMillis, LimitName, MilliTokens, Millis, WriteId, item, math};

/// How far ahead of this clock an `rf` may be before it counts as a mistake: clocks of a fleet differ by less.
const CLOCK_TOLERANCE: Millis = Millis(10_000);

/// What one write of [`expire`] gives back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Expired leases removed.
    pub leases: usize,
    /// Added to the balances, by limit.
    pub tokens: BTreeMap<LimitName, MilliTokens>,
}

/// Removes every expired lease of `bucket`, gives its tokens back, moves `due` to the next expiry or removes it, and
/// pulls back an `rf` from a clock that ran ahead. Only if nobody wrote to the bucket since it was read: `due` must
/// stay at or before every expiry, also that of a lease taken meanwhile.
///
/// `None` if nothing is to be done, or if the item is not ours.
#[must_use]
pub fn expire(bucket: &Bucket, now: EpochMillis) -> Option<(Update, Restored)> {
    let v = bucket.v?;
    let expired: Vec<_> = bucket.expired(now).collect();
    let remaining: BTreeMap<&WriteId, _> =
        bucket.leases.iter().flatten().filter(|(_, lease)| lease.expires > now).collect();
    let due = remaining.values().map(|lease| lease.expires).min();
    let rf_ahead = bucket.rf > now.after(CLOCK_TOLERANCE);
    if expired.is_empty() && due == bucket.due && !rf_ahead {
        return None;
    }
    let mut changes = every_write(Some(bucket), MilliTokens::ZERO);
    match due {
        Some(next) => {
            changes.push(Change::Set(Path::of(attr::DUE), Value::Int(next.0)));
            changes.push(Change::Set(Path::of(attr::DUE_SHARD), Value::Text(bucket.key.due_shard())));
        }
        None => changes.extend([Change::Remove(Path::of(attr::DUE)), Change::Remove(Path::of(attr::DUE_SHARD))]),
    }
    if rf_ahead {
        changes.push(Change::Set(Path::of(attr::RF), Value::Int(now.0)));
    }
    let mut restored = Restored { leases: expired.len(), ..Restored::default() };
    if !expired.is_empty() {
        let left = remaining.iter().map(|(id, lease)| (id.to_string(), item::write_lease(lease))).collect();
        changes.push(Change::Set(Path::of(attr::LEASES), Value::Map(left)));
    }
    for (name, state) in &bucket.limits {
        let back = bucket.give_back(name, expired.iter().map(|(_, lease)| *lease));
        let mut tk = state.tk + back.tk;
        if !state.rule.is_concurrent() {
            tk = tk.min(bucket.share(state).max(state.tk));
        }
        if back.tk > MilliTokens::ZERO {
            restored.tokens.insert(name.clone(), tk - state.tk);
        }
        if rf_ahead {
            // What the fast clock credited for a time still to come is taken back, as far as it was not used.
            let early = math::credit(&state.rule, bucket.shard(), now, bucket.rf);
            tk = (tk - early).max(tk.min(MilliTokens::ZERO));
        }
        if tk != state.tk {
            changes.push(add_tokens(name, Field::Tokens, tk - state.tk));
        }
        if back.tc != MilliTokens::ZERO {
            changes.push(add_tokens(name, Field::Consumed, -back.tc));
        }
    }
    let conditions = vec![Condition::Equals(Path::of(attr::V), Value::Int(v))];
    Some((Update { key: bucket.key.item_key(), conditions, changes }, restored))
}

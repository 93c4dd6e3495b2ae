//! Writes that settle a hold: adjust, renew, release, roll back.

use std::collections::BTreeMap;

use super::{
    AttributeUpdate, Condition, Path, Roll, Update, Value, add_tokens, count_write, has_kind,
    push_new, require_limits, require_same_leases, require_shard_count, set_write_id, tokens, ttl,
    window_end,
};
use crate::attr::{self, Field};
use crate::math::MIN_BALANCE;
use crate::{BucketKey, EpochMillis, LimitKind, LimitName, MilliTokens, Shard, WriteId};

/// One write that settles one shard's part of a hold.
#[derive(Debug, Clone)]
pub struct Settle<'a> {
    /// Shard that the tokens were taken from.
    pub key: &'a BucketKey,
    /// Id of this write.
    pub write_id: WriteId,
    /// Stored lease and its change; after the lease has ended, the write fails.
    pub lease: Option<(&'a WriteId, LeaseChange)>,
    /// Changes, by limit.
    pub amounts: BTreeMap<LimitName, LimitDelta>,
    /// Number of earlier grants that this write counts; negative for counted acquires that were not
    /// granted after all.
    pub acquires: i64,
    /// Hour in which changes of consumption or acquires count.
    pub roll: Roll,
}

/// A change of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseChange {
    /// Ends the lease.
    End,
    /// Moves the expiry to this instant. Requires that it is no later, because `due` may be there by now,
    /// and a lease that ended before would be found late.
    Renew(EpochMillis),
    /// Replaces held amounts: before and after, by limit. Requires the amounts before, so that a
    /// repeated adjustment counts once. A limit that the lease does not hold has 0 before.
    SetAmounts(BTreeMap<LimitName, (MilliTokens, MilliTokens)>),
}

/// A settlement's changes of one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitDelta {
    /// Amount added to the balance; a negative one may lead into debt.
    pub available: MilliTokens,
    /// Amount added to the consumption.
    pub consumed: MilliTokens,
    /// Maximum balance after a return: the share of a rate's capacity. `None` for slots and for
    /// takes from a quota, because exactly those taken come back.
    pub ceiling: Option<MilliTokens>,
    /// End of the window that the tokens of a quota were taken from; `None` for other kinds. They
    /// return to no other window.
    pub window: Option<EpochMillis>,
}

impl Settle<'_> {
    /// Returns the settlement with all its amounts; it fails if a balance would pass its ceiling, or
    /// tokens would return to another window. `seen` is used only for the roll and for `ttl`.
    #[must_use]
    pub fn full(&self, seen: Option<&Shard>) -> Update {
        self.update(seen, None)
    }

    /// Returns the settlement cut at the ceilings and windows of `shard`: a balance that has refilled
    /// since takes back only what makes it full, and another window takes back nothing.
    #[must_use]
    pub fn capped(&self, shard: &Shard) -> Update {
        self.update(Some(shard), Some(shard))
    }

    /// Returns whether the shard has all limits of the settlement. If not, its item was deleted
    /// since the take, and perhaps created again with other limits: the write fails.
    #[must_use]
    pub fn has_limits(&self, shard: &Shard) -> bool {
        self.amounts.iter().all(|(limit, settled)| {
            let rule = shard.limits.get(limit).map(|state| state.rule);
            rule.is_some_and(|rule| !rule.kind().is_held() || !self.is_unheld(settled))
        })
    }

    /// Returns whether a change is of a balance that no lease holds.
    fn is_unheld(&self, settled: &LimitDelta) -> bool {
        self.lease.is_none() && settled.available != MilliTokens::ZERO
    }

    fn update(&self, seen: Option<&Shard>, view: Option<&Shard>) -> Update {
        let mut update =
            Update { key: self.key.item_key(), conditions: vec![], changes: count_write() };
        update.changes.push(set_write_id(&self.write_id));
        if self.acquires != 0 {
            update
                .changes
                .push(AttributeUpdate::Add(Path::of(attr::TAKES), Value::Int(self.acquires)));
        }
        if self.acquires != 0
            || self.amounts.values().any(|settled| settled.consumed != MilliTokens::ZERO)
        {
            self.roll.write(&mut update, seen);
        }
        match &self.lease {
            None => {
                update.conditions.push(Condition::Present(Path::of(attr::REFILLED_AT)));
                // Without a lease, only this condition prevents a retransmitted request from
                // returning twice.
                update.conditions.push(Condition::Differs(
                    Path::of(attr::LAST_WRITE_ID),
                    Value::text(self.write_id.as_str()),
                ));
            }
            Some((id, change)) => {
                update.conditions.push(Condition::Present(Path::lease(id)));
                change_lease(&mut update, id, change);
            }
        }
        self.write_ttl(seen, &mut update);
        for (limit, settled) in &self.amounts {
            let now = view.and_then(|shard| Some((shard, shard.limits.get(limit)?)));
            let kind = now.map(|(_, state)| state.rule.kind());
            let is_quota = kind.map_or(settled.window.is_some(), LimitKind::has_window);
            let mut tk = settled.available;
            if is_quota {
                update.conditions.extend(has_kind(limit, LimitKind::Quota));
            } else {
                // What has a ceiling returns to a rate.
                let is_rate = tk > MilliTokens::ZERO && settled.ceiling.is_some();
                let least = Value::Int(i64::from(is_rate || self.is_unheld(settled)));
                let amount = Path::limit(limit, Field::RefillAmount);
                update.conditions.push(Condition::AtLeast(amount, least));
            }
            let window = now.filter(|_| is_quota).map(|(_, state)| state.window_end);
            match settled.window {
                _ if tk <= MilliTokens::ZERO => {}
                // The limit was a quota, or became one, since the take.
                _ if kind.is_some_and(|kind| kind.has_window() != settled.window.is_some()) => {
                    tk = MilliTokens::ZERO;
                }
                Some(taken) if window.is_none_or(|window| window == taken) => {
                    let same = Condition::Equals(window_end(limit), Value::Int(taken.0));
                    update.conditions.push(same);
                }
                Some(_) => tk = MilliTokens::ZERO,
                None => {}
            }
            if tk < MilliTokens::ZERO {
                let least = Value::Int((MIN_BALANCE - tk).0);
                push_new(&mut update, Condition::AtLeast(tokens(limit), least));
            }
            if let Some(ceiling) = settled.ceiling.filter(|_| tk > MilliTokens::ZERO) {
                // The limit may have been lowered since the take.
                let ceiling = now.map_or(ceiling, |(shard, state)| shard.share(state));
                if let Some((_, state)) = now {
                    tk = tk.min((ceiling - state.available).max(MilliTokens::ZERO));
                }
                let capacity = now.map_or(ceiling, |(_, state)| state.rule.capacity);
                update.conditions.push(Condition::AtLeast(
                    Path::limit(limit, Field::Capacity),
                    Value::Int(capacity.0),
                ));
                if tk > MilliTokens::ZERO {
                    update
                        .conditions
                        .push(Condition::AtMost(tokens(limit), Value::Int((ceiling - tk).0)));
                }
            }
            if tk != MilliTokens::ZERO {
                update.changes.push(add_tokens(limit, Field::Tokens, tk));
            }
            if settled.consumed != MilliTokens::ZERO {
                update.changes.push(add_tokens(limit, Field::Consumed, settled.consumed));
            }
        }
        if let Some(seen) = seen {
            require_limits(&mut update, seen);
        }
        update
    }

    /// Keeps `ttl` at or after the refill of additional takes, and at or after the expiry of a
    /// renewed lease.
    fn write_ttl(&self, seen: Option<&Shard>, update: &mut Update) {
        let need = |name: &LimitName| {
            self.amounts.get(name).map_or(MilliTokens::ZERO, |settled| -settled.available)
        };
        let expires = match self.lease {
            Some((_, LeaseChange::Renew(expires))) => Some(expires),
            _ => None,
        };
        let takes = self.amounts.keys().any(|name| need(name) > MilliTokens::ZERO);
        match seen {
            _ if !takes && expires.is_none() => {}
            Some(seen) => {
                // Counts refill only until `refilled_at`, which underestimates the balance.
                let (wish, now) = (ttl::TtlWish::Same, seen.refilled_at);
                ttl::Lowered {
                    seen,
                    next: seen,
                    need: &need,
                    is_unbounded: &|_| true,
                    expires,
                    wish,
                    now,
                }
                .write(update);
            }
            None if takes => update.conditions.push(Condition::Absent(Path::of(attr::TTL))),
            None => ttl::not_before(update, expires.unwrap_or_default()),
        }
    }
}

/// Removes `due` with `update`, which ends `lease`, if that is the only lease of `seen`: the
/// reconciler then has no work. Requires that the shard still holds no other lease.
pub fn clear_due(update: &mut Update, seen: &Shard, lease: &WriteId) {
    let is_last =
        seen.leases.as_ref().is_some_and(|leases| leases.len() == 1 && leases.contains_key(lease));
    if !is_last || seen.due_at.is_none() || seen.shard().count > 1 {
        return;
    }
    push_new(update, require_shard_count(seen.shard()));
    update.conditions.push(require_same_leases(seen));
    update
        .changes
        .extend([attr::DUE, attr::DUE_SHARD].map(|name| AttributeUpdate::Remove(Path::of(name))));
}

fn change_lease(update: &mut Update, id: &WriteId, change: &LeaseChange) {
    let lease = Path::lease(id);
    match change {
        LeaseChange::End => update.changes.push(AttributeUpdate::Remove(lease)),
        LeaseChange::Renew(expires) => {
            let (expiry, until) = (lease.then(attr::LEASE_EXPIRY), Value::Int(expires.0));
            let is_later = Condition::AtMost(expiry.clone(), until.clone());
            update.conditions.push(is_later);
            update.changes.push(AttributeUpdate::Set(expiry, until));
        }
        LeaseChange::SetAmounts(amounts) => {
            for (limit, (before, after)) in amounts {
                let held = lease.clone().then(attr::LEASE_TOKENS).then(limit.to_string());
                let same = Condition::Equals(held.clone(), Value::Int(before.0));
                update.conditions.push(match *before {
                    MilliTokens::ZERO => Condition::AbsentOr(held.clone(), Box::new(same)),
                    _ => same,
                });
                update.changes.push(AttributeUpdate::Set(held, Value::Int(after.0)));
            }
        }
    }
}

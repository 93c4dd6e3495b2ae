//! Taking tokens: the plain take, refill and take, and the first take that creates the bucket (design, section 4).

use std::collections::BTreeMap;

use super::{Change, Condition, Path, Update, Value, add_tokens, counts_writes, every_write, sign, tokens, wcu_credit};
use crate::attr::{self, Field};
use crate::limit::WCU;
use crate::{Bucket, BucketKey, EpochMillis, Lease, Limit, LimitName, LimitState, MilliTokens, Millis, WriteId, item};

/// One write that takes tokens for one or more callers.
#[derive(Debug, Clone)]
pub struct Take<'a> {
    /// The bucket shard.
    pub key: &'a BucketKey,
    /// The limits as the callers know them; they reach the bucket with the take if its own differ.
    pub limits: &'a [Limit],
    /// What is taken of each limit, all callers together.
    pub needs: BTreeMap<LimitName, MilliTokens>,
    /// How many acquires this grants.
    pub takes: i64,
    /// Leases written with the take; their tokens are among `needs`.
    pub leases: Vec<(WriteId, Lease)>,
    /// Id of this write.
    pub op: WriteId,
    /// Earlier writes for the same callers whose outcome is unknown: if one of them turns out to be the last write
    /// of the item, this take must not happen again.
    pub unknown: &'a [WriteId],
}

impl Take<'_> {
    /// The cheapest write for what is known of the bucket: takes what is there, or credits refill, expired leases
    /// and changed limits along with it.
    #[must_use]
    pub fn on(&self, view: Option<&Bucket>, now: EpochMillis) -> Update {
        match view {
            Some(bucket) if !self.is_there(bucket) => self.refilling(bucket, now),
            view => self.plain(view),
        }
    }

    fn is_there(&self, bucket: &Bucket) -> bool {
        let holds =
            |(limit, need): (&LimitName, &MilliTokens)| bucket.limits.get(limit).is_some_and(|state| state.tk >= *need);
        self.needs.iter().all(holds) && bucket.has_rules(self.limits)
    }

    /// `ADD tk −n, tc +n` for each limit, if every `tk ≥ n`.
    fn plain(&self, view: Option<&Bucket>) -> Update {
        let mut update = self.update(every_write(view, MilliTokens::ZERO));
        // A take of nothing has no other condition, and would make an item of what is gone.
        update.conditions.push(counts_writes(view).unwrap_or_else(|| Condition::Present(Path::of(attr::RF))));
        for (limit, &need) in &self.needs {
            update.conditions.push(Condition::AtLeast(tokens(limit), Value::Int(need.0)));
            update.changes.push(add_tokens(limit, Field::Tokens, -need));
            update.changes.push(add_tokens(limit, Field::Consumed, need));
        }
        self.write_leases(view, &mut update);
        update
    }

    /// The plain take, with the credit since `rf`, the tokens of expired leases and changed limits in the same write.
    /// Only if `rf` is the one seen, the leases are still there, and no balance would pass its ceiling.
    fn refilling(&self, bucket: &Bucket, now: EpochMillis) -> Update {
        let mut update = self.update(every_write(Some(bucket), wcu_credit(bucket, now)));
        update.conditions.push(Condition::Equals(Path::of(attr::RF), Value::Int(bucket.rf.0)));
        // Changed rules always move `rf`, also within a millisecond: who saw the bucket with the old ones must not credit
        // by them.
        let least = if bucket.has_rules(self.limits) { bucket.rf } else { bucket.rf.after(Millis(1)) };
        update.changes.push(Change::Set(Path::of(attr::RF), Value::Int(least.max(now).0)));

        for (id, lease) in bucket.reclaimable(now) {
            let expiry = Path::lease(id).then(attr::LEASE_EXPIRY);
            update.conditions.push(Condition::Equals(expiry, Value::Int(lease.expires.0)));
            // Its holder may have adjusted it since, which changes neither `rf` nor the expiry.
            if !lease.tokens.is_empty() {
                let held = Path::lease(id).then(attr::LEASE_TOKENS);
                update.conditions.push(Condition::Equals(held, item::write_held(lease)));
            }
            update.changes.push(Change::Remove(Path::lease(id)));
        }
        for (name, next) in &bucket.advanced(self.limits, now).limits {
            let need = self.needs.get(name).copied().unwrap_or_default();
            let next = LimitState { tk: next.tk - need, tc: next.tc + need, rule: next.rule };
            match bucket.limits.get(name) {
                Some(state) => {
                    if state.rule.is_concurrent() != next.rule.is_concurrent() {
                        // What is free is counted anew from the leases, so none may have come or gone since.
                        update.conditions.extend(same_v(bucket));
                    }
                    advance_limit(&mut update, name, state, &next, need, bucket.share(&next));
                }
                None => {
                    update.conditions.push(Condition::Absent(tokens(name)));
                    update.changes.extend(item::write_limit(name, &next));
                }
            }
        }
        self.write_leases(Some(bucket), &mut update);
        update
    }

    /// The whole bucket, full but for what is taken, if it does not exist.
    #[must_use]
    pub fn create(&self, now: EpochMillis) -> Update {
        let limits = self.limits.iter().map(|limit| {
            let need = self.needs.get(limit.name()).copied().unwrap_or_default();
            let full = limit.rule().capacity;
            (limit.name().clone(), LimitState { tk: full - need, tc: need, rule: *limit.rule() })
        });
        let unit = MilliTokens::from_tokens(1);
        let bucket = Bucket {
            key: self.key.clone(),
            shard_count: 1,
            rf: now,
            v: Some(now.0.saturating_mul(1000)),
            takes: Some(self.takes),
            limits: limits.collect(),
            wcu: Some(LimitState { tk: WCU.capacity - unit, tc: unit, rule: WCU }),
            leases: Some(self.leases.iter().cloned().collect()),
            due: self.first_expiry(),
            op: Some(self.op.clone()),
            size_bytes: 0,
        };
        let conditions = vec![Condition::Absent(Path::of(attr::PK))];
        Update { key: self.key.item_key(), conditions, changes: item::write_bucket(&bucket) }
    }

    fn update(&self, mut changes: Vec<Change>) -> Update {
        changes.push(sign(&self.op));
        changes.push(Change::Add(Path::of(attr::TAKES), Value::Int(self.takes)));
        let differs = |op: &WriteId| Condition::Differs(Path::of(attr::OP), Value::text(op.as_str()));
        Update { key: self.key.item_key(), conditions: self.unknown.iter().map(differs).collect(), changes }
    }

    fn first_expiry(&self) -> Option<EpochMillis> {
        self.leases.iter().map(|(_, lease)| lease.expires).min()
    }

    /// Adds the leases, and keeps `due` at or before the first expiry without touching the index when it is already.
    fn write_leases(&self, view: Option<&Bucket>, update: &mut Update) {
        let Some(first) = self.first_expiry() else { return };
        let map = Path::of(attr::LEASES);
        if view.is_some_and(|bucket| bucket.leases.is_none()) {
            update.conditions.push(Condition::Absent(map.clone()));
            update.changes.push(Change::Set(map, item::write_leases(&self.leases.iter().cloned().collect())));
        } else {
            update.conditions.push(Condition::Present(map));
            let set = |(id, lease): &(WriteId, Lease)| Change::Set(Path::lease(id), item::write_lease(lease));
            update.changes.extend(self.leases.iter().map(set));
        }
        let due_is_later = view.and_then(|bucket| bucket.due).is_some_and(|due| due > first);
        let (due, shard) = (Path::of(attr::DUE), Path::of(attr::DUE_SHARD));
        let (first, partition) = (Value::Int(first.0), Value::Text(self.key.due_shard()));
        if due_is_later {
            update.conditions.push(Condition::AtLeast(due.clone(), first.clone()));
            update.changes.push(Change::Set(due, first));
            update.changes.push(Change::Set(shard, partition));
        } else {
            let early = Condition::AtMost(due.clone(), first.clone());
            update.conditions.push(Condition::AbsentOr(due.clone(), Box::new(early)));
            update.changes.push(Change::SetIfAbsent(due, first));
            update.changes.push(Change::SetIfAbsent(shard, partition));
        }
    }
}

/// That nobody wrote to the bucket since it was seen; items of other software cannot tell.
fn same_v(bucket: &Bucket) -> Option<Condition> {
    bucket.v.map(|v| Condition::Equals(Path::of(attr::V), Value::Int(v)))
}

/// Moves one limit from `state` to `next`, of which `need` is taken: what it gained may be added only as long as it
/// does not pass its `share`, and the need must still be there.
fn advance_limit(
    update: &mut Update,
    name: &LimitName,
    state: &LimitState,
    next: &LimitState,
    need: MilliTokens,
    share: MilliTokens,
) {
    let gained = next.tk + need - state.tk;
    // Lowering takes away what a balance had when it was seen; from less it would make a debt.
    let is_cut = gained < MilliTokens::ZERO && !next.rule.is_concurrent() && next.tk >= MilliTokens::ZERO;
    if need > MilliTokens::ZERO || is_cut {
        update.conditions.push(Condition::AtLeast(tokens(name), Value::Int((need - gained).0)));
    }
    if gained > MilliTokens::ZERO && !next.rule.is_concurrent() {
        let ceiling = share.max(next.tk + need);
        update.conditions.push(Condition::AtMost(tokens(name), Value::Int((ceiling - gained).0)));
    }
    for (field, before, after) in [(Field::Tokens, state.tk, next.tk), (Field::Consumed, state.tc, next.tc)] {
        if before != after {
            update.changes.push(add_tokens(name, field, after - before));
        }
    }
    if next.rule != state.rule {
        let capacity = Path::limit(name, Field::Capacity);
        update.conditions.push(Condition::Equals(capacity.clone(), Value::Int(state.rule.capacity.0)));
        update.changes.push(Change::Set(capacity, Value::Int(next.rule.capacity.0)));
        update.changes.push(Change::Set(Path::limit(name, Field::RefillAmount), Value::Int(next.rule.refill_amount.0)));
        update
            .changes
            .push(Change::Set(Path::limit(name, Field::RefillPeriod), Value::Int(next.rule.refill_period_ms)));
    }
}

//! Taking tokens: from the available balance, from refill, and by creating the bucket.

use std::collections::BTreeMap;

use super::credit::BalanceUpdate;
use super::replace::unchanged;
use super::{
    AttributeUpdate, Condition, Path, Roll, Update, Value, add_tokens, count_write, push_new,
    require_refilled_at, require_shard_count, set_write_id, tokens, ttl, units_credit,
};
use crate::attr::{self, Field};
use crate::limit::RefillRule;
use crate::math::{ShardIndex, ready_at, refill_between};
use crate::{
    BucketKey, EpochMillis, Lease, LeaseReturn, LimitName, LimitState, MilliTokens, Millis, Shard,
    VersionedLimits, WriteId, item,
};

/// One write that takes tokens for a batch of acquires.
#[derive(Debug, Clone)]
pub struct Take<'a> {
    /// The bucket shard.
    pub key: &'a BucketKey,
    /// Limits of the acquires. The take writes them to the shard if its own differ and are not
    /// newer.
    pub limits: VersionedLimits<'a>,
    /// Amounts taken, by limit, for the whole batch.
    pub amounts: BTreeMap<LimitName, MilliTokens>,
    /// Amounts of soft limits, taken even into debt.
    pub soft_amounts: BTreeMap<LimitName, MilliTokens>,
    /// Number of acquires that this grants.
    pub acquires: i64,
    /// Leases written with the take; their tokens are part of `amounts`.
    pub leases: Vec<(WriteId, Lease)>,
    /// Hour in which this take counts.
    pub roll: Roll,
    /// Id of this write.
    pub write_id: WriteId,
    /// Whether to request a split: the shard was throttled, as last seen.
    pub request_split: bool,
    /// Contention of the shard.
    pub contention: Contention,
    /// Unconfirmed writes for the same batch, this one among them. The take must not be applied
    /// again if one of them is the item's last write, or if its leases exist.
    pub unconfirmed: &'a [WriteId],
}

/// Whether other processes write to a shard, as far as the last responses showed.
///
/// A take of a full shard states where its balance is cut, so of two concurrent ones, one fails.
/// Where many processes use less than the refill, shards are often full, and half of their writes
/// would fail. Under contention, a take leaves headroom when it cuts: at most 1/128 of the shard's
/// share, and at most a second's refill. With a stale view it assumes that there is headroom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Contention {
    /// No other writer was seen; the take keeps every token.
    #[default]
    Alone,
    /// Other writers, and a fresh view.
    Shared,
    /// Other writers, and a stale view.
    SharedStale,
}

impl Take<'_> {
    /// Returns the cheapest write for this view.
    ///
    /// Each write is exact, whatever other processes have written since the view. It applies only
    /// if its assumption about the balance holds at `now`. A bucket that is full then is full from
    /// `now` on, not from its last write: otherwise an idle bucket could be emptied twice at one
    /// instant.
    #[must_use]
    pub fn plan(&self, view: Option<&Shard>, now: EpochMillis) -> Update {
        match view {
            None => self.take_balance(None, self.assumed_refilled_at(now), now),
            Some(shard) if !shard.matches_rules(self.limits, now) => {
                self.with_new_limits(shard, now)
            }
            Some(shard) if self.is_covered(shard, now) => {
                self.take_balance(view, shard.refilled_at, now)
            }
            Some(shard) => self.take_refill(shard, now),
        }
    }

    /// Returns whether the available tokens suffice, and no refill since `refilled_at` has
    /// overflowed.
    #[must_use]
    pub fn is_covered(&self, shard: &Shard, now: EpochMillis) -> bool {
        let has_room = |state| self.assumes_headroom() || !shard.is_full(state, now);
        let holds = |limit: &LimitName, need| {
            shard
                .limits
                .get(limit)
                .is_some_and(|state| state.available >= need && has_room(state))
        };
        self.amounts.iter().all(|(limit, need)| holds(limit, *need))
            && self
                .soft_amounts
                .keys()
                .all(|limit| holds(limit, MilliTokens(i64::MIN)))
    }

    fn assumes_headroom(&self) -> bool {
        self.contention == Contention::SharedStale
    }

    /// Returns the headroom that a cut leaves, so that the next takes need not cut.
    fn headroom(&self, shard: &Shard, state: &LimitState) -> MilliTokens {
        let second = refill_between(
            &state.rule,
            shard.shard(),
            shard.refilled_at,
            shard.refilled_at.plus(Millis(1000)),
        );
        if self.contention == Contention::Alone {
            MilliTokens::ZERO
        } else {
            second.min(shard.share(state) / 128)
        }
    }

    /// Returns `ADD tk −n, tc +n` for each limit. Requires `tk ≥ n`, and that the refill since
    /// `rf`, which is `floor` or later, fits above the balance.
    fn take_balance(&self, view: Option<&Shard>, floor: EpochMillis, now: EpochMillis) -> Update {
        let mut update = self.update(view, MilliTokens::ZERO);
        // Neither condition holds for a shard that was deleted or merged away.
        push_new(&mut update, require_shard_count(self.shard(view)));
        update
            .conditions
            .push(Condition::Present(Path::of(attr::RF)));
        let mut is_rate = false;
        for (name, &need) in self.amounts.iter().chain(&self.soft_amounts) {
            update.conditions.push(match self.is_soft(name) {
                true => Condition::Present(tokens(name)),
                false => Condition::AtLeast(tokens(name), Value::Int(need.0)),
            });
            update.changes.push(add_tokens(name, Field::Tokens, -need));
            update.changes.push(add_tokens(name, Field::Consumed, need));
            let Some((rule, shard)) = self
                .rule(view, name)
                .filter(|(rule, _)| !rule.is_concurrent())
            else {
                continue;
            };
            is_rate = true;
            let top = shard.share(rule.capacity) - refill_between(&rule, shard, floor, now);
            update
                .conditions
                .push(Condition::AtMost(tokens(name), Value::Int(top.0)));
            // A write that changed the rule has moved `rf`, which this take allows; so it requires
            // the rule itself.
            update.conditions.extend(super::has_rule(name, &rule));
        }
        if is_rate {
            update
                .conditions
                .push(Condition::AtLeast(Path::of(attr::RF), Value::Int(floor.0)));
        }
        self.write_leases(view, &mut update);
        match view {
            Some(shard) => self.write_ttl(shard, shard, now, &mut update),
            None => self.check_ttl(now, &mut update),
        }
        update
    }

    /// Takes from refill since `rf` and from expired leases, without moving `rf`. `tk` is the
    /// balance at `rf`, so it may go below zero. Concurrent takes exclude each other only if the
    /// balance does not cover both.
    fn take_refill(&self, shard: &Shard, now: EpochMillis) -> Update {
        let mut update = self.update(Some(shard), MilliTokens::ZERO);
        require_refilled_at(shard)
            .into_iter()
            .for_each(|condition| push_new(&mut update, condition));
        reclaim(&mut update, shard, now);
        for (name, state) in &shard.limits {
            let need = self.need(name);
            let back = shard.lease_return(name, shard.reclaimable(now).map(|(_, lease)| lease));
            if need == MilliTokens::ZERO && back == LeaseReturn::default() {
                continue;
            }
            let flowed = refill_between(&state.rule, shard.shard(), shard.refilled_at, now);
            let ceiling = shard.share(state);
            let (guesses_room, slack) = (self.assumes_headroom(), self.headroom(shard, state));
            let is_soft = self.is_soft(name);
            let credit = BalanceUpdate {
                refill: flowed,
                returned: back.available,
                ceiling,
                taken: need,
                is_soft,
                moves_refilled_at: false,
                assumes_headroom: guesses_room,
                headroom: slack,
            };
            credit.write(&mut update, name, state);
            update
                .changes
                .extend(add_consumed(name, need - back.consumed));
        }
        for (name, need) in self
            .amounts
            .iter()
            .filter(|(name, _)| !shard.limits.contains_key(*name))
        {
            update
                .conditions
                .push(Condition::AtLeast(tokens(name), Value::Int(need.0)));
        }
        self.write_leases(Some(shard), &mut update);
        self.write_ttl(shard, shard, now, &mut update);
        update
    }

    /// Writes the acquire's limits to the shard along with the take. Moves `rf`, so that all refill
    /// by the old rules is credited. Requires the `rf` of the view.
    fn with_new_limits(&self, shard: &Shard, now: EpochMillis) -> Update {
        let mut update = self.update(Some(shard), units_credit(shard, now));
        require_refilled_at(shard)
            .into_iter()
            .for_each(|condition| push_new(&mut update, condition));
        // Moves `rf` even within a millisecond, so that a write planned with the old rules fails.
        let rf = shard.refilled_at.plus(Millis(1)).max(now);
        update
            .changes
            .push(AttributeUpdate::Set(Path::of(attr::RF), Value::Int(rf.0)));
        update.changes.extend(self.set_version(shard, now));
        reclaim(&mut update, shard, now);
        let changed = shard.projected(self.limits, now);
        let differs =
            |(name, state): (&LimitName, &LimitState)| changed.limits[name].rule != state.rule;
        if self.limits.version.is_none() && shard.limits.iter().any(differs) {
            update.changes.push(AttributeUpdate::Set(
                Path::of(attr::RULE_AT),
                Value::Int(now.0),
            ));
        }
        for (name, next) in &changed.limits {
            let need = self.need(name);
            let Some(state) = shard.limits.get(name) else {
                let next = LimitState {
                    available: next.available - need,
                    consumed: next.consumed + need,
                    ..*next
                };
                update.conditions.push(Condition::Absent(tokens(name)));
                let mut changes = item::write_limit(name, &next).to_vec();
                if shard.departed.contains_key(name) {
                    // The limit continues to count where it stopped.
                    changes.retain(|change| !matches!(change, AttributeUpdate::Set(at, _) if attr::counts_usage(&at.0[0])));
                    changes.push(add_tokens(name, Field::Consumed, need));
                }
                update.changes.extend(changes);
                continue;
            };
            let back = shard.lease_return(name, shard.reclaimable(now).map(|(_, lease)| lease));
            if state.rule.is_concurrent() == next.rule.is_concurrent() {
                let (old, new) = (shard.share(state), shard.share(next));
                let is_slots = state.rule.is_concurrent();
                let flowed = if is_slots {
                    new - old
                } else {
                    refill_between(&state.rule, shard.shard(), shard.refilled_at, now)
                };
                let (ceiling, slack) = (old.min(new), MilliTokens::ZERO);
                let (is_soft, guesses_room) = (self.is_soft(name), false);
                let credit = BalanceUpdate {
                    refill: flowed,
                    returned: back.available,
                    ceiling,
                    taken: need,
                    is_soft,
                    moves_refilled_at: true,
                    assumes_headroom: guesses_room,
                    headroom: slack,
                };
                credit.write(&mut update, name, state);
            } else {
                // The free amount is computed from the leases, so none may have been added or
                // removed since.
                update.conditions.push(unchanged(shard));
                let at_least = Value::Int((need - next.available + state.available).0);
                update.conditions.extend(
                    (!self.is_soft(name)).then(|| Condition::AtLeast(tokens(name), at_least)),
                );
                update.changes.push(AttributeUpdate::Set(
                    tokens(name),
                    Value::Int((next.available - need).0),
                ));
            }
            update
                .changes
                .extend(add_consumed(name, need - back.consumed));
            if next.rule != state.rule {
                update.conditions.extend(super::has_rule(name, &state.rule));
                update.changes.extend(super::set_rule(name, &next.rule));
            }
        }
        self.write_leases(Some(shard), &mut update);
        self.write_ttl(shard, &changed, now, &mut update);
        update
    }

    /// Adds the change of `ttl` for a shard that is `next` with its new limits.
    fn write_ttl(&self, seen: &Shard, next: &Shard, now: EpochMillis, update: &mut Update) {
        let is_older = self.limits.version.is_some() && self.limits.version < seen.config_version;
        let wish = match self.limits.is_own {
            _ if is_older => ttl::TtlWish::Same,
            true => ttl::TtlWish::Kept,
            false => ttl::TtlWish::Ends,
        };
        let (need, is_unbounded) = (
            |name: &LimitName| self.need(name),
            |name: &LimitName| self.is_soft(name),
        );
        let expires = self.leases.iter().map(|(_, lease)| lease.expires_at).max();
        ttl::Lowered {
            seen,
            next,
            need: &need,
            is_unbounded: &is_unbounded,
            expires,
            wish,
            now,
        }
        .write(update);
    }

    /// Requires that a take without a view leaves `ttl` late enough.
    fn check_ttl(&self, now: EpochMillis, update: &mut Update) {
        if self.key.shard > 0 {
            return;
        }
        let as_made = Shard::full(self.key.clone(), self.limits, now);
        let full = as_made
            .limits
            .values()
            .filter_map(|state| ttl::full_at(&as_made, state, -as_made.share(state), now));
        let expires = self.leases.iter().map(|(_, lease)| lease.expires_at);
        ttl::not_before(update, full.chain(expires).fold(now, EpochMillis::max));
        for (name, &need) in &self.soft_amounts {
            let rate = as_made
                .limits
                .get(name)
                .filter(|state| !state.rule.is_concurrent());
            let at_least = rate.map(|state| need - as_made.share(state));
            update.conditions.extend(
                at_least.map(|least| Condition::AtLeast(tokens(name), Value::Int(least.0))),
            );
        }
    }

    /// Returns the update of the configuration version.
    fn set_version(&self, shard: &Shard, now: EpochMillis) -> Option<AttributeUpdate> {
        let path = Path::of(attr::VERSION);
        match (self.limits.version, shard.config_version) {
            (None, None) => None,
            (None, Some(_)) => self
                .limits
                .overrule(shard, now)
                .then_some(AttributeUpdate::Remove(path)),
            (Some(ours), known) => {
                (known < Some(ours)).then_some(AttributeUpdate::Set(path, Value::Int(ours)))
            }
        }
    }

    /// Returns the amount taken of a limit.
    fn need(&self, limit: &LimitName) -> MilliTokens {
        self.amounts
            .get(limit)
            .or_else(|| self.soft_amounts.get(limit))
            .copied()
            .unwrap_or_default()
    }

    fn is_soft(&self, limit: &LimitName) -> bool {
        self.soft_amounts.contains_key(limit)
    }

    /// Returns a limit's rule and the shard's index, by the view or by the acquire's limits.
    fn rule(&self, view: Option<&Shard>, name: &LimitName) -> Option<(RefillRule, ShardIndex)> {
        let rule = match view {
            Some(shard) => shard.limits.get(name)?.rule,
            None => *self
                .limits
                .limits
                .iter()
                .find(|limit| limit.name() == name)?
                .rule(),
        };
        Some((rule, self.shard(view)))
    }

    /// Returns the index of the view; without a view, the shard as at its creation.
    fn shard(&self, view: Option<&Shard>) -> ShardIndex {
        view.map_or(ShardIndex::at_creation(self.key.shard), Shard::shard)
    }

    /// Returns the earliest `rf` that a take without a view accepts: refill since then is an eighth
    /// of the smallest share. A bucket in steady use passes; one that may have overflowed does not.
    fn assumed_refilled_at(&self, now: EpochMillis) -> EpochMillis {
        let rates = self
            .amounts
            .keys()
            .chain(self.soft_amounts.keys())
            .filter_map(|name| self.rule(None, name))
            .filter(|(rule, _)| !rule.is_concurrent());
        let eighth = |(rule, shard): (RefillRule, ShardIndex)| {
            ready_at(
                shard.share(rule.capacity) / 8,
                MilliTokens::ZERO,
                &rule,
                shard,
                now,
            )
        };
        rates
            .filter_map(eighth)
            .map(|at| Millis(-at.since(now).0))
            .max()
            .map_or(now, |back| now.plus(back))
    }

    /// Returns the write that creates the bucket, full except for this take, if it does not exist.
    #[must_use]
    pub fn create(&self, now: EpochMillis) -> Update {
        let mut shard = Shard::full(self.key.clone(), self.limits, now);
        for (limit, state) in &mut shard.limits {
            let need = self.need(limit);
            (state.available, state.consumed) = (state.available - need, need);
        }
        shard.write_units_left -= MilliTokens::from_tokens(1);
        (shard.hour, shard.acquires.total) = (self.roll.hour, self.acquires);
        shard.leases = Some(self.leases.iter().cloned().collect());
        shard.due_at = self.first_expiry();
        let expires = self.leases.iter().map(|(_, lease)| lease.expires_at).max();
        shard.ttl = (!self.limits.is_own).then(|| ttl::first(&shard, expires, now));
        shard.last_write_id = Some(self.write_id.clone());
        let conditions = vec![Condition::Absent(Path::of(attr::PK))];
        Update {
            key: self.key.item_key(),
            conditions,
            changes: item::write_bucket(&shard),
        }
    }

    fn update(&self, view: Option<&Shard>, units_credit: MilliTokens) -> Update {
        let mut changes = count_write(view, units_credit);
        changes.push(set_write_id(&self.write_id));
        changes.extend(
            self.request_split
                .then(|| AttributeUpdate::Set(Path::of(attr::HOT), Value::Bool(true))),
        );
        changes.push(AttributeUpdate::Add(
            Path::of(attr::TAKES),
            Value::Int(self.acquires),
        ));
        let differs =
            |op: &WriteId| Condition::Differs(Path::of(attr::OP), Value::text(op.as_str()));
        let mut conditions: Vec<_> = self.unconfirmed.iter().map(differs).collect();
        // All leases are written together, so checking one suffices.
        conditions.extend(
            self.leases
                .first()
                .map(|(id, _)| Condition::Absent(Path::lease(id))),
        );
        let mut update = Update {
            key: self.key.item_key(),
            conditions,
            changes,
        };
        self.roll.write(&mut update, view);
        update
    }

    fn first_expiry(&self) -> Option<EpochMillis> {
        self.leases.iter().map(|(_, lease)| lease.expires_at).min()
    }

    /// Adds the leases. Keeps `due` at or before the first expiry; a `due` that is early enough
    /// stays, so the index is not written.
    fn write_leases(&self, view: Option<&Shard>, update: &mut Update) {
        let Some(first) = self.first_expiry() else {
            return;
        };
        let map = Path::of(attr::LEASES);
        if view.is_some_and(|shard| shard.leases.is_none()) {
            update.conditions.push(Condition::Absent(map.clone()));
            update.changes.push(AttributeUpdate::Set(
                map,
                item::write_leases(&self.leases.iter().cloned().collect()),
            ));
        } else {
            update.conditions.push(Condition::Present(map));
            let set = |(id, lease): &(WriteId, Lease)| {
                AttributeUpdate::Set(Path::lease(id), item::write_lease(lease))
            };
            update.changes.extend(self.leases.iter().map(set));
        }
        super::due::not_after(update, self.key, view.and_then(|shard| shard.due_at), first);
    }
}

/// Removes the expired leases, if they were neither renewed nor adjusted since the view.
fn reclaim(update: &mut Update, shard: &Shard, now: EpochMillis) {
    for (id, lease) in shard.reclaimable(now) {
        let expiry = Path::lease(id).then(attr::LEASE_EXPIRY);
        update
            .conditions
            .push(Condition::Equals(expiry, Value::Int(lease.expires_at.0)));
        // An adjustment changes neither `rf` nor the expiry.
        if !lease.tokens.is_empty() {
            let held = Path::lease(id).then(attr::LEASE_TOKENS);
            update
                .conditions
                .push(Condition::Equals(held, item::write_held(lease)));
        }
        update
            .changes
            .push(AttributeUpdate::Remove(Path::lease(id)));
    }
}

fn add_consumed(name: &LimitName, amount: MilliTokens) -> Option<AttributeUpdate> {
    (amount != MilliTokens::ZERO).then(|| add_tokens(name, Field::Consumed, amount))
}

//! Taking from the refill since `rf`, and from expired leases.

use super::reclaim::reclaim;
use crate::math::refill_between;
use crate::write::changes::add_consumed;
use crate::write::conditions::{push_new, require_refilled_at};
use crate::write::credit::BalanceUpdate;
use crate::write::update::tokens;
use crate::write::{Condition, Take, Update, Value};
use crate::{Effect, EpochMillis, LeaseReturn, MilliTokens, Shard};

impl Take<'_> {
    /// Takes from refill since `rf` and from expired leases, without moving `rf`. `tk` is the
    /// balance at `rf`, so it may go below zero. Concurrent takes exclude each other only if the
    /// balance does not cover both.
    pub(super) fn take_refill(&self, shard: &Shard, now: EpochMillis) -> Update {
        let mut update = self.update(shard, now);
        require_refilled_at(shard)
            .into_iter()
            .for_each(|condition| push_new(&mut update, condition));
        reclaim(&mut update, shard, now);
        for (name, state) in &shard.limits {
            let need = self.need(name);
            let back = shard.lease_return(name, shard.reclaimable(now).map(|(_, lease)| lease));
            if state.rule.kind().has_window() {
                self.take_window(&mut update, shard, (name, state), back.available, now);
            } else if need != MilliTokens::ZERO || back != LeaseReturn::default() {
                let (rule, from) = ((&state.rule, shard.shard()), shard.refilled_at.max(now));
                let credit = BalanceUpdate {
                    refill: refill_between(&state.rule, shard.shard(), shard.refilled_at, now),
                    returned: back.available,
                    ceiling: shard.share(state),
                    taken: need,
                    least: (need > MilliTokens::ZERO && !self.is_into_debt(name))
                        .then(|| self.least_balance(name, rule, from, now)),
                    is_into_debt: self.is_into_debt(name),
                    moves_refilled_at: false,
                    assumes_headroom: self.assumes_headroom(shard, name, state),
                    headroom: self.headroom(shard, name, state),
                };
                credit.write(&mut update, name, state);
            }
            let consumed = add_consumed(name, self.consumption(name) - back.consumed);
            update.changes.extend(consumed);
        }
        let enforced = self.asks.with(Effect::Enforce);
        for (name, need) in enforced.filter(|(name, _)| !shard.limits.contains_key(*name)) {
            update.conditions.push(Condition::AtLeast(tokens(name), Value::Int(need.0)));
        }
        let next = self.begun(shard, now);
        self.write_leases(shard, &next.limits, &mut update);
        self.write_ttl(shard, &next, now, &mut update);
        update
    }
}

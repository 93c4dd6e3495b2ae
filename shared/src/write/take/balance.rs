//! Taking from the available balance, with a view or without.

use crate::attr::{self, Field};
use crate::limit::RefillRule;
use crate::math::{ShardIndex, ready_at, refill_between};
use crate::write::changes::{add_consumed, add_tokens};
use crate::write::conditions::{has_rule, push_new, require_shard_count};
use crate::write::update::tokens;
use crate::write::{Condition, Path, Take, Update, Value, ttl};
use crate::{EpochMillis, LimitName, MilliTokens, Millis, Shard};

impl Take<'_> {
    /// Returns `ADD tk −n, tc +n` for each limit. Requires `tk ≥ n`, and that the refill since
    /// `rf`, which is `floor` or later, fits above the balance.
    pub(super) fn take_balance(
        &self,
        view: Option<&Shard>,
        floor: EpochMillis,
        now: EpochMillis,
    ) -> Update {
        let mut update = self.update(view, MilliTokens::ZERO);
        // Neither condition holds for a shard that was deleted or merged away.
        push_new(&mut update, require_shard_count(self.shard(view)));
        update
            .conditions
            .push(Condition::Present(Path::of(attr::REFILLED_AT)));
        let mut is_rate = false;
        for (name, &need) in self.amounts.iter().chain(&self.soft_amounts) {
            update.conditions.push(match self.is_soft(name) {
                true => Condition::Present(tokens(name)),
                false => Condition::AtLeast(tokens(name), Value::Int(need.0)),
            });
            update.changes.push(add_tokens(name, Field::Tokens, -need));
            let consumed = add_tokens(name, Field::Consumed, self.consumption(name));
            update.changes.push(consumed);
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
            update.conditions.extend(has_rule(name, &rule));
        }
        self.count_only(&mut update);
        if is_rate {
            update.conditions.push(Condition::AtLeast(
                Path::of(attr::REFILLED_AT),
                Value::Int(floor.0),
            ));
        }
        self.write_leases(view, &mut update);
        match view {
            Some(shard) => self.write_ttl(shard, shard, now, &mut update),
            None => self.check_ttl(now, &mut update),
        }
        update
    }

    /// Counts the amounts of limits of which nothing is taken, whatever their balances are.
    fn count_only(&self, update: &mut Update) {
        for (name, &counted) in &self.counted_amounts {
            if self.amounts.contains_key(name) || self.is_soft(name) {
                continue;
            }
            update.conditions.push(Condition::Present(tokens(name)));
            update.changes.extend(add_consumed(name, counted));
        }
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
    pub(super) fn assumed_refilled_at(&self, now: EpochMillis) -> EpochMillis {
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
}

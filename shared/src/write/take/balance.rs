//! Taking from the available balance.

use crate::attr::{self, Field};
use crate::math::{MIN_BALANCE, refill_between};
use crate::write::changes::{add_consumed, add_tokens};
use crate::write::conditions::{has_rule, push_new, require_shard_count};
use crate::write::update::tokens;
use crate::write::{Condition, Path, Take, Update, Value};
use crate::{Effect, EpochMillis, LimitState, MilliTokens, Shard};

impl Take<'_> {
    /// Returns `ADD tk −n, tc +n` for each limit. Requires `tk ≥ n`, and that the refill since
    /// `rf`, which is that of the view or later, fits above the balance.
    pub(super) fn take_balance(&self, view: &Shard, now: EpochMillis) -> Update {
        let (shard, floor) = (view.shard(), view.refilled_at);
        let mut update = self.update(view, now);
        // Neither condition holds for a shard that was deleted or merged away.
        push_new(&mut update, require_shard_count(shard));
        update.conditions.push(Condition::Present(Path::of(attr::REFILLED_AT)));
        let mut is_rate = false;
        for ask in self.asks.debits() {
            let (name, need) = (&ask.limit, ask.amount);
            let state = view.limits.get(name);
            if let Some(state) = state.filter(|state| state.rule.kind().has_window()) {
                self.take_window(&mut update, view, (name, state), MilliTokens::ZERO, now);
                update.changes.extend(add_consumed(name, self.consumption(name)));
                continue;
            }
            let least = match (ask.effect.must_be_covered(), state) {
                (true, Some(state)) => {
                    // Refill from `now` on: another write may have credited what came before.
                    let from = floor.max(now);
                    self.least_balance(name, (&state.rule, shard), from, now)
                }
                (true, None) => need,
                (false, _) => MIN_BALANCE + need,
            };
            update.conditions.push(Condition::AtLeast(tokens(name), Value::Int(least.0)));
            update.changes.push(add_tokens(name, Field::Tokens, -need));
            let consumed = add_tokens(name, Field::Consumed, self.consumption(name));
            update.changes.push(consumed);
            let Some(LimitState { rule, .. }) = state.filter(|state| state.rule.kind().refills())
            else {
                continue;
            };
            is_rate = true;
            let top = shard.share(rule.capacity) - refill_between(rule, shard, floor, now);
            update.conditions.push(Condition::AtMost(tokens(name), Value::Int(top.0)));
            // A write that changed the rule has moved `rf`, which this take allows; so it requires
            // the rule itself.
            update.conditions.extend(has_rule(name, rule));
        }
        self.count_only(&mut update);
        if is_rate {
            update
                .conditions
                .push(Condition::AtLeast(Path::of(attr::REFILLED_AT), Value::Int(floor.0)));
        }
        self.write_leases(view, &view.limits, &mut update);
        self.write_ttl(view, view, now, &mut update);
        update
    }

    /// Counts the amounts of limits of which nothing is taken, whatever their balances are.
    fn count_only(&self, update: &mut Update) {
        for (name, counted) in self.asks.with(Effect::Count) {
            if self.asks.debit(name.as_str()).is_none() {
                update.changes.extend(add_consumed(name, counted));
            }
        }
    }
}

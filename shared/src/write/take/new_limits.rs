//! Taking with limits that overrule those of the shard, or that it lacks; and crediting refill before
//! it grows past 64 bits.

use super::reclaim::reclaim;
use super::window::change_window;
use crate::attr::{self, Field};
use crate::math::refill_between;
use crate::write::changes::{add_consumed, add_tokens, set_rule};
use crate::write::conditions::{push_new, require_refilled_at};
use crate::write::credit::BalanceUpdate;
use crate::write::update::tokens;
use crate::write::{AttributeUpdate, Condition, Path, Take, Update, Value};
use crate::{EpochMillis, LimitName, LimitState, LimitsVersion, MilliTokens, Millis, Shard, item};

impl Take<'_> {
    /// Writes the acquire's limits to the shard along with the take. Moves `rf`, so that all refill
    /// by the old rules is credited. Requires the `rf` of the view.
    pub(super) fn with_new_limits(&self, shard: &Shard, now: EpochMillis) -> Update {
        let mut update = self.update(shard, now);
        require_refilled_at(shard)
            .into_iter()
            .for_each(|condition| push_new(&mut update, condition));
        // Moves `rf` even within a millisecond, so that a write planned with the old rules fails.
        let rf = shard.refilled_at.plus(Millis(1)).max(now);
        update.changes.push(AttributeUpdate::Set(Path::of(attr::REFILLED_AT), Value::Int(rf.0)));
        if self.limits.overrule(shard, now) {
            let (ours, known) = (self.limits.version, shard.config_version);
            let number = |version: LimitsVersion| version.number;
            let since = |version: LimitsVersion| version.scaled_since().map(|at| at.0);
            for (name, ours, known) in [
                (attr::VERSION, ours.map(number), known.map(number)),
                (attr::BOUNDARY, ours.and_then(since), known.and_then(since)),
            ] {
                let path = Path::of(name);
                update.changes.extend(match ours {
                    Some(ours) => Some(AttributeUpdate::Set(path, Value::Int(ours))),
                    None => known.map(|_| AttributeUpdate::Remove(path)),
                });
            }
        }
        reclaim(&mut update, shard, now);
        let changed = self.changed(shard, now);
        let differs =
            |(name, state): (&LimitName, &LimitState)| changed.limits[name].rule != state.rule;
        let moved = shard.moved(self.limits, now);
        let is_ordered = self.limits.order_against(shard, now).is_some();
        if !is_ordered && shard.limits.iter().any(differs) {
            update.changes.push(AttributeUpdate::Set(Path::of(attr::RULE_AT), Value::Int(now.0)));
        }
        for (name, next) in &changed.limits {
            let (need, consumption) = (self.need(name), self.consumption(name));
            let Some(state) = shard.limits.get(name) else {
                let next = LimitState {
                    available: next.available - need,
                    consumed: next.consumed + consumption,
                    ..*next
                };
                update.conditions.push(Condition::Absent(tokens(name)));
                let mut changes: Vec<_> = item::write_limit(name, &next).collect();
                if shard.departed.contains_key(name) {
                    // The limit continues to count where it stopped.
                    changes.retain(|change| !matches!(change, AttributeUpdate::Set(at, _) if attr::counts_usage(&at.0[0])));
                    changes.push(add_tokens(name, Field::Consumed, consumption));
                }
                update.changes.extend(changes);
                continue;
            };
            let back = shard.lease_return(name, shard.reclaimable(now).map(|(_, lease)| lease));
            let consumed = add_consumed(name, consumption - back.consumed);
            let is_same = next.rule == state.rule;
            if is_same && state.rule.kind().has_window() {
                self.take_window(&mut update, shard, (name, state), back.available, now);
            } else if !self.replace_window(
                &mut update,
                shard,
                name,
                (state, next),
                back.available,
                now,
            ) {
                let (old, new) = (shard.share(state), shard.share(next));
                let refill = if state.rule.kind().is_held() {
                    new - old
                } else {
                    refill_between(&state.rule, shard.shard(), shard.refilled_at, now)
                };
                let least = self.least_balance(name, (&next.rule, shard.shard()), rf, now);
                // What moves between the pools of a limit is cut as it was, and then taken or added.
                // It may leave no more debt than was foreseen, because another pool could spend it.
                let zero = MilliTokens::ZERO;
                let foreseen = moved.get(name).map(|_| next.available.min(zero));
                let moved = moved.get(name).copied().unwrap_or_default();
                let covered = (need > zero && !self.is_into_debt(name)).then_some(least);
                let credit = BalanceUpdate {
                    returned: back.available,
                    taken: need - moved,
                    least: covered.max(foreseen).map(|least| least - moved),
                    is_into_debt: self.is_into_debt(name),
                    ..BalanceUpdate::credit(refill, old.min(new - moved))
                };
                credit.write(&mut update, name, state);
            }
            update.changes.extend(consumed);
            if !is_same {
                change_window(&mut update, name, state, next);
                update.changes.extend(set_rule(name, &next.rule));
            }
        }
        self.write_leases(shard, &changed.limits, &mut update);
        self.write_ttl(shard, &changed, now, &mut update);
        update
    }
}

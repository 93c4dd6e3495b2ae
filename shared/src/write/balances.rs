//! An operator's change of one shard's balances: set to an amount, or raised by one.

use std::collections::BTreeMap;

use super::conditions::has_rule;
use super::credit::BalanceUpdate;
use super::{
    AttributeUpdate, Condition, Path, Update, Value, add_tokens, count_write, require_limits,
    require_refilled_at, same_window, tokens, window_end,
};
use crate::attr::{self, Field};
use crate::math::refill_between;
use crate::{Calendar, EditId, EpochMillis, LimitKind, LimitName, LimitState, MilliTokens, Shard};

/// One shard's part of an operator's change of a balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BalanceChange {
    /// Sets the balance as of the view: what was taken since is debited from it.
    SetTo(MilliTokens),
    /// Raises the balance at the instant of the write: that of a rate at most to the shard's share,
    /// that of a quota until the end of its window.
    Raise(MilliTokens),
}

/// Credits all rates of `view` up to `now`, then makes the shard's part of the change `edit`:
/// changes the balances of `changes`. Consumption and acquires stay. A bucket with `ttl` loses it if
/// a balance is set below its share, because it is full later then; a take adds it again.
///
/// Requires that the shard has neither this change nor a later one, so it is made once. Requires the
/// view's `rf` too, and moves it. Takes since the view stay debited, so a change adds no more than what
/// it adds to the view. A quota whose window has ended begins the next one by `calendar`. Returns
/// `None` if a split is unfinished, because the escrow has tokens too; if a limit of `changes` is
/// missing or has slots, whose balance follows from leases; or if the calendar lacks a window.
#[must_use]
pub fn change_balances(
    view: &Shard,
    edit: EditId,
    changes: &BTreeMap<LimitName, BalanceChange>,
    calendar: Calendar,
    now: EpochMillis,
) -> Option<Update> {
    let can_set = |name: &LimitName| {
        let state = view.limits.get(name);
        state.is_some_and(|state| !state.rule.kind().is_held())
    };
    if view.escrow.is_some() || !changes.keys().all(can_set) {
        return None;
    }
    // Only refill goes by `rf`, which a clock that was ahead may have set.
    let (clock, now) = (now, now.max(EpochMillis(view.refilled_at.0.saturating_add(1))));
    let mut update = Update {
        key: view.key.item_key(),
        conditions: require_refilled_at(view).into(),
        changes: count_write(),
    };
    let id = Path::of(attr::EDIT);
    let is_earlier = Condition::AtMost(id.clone(), Value::Int(edit.0.saturating_sub(1)));
    let is_earlier = Condition::AbsentOr(id.clone(), Box::new(is_earlier));
    update.conditions.push(is_earlier);
    update.changes.extend([
        AttributeUpdate::Set(Path::of(attr::REFILLED_AT), Value::Int(now.0)),
        AttributeUpdate::Set(id, Value::Int(edit.0)),
    ]);
    // A window that begins may end after it.
    let needs_later = |(name, change): (&LimitName, &BalanceChange)| match change {
        _ if view.limits[name].has_ended(clock) => true,
        BalanceChange::SetTo(amount) => *amount < view.share(&view.limits[name]),
        BalanceChange::Raise(_) => false,
    };
    if view.ttl.is_some() && changes.iter().any(needs_later) {
        let ttl = Path::of(attr::TTL);
        update.changes.push(AttributeUpdate::Remove(ttl));
    }
    for (name, state) in &view.limits {
        let more = match changes.get(name) {
            Some(BalanceChange::SetTo(amount)) => {
                let by_clock = state.rule.kind().has_window();
                *amount - view.balance(state, if by_clock { clock } else { now })
            }
            Some(BalanceChange::Raise(amount)) => *amount,
            None => MilliTokens::ZERO,
        };
        match state.rule.kind() {
            LimitKind::Rate => {}
            LimitKind::Slots => continue,
            LimitKind::Quota => {
                if more != MilliTokens::ZERO {
                    change_window(&mut update, view, (name, state), more, calendar, clock)?;
                }
                continue;
            }
        }
        let (returned, taken) = (more.max(MilliTokens::ZERO), (-more).max(MilliTokens::ZERO));
        let refill = refill_between(&state.rule, view.shard(), view.refilled_at, now);
        let changed = BalanceUpdate {
            returned,
            taken,
            is_into_debt: taken > MilliTokens::ZERO,
            ..BalanceUpdate::credit(refill, view.share(state))
        };
        changed.write(&mut update, name, state);
    }
    require_limits(&mut update, view);
    Some(update)
}

/// Adds the change of a quota's balance in its window. Returns `None` if it would begin one that the
/// calendar lacks.
fn change_window(
    update: &mut Update,
    view: &Shard,
    (name, state): (&LimitName, &LimitState),
    more: MilliTokens,
    calendar: Calendar,
    now: EpochMillis,
) -> Option<()> {
    update.conditions.push(same_window(name, state));
    if !state.has_ended(now) {
        update.changes.push(add_tokens(name, Field::Tokens, more));
        return Some(());
    }
    let end = calendar.end_after(state.rule.window_code()?, now)?;
    update.conditions.extend(has_rule(name, &state.rule));
    let balance = view.share(state) + more;
    update.changes.extend([
        AttributeUpdate::Set(tokens(name), Value::Int(balance.0)),
        AttributeUpdate::Set(window_end(name), Value::Int(end.0)),
    ]);
    // A write of before is no longer the last one of this window.
    let forget = AttributeUpdate::Remove(Path::of(attr::LAST_WRITE_ID));
    if !update.changes.contains(&forget) {
        update.changes.push(forget);
    }
    Some(())
}

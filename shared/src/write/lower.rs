//! Lowering a balance to what a vendor has left.

use super::{
    AttributeUpdate, Condition, Path, Update, Value, count_write, require_limits,
    require_refilled_at, tokens,
};
use crate::attr;
use crate::math::refill_between;
use crate::{EpochMillis, LimitKind, LimitName, MilliTokens, Shard};

/// Lowers the balance of a rate at `now` to `most`, whatever was taken since the view; nothing counts as
/// consumed. Requires that it is above. Returns `None` if it is not in the view, or for another kind. A
/// bucket with `ttl` loses it, because it is full later then; a take adds it again.
#[must_use]
pub fn lower_balance(
    view: &Shard,
    limit: &LimitName,
    most: MilliTokens,
    now: EpochMillis,
) -> Option<Update> {
    let state = view.limits.get(limit)?;
    if state.rule.kind() != LimitKind::Rate || view.balance(state, now) <= most {
        return None;
    }
    // The balance is `tk` plus this refill.
    let refill = refill_between(&state.rule, view.shard(), view.refilled_at, now);
    let most = most - refill;
    let mut update = Update {
        key: view.key.item_key(),
        conditions: require_refilled_at(view).into(),
        changes: count_write(),
    };
    let above = Value::Int(most.0.saturating_add(1));
    update.conditions.push(Condition::AtLeast(tokens(limit), above));
    update.changes.push(AttributeUpdate::Set(tokens(limit), Value::Int(most.0)));
    if view.ttl.is_some() {
        update.changes.push(AttributeUpdate::Remove(Path::of(attr::TTL)));
    }
    require_limits(&mut update, view);
    Some(update)
}

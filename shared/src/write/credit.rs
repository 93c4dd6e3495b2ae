//! One limit's part of a write that requires a known `rf`: exact for any balance the limit may have
//! by then.

use super::{AttributeUpdate, Condition, Update, Value, add_tokens, tokens};
use crate::attr::Field;
use crate::math::MIN_BALANCE;
use crate::{LimitName, LimitState, MilliTokens};

/// The change of one limit's balance.
///
/// The balance is `tk` plus the refill since `rf`, cut at the ceiling. An expression cannot compute
/// that minimum, so the write assumes one case and requires it: below the ceiling it adds; at the
/// ceiling, or below it by no more than the headroom, it sets. Either way, takes and returns since the view do not matter.
pub(super) struct BalanceUpdate {
    /// Refill since `rf`; for slots, the change of their number.
    pub(super) refill: MilliTokens,
    /// Tokens that expired leases return.
    pub(super) returned: MilliTokens,
    /// Maximum balance.
    pub(super) ceiling: MilliTokens,
    /// Amount taken; negative if other pools of the limit give more than that.
    pub(super) taken: MilliTokens,
    /// Least balance that it is taken from, if it must be covered: less than the amount if acquires
    /// queue, more if they leave something. Not the amount if it is taken even into debt.
    pub(super) least: Option<MilliTokens>,
    /// Whether the amount is taken even into debt, which has an end too.
    pub(super) is_into_debt: bool,
    /// Whether the write moves `rf`, so that it must credit the refill.
    pub(super) moves_refilled_at: bool,
    /// Whether to assume that the balance is below the ceiling, because the view is stale.
    pub(super) assumes_headroom: bool,
    /// Headroom left below the ceiling if the balance is cut.
    pub(super) headroom: MilliTokens,
}

impl BalanceUpdate {
    /// Returns the credit of the refill since `rf`, which the write moves.
    pub(super) const fn credit(refill: MilliTokens, ceiling: MilliTokens) -> Self {
        Self {
            refill,
            returned: MilliTokens::ZERO,
            ceiling,
            taken: MilliTokens::ZERO,
            least: None,
            is_into_debt: false,
            moves_refilled_at: true,
            assumes_headroom: false,
            headroom: MilliTokens::ZERO,
        }
    }

    /// Adds the change of the limit, seen as `state`, to `update`.
    pub(super) fn write(&self, update: &mut Update, name: &LimitName, state: &LimitState) {
        let gained = self.refill + self.returned;
        let credited = if self.moves_refilled_at { gained } else { self.returned };
        if self.is_into_debt {
            let least = MIN_BALANCE + (self.taken - credited);
            update.conditions.push(Condition::AtLeast(tokens(name), Value::Int(least.0)));
        }
        let is_cut = !state.rule.kind().is_held() && state.available + gained > self.ceiling;
        let room = self.least.map_or(self.headroom, |least| self.ceiling - least);
        if is_cut && room >= MilliTokens::ZERO && !self.assumes_headroom {
            let slack = self.headroom.min(room).max(MilliTokens::ZERO);
            let full =
                if self.moves_refilled_at { self.ceiling } else { self.ceiling - self.refill }
                    - slack;
            // What the cut leaves may be missing before it.
            let at_least = self.ceiling - gained - slack;
            update.conditions.push(Condition::AtLeast(tokens(name), Value::Int(at_least.0)));
            update
                .changes
                .push(AttributeUpdate::Set(tokens(name), Value::Int((full - self.taken).0)));
            return;
        }
        if let Some(least) = self.least {
            update
                .conditions
                .push(Condition::AtLeast(tokens(name), Value::Int((least - gained).0)));
        }
        if !state.rule.kind().is_held() {
            let at_most = self.ceiling - gained;
            update.conditions.push(Condition::AtMost(tokens(name), Value::Int(at_most.0)));
        }
        if credited != self.taken {
            update.changes.push(add_tokens(name, Field::Tokens, credited - self.taken));
        }
    }
}

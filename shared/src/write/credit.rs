//! One limit's part of a write that knows `rf`: exact for any balance the limit may have by now.

use super::{AttributeUpdate, Condition, Update, Value, add_tokens, tokens};
use crate::attr::Field;
use crate::{LimitName, LimitState, MilliTokens};

/// What becomes of one limit's balance.
///
/// The balance now is `tk` and what flowed in since `rf`, cut at the ceiling. Which of the two it
/// is cannot be said in an expression, so the write says which one it takes for granted: below the
/// ceiling it adds, at the ceiling it sets. Either way it does not matter what others took or gave
/// back since the limit was seen.
pub(super) struct BalanceUpdate {
    /// What flowed in since `rf`; of slots, how many more there are.
    pub(super) refill: MilliTokens,
    /// What expired leases give back.
    pub(super) returned: MilliTokens,
    /// What the balance is cut at.
    pub(super) ceiling: MilliTokens,
    /// What is taken.
    pub(super) taken: MilliTokens,
    /// Taken also if it is not there.
    pub(super) is_soft: bool,
    /// Whether the write moves `rf`, so that what flowed in must be credited for good.
    pub(super) moves_refilled_at: bool,
    /// Takes for granted that the balance is below the ceiling, whatever was seen a while ago.
    pub(super) assumes_headroom: bool,
    /// What is left free below the ceiling where the balance is cut.
    pub(super) headroom: MilliTokens,
}

impl BalanceUpdate {
    /// Adds to `update` what becomes of the limit, seen as `state`.
    pub(super) fn write(&self, update: &mut Update, name: &LimitName, state: &LimitState) {
        let gained = self.refill + self.returned;
        let credited = if self.moves_refilled_at {
            gained
        } else {
            self.returned
        };
        let is_cut = !state.rule.is_concurrent() && state.available + gained > self.ceiling;
        if is_cut && (self.taken <= self.ceiling || self.is_soft) && !self.assumes_headroom {
            let slack = self
                .headroom
                .min(self.ceiling - self.taken)
                .max(MilliTokens::ZERO);
            let full = if self.moves_refilled_at {
                self.ceiling
            } else {
                self.ceiling - self.refill
            } - slack;
            let at_least = self.ceiling - gained;
            update
                .conditions
                .push(Condition::AtLeast(tokens(name), Value::Int(at_least.0)));
            update.changes.push(AttributeUpdate::Set(
                tokens(name),
                Value::Int((full - self.taken).0),
            ));
            return;
        }
        if self.taken > MilliTokens::ZERO && !self.is_soft {
            update.conditions.push(Condition::AtLeast(
                tokens(name),
                Value::Int((self.taken - gained).0),
            ));
        }
        if !state.rule.is_concurrent() {
            let at_most = self.ceiling - gained;
            update
                .conditions
                .push(Condition::AtMost(tokens(name), Value::Int(at_most.0)));
        }
        if credited != self.taken {
            update
                .changes
                .push(add_tokens(name, Field::Tokens, credited - self.taken));
        }
    }
}

//! The attributes of one limit of a shard.

use super::error::ItemError;
use crate::attr::Field;
use crate::limit::RefillRule;
use crate::{Bases, Counter, LimitState, MilliTokens};

/// The attributes of one limit, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct LimitFields {
    fields: [Option<i64>; Field::ALL.len()],
}

impl LimitFields {
    pub(super) fn set(&mut self, field: Field, number: i64) {
        self.fields[field.index()] = Some(number);
    }

    fn number(&self, name: &str, field: Field) -> Result<i64, ItemError> {
        self.fields[field.index()].ok_or_else(|| {
            ItemError::missing(&format!("b_{name}_{}", field.suffix()), "a whole number")
        })
    }

    pub(super) fn state(&self, name: &str) -> Result<LimitState, ItemError> {
        let number = |field| self.number(name, field);
        let rule = RefillRule {
            capacity: MilliTokens(number(Field::Capacity)?),
            refill_amount: MilliTokens(number(Field::RefillAmount)?),
            refill_period_ms: number(Field::RefillPeriod)?,
        };
        if rule.refill_period_ms < 1 || rule.refill_amount.0 < 0 || rule.capacity.0 < 0 {
            let value = format!("{rule:?}");
            return Err(ItemError {
                attribute: format!("b_{name}_rp"),
                value,
                takes: "a period of at least 1 ms and no negative amounts",
            });
        }
        let Counter { total, bases } = self.counter(name)?;
        Ok(LimitState {
            available: MilliTokens(number(Field::Tokens)?),
            consumed: MilliTokens(total),
            bases,
            rule,
        })
    }

    /// Returns whether this is a current limit of the shard. A shard that was merged away and
    /// created again may have usage counters of others.
    pub(super) fn is_held(&self) -> bool {
        [Field::Tokens, Field::Capacity]
            .iter()
            .any(|field| self.fields[field.index()].is_some())
    }

    pub(super) fn counter(&self, name: &str) -> Result<Counter, ItemError> {
        let number = |field| self.number(name, field);
        let bases = Bases {
            hour: number(Field::HourBase)?,
            day: number(Field::DayBase)?,
        };
        Ok(Counter {
            total: number(Field::Consumed)?,
            bases,
        })
    }
}

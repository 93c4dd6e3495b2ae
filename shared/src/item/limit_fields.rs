//! The attributes of one limit of a shard.

use super::attribute::Attr;
use super::error::ItemError;
use super::parse::{count, integer};
use crate::attr::Field;
use crate::{
    Bases, Counter, EpochMillis, LimitKind, LimitState, MilliTokens, MilliTotal, RefillRule,
};

/// The attributes of one limit, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct LimitFields {
    amounts: [Option<i64>; Field::ALL.len()],
    counts: [Option<i128>; Field::ALL.len()],
}

impl LimitFields {
    /// Reads the attribute `name`, which is this field.
    pub(super) fn read(
        &mut self,
        field: Field,
        name: &str,
        value: &Attr<'_>,
    ) -> Result<(), ItemError> {
        let at = field.index();
        if field.is_count() {
            self.counts[at] = Some(count(name, value)?);
        } else {
            self.amounts[at] = Some(integer(name, value)?);
        }
        Ok(())
    }

    /// Starts the counters of a new half.
    pub(super) fn begin(&mut self) {
        for field in Field::ALL.into_iter().filter(|field| field.is_count()) {
            self.counts[field.index()] = Some(0);
        }
    }

    pub(super) fn state(&self, name: &str) -> Result<LimitState, ItemError> {
        let number = |field| found(&self.amounts, name, field);
        let rule = RefillRule {
            capacity: MilliTokens(number(Field::Capacity)?),
            refill_amount: MilliTokens(number(Field::RefillAmount)?),
            refill_period_ms: number(Field::RefillPeriod)?,
        };
        let window_end = match rule.kind() {
            LimitKind::Rate | LimitKind::Slots => 0,
            LimitKind::Quota => number(Field::WindowEnd)?,
        };
        let is_period = rule.refill_period_ms >= 1 || rule.kind() == LimitKind::Quota;
        if !is_period || rule.refill_amount.0 < 0 || rule.capacity.0 < 0 {
            let value = format!("{rule:?}");
            return Err(ItemError {
                attribute: format!("b_{name}_rp"),
                value,
                takes: "a period of at least 1 ms, or the code of a quota's window; and no negative amounts",
            });
        }
        let Counter { total, bases } = self.counter(name)?;
        Ok(LimitState {
            available: MilliTokens(number(Field::Tokens)?),
            consumed: MilliTotal(total),
            bases,
            rule,
            window_end: EpochMillis(window_end),
        })
    }

    /// Returns whether this is a current limit of the shard. A shard that was merged away and
    /// created again may have usage counters of others.
    pub(super) fn is_held(&self) -> bool {
        [Field::Tokens, Field::Capacity].iter().any(|field| self.amounts[field.index()].is_some())
    }

    pub(super) fn counter(&self, name: &str) -> Result<Counter, ItemError> {
        let number = |field| found(&self.counts, name, field);
        let bases = Bases { hour: number(Field::HourBase)?, day: number(Field::DayBase)? };
        Ok(Counter { total: number(Field::Consumed)?, bases })
    }
}

fn found<T: Copy>(
    numbers: &[Option<T>; Field::ALL.len()],
    name: &str,
    field: Field,
) -> Result<T, ItemError> {
    numbers[field.index()].ok_or_else(|| {
        ItemError::missing(&format!("b_{name}_{}", field.suffix()), "a whole number")
    })
}

//! Taking for waiters of which some queue, and take from refill that comes within their waits, or leave
//! something to others.

use crate::math::refill_between;
use crate::write::Take;
use crate::{Asks, EpochMillis, LimitMode, LimitName, MilliTokens, Millis, RefillRule, ShardIndex};

/// Place of one acquire among those of its write.
#[derive(Debug, Clone)]
pub struct Place {
    /// What is taken for it; part of the asks of the [`Take`].
    pub asks: Asks,
    /// Longest wait until it starts, from when the write is planned; zero if it does not queue.
    pub wait: Millis,
}

impl Take<'_> {
    /// Returns the least balance of a rate at `from`, from which all acquires start in time and leave
    /// what they must: the amount taken, less refill that comes within their waits.
    ///
    /// An acquire starts once its amount and those before it are repaid. A debt and the amount
    /// behind it are together at most the shard's share, so what starts at an instant is too. A
    /// larger amount does not queue, and neither does one of a limit in shadow mode, which delays
    /// nothing.
    pub(super) fn least_balance(
        &self,
        name: &LimitName,
        (rule, shard): (&RefillRule, ShardIndex),
        from: EpochMillis,
        now: EpochMillis,
    ) -> MilliTokens {
        let limit = self.limits.limits.iter().find(|limit| limit.name() == name);
        let is_enforced = limit.is_none_or(|limit| limit.mode() == LimitMode::Enforced);
        if self.line.is_empty() {
            return self.need(name);
        }
        let (share, mut taken) = (shard.share(rule.capacity), MilliTokens::ZERO);
        let asked = self.line.iter().filter_map(|place| {
            let amount = place.asks.enforced(name.as_str())?;
            taken += amount;
            let until = now.plus(place.wait);
            let refill = refill_between(rule, shard, from, until).min(share);
            let least = taken + place.asks.floor(name.as_str(), shard);
            let queues = amount <= share && is_enforced;
            Some(if queues { least - refill } else { least })
        });
        asked.max().unwrap_or_else(|| self.need(name))
    }
}

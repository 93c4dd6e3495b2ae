//! A bucket as the page shows it, and its rates.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use weirgate::{
    EntityId, EpochMillis, LimitStatus, MilliTotal, Resource, StoredBucket, Unreadable, Usage,
};

/// Time between the two reads of which the difference is a rate, at least.
const RATE_OVER: Duration = Duration::from_secs(2);
/// A balance counts as changed if it differs from what the page computes by more than the refill of
/// this time: a read and its answer take as long.
const INEXACT_MS: i128 = 250;

/// Which bucket.
pub(crate) type Key = (EntityId, Resource);

/// A bucket as the page shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) entity: EntityId,
    pub(crate) resource: Resource,
    pub(crate) shards: u32,
    pub(crate) leases: usize,
    /// Granted acquires, in thousandths a second; `None` until two reads are known.
    pub(crate) granted: Option<i128>,
    /// When it was read, epoch ms.
    pub(crate) at: i64,
    pub(crate) limits: Vec<RowLimit>,
    /// Why the bucket cannot be read; `None` if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// A limit as the page shows it; amounts are in millitokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RowLimit {
    pub(crate) name: String,
    pub(crate) available: i64,
    pub(crate) capacity: i64,
    pub(crate) refill: i64,
    pub(crate) period_ms: i64,
    /// Net consumption a second; `None` until two reads are known.
    pub(crate) used: Option<i128>,
}

impl RowLimit {
    fn of(status: &LimitStatus) -> Self {
        Self {
            name: status.limit.clone(),
            available: status.available.0,
            capacity: status.capacity.0,
            refill: status.refill_amount.0,
            period_ms: i64::try_from(status.refill_period.as_millis()).unwrap_or(i64::MAX),
            used: None,
        }
    }

    /// Returns whether the page shows this limit differently from `shown`, which it refills itself.
    fn differs(&self, shown: &Self, elapsed_ms: i64) -> bool {
        let refill = |ms: i128| i128::from(shown.refill) * ms / i128::from(shown.period_ms.max(1));
        let capacity = i128::from(shown.capacity);
        let balance = i128::from(shown.available);
        let computed = (balance + refill(elapsed_ms.into())).min(capacity.max(balance));
        let difference = (computed - i128::from(self.available)).abs();
        difference > refill(INEXACT_MS).max(2)
            || Self {
                available: 0,
                ..self.clone()
            } != Self {
                available: 0,
                ..shown.clone()
            }
    }
}

impl Row {
    /// Returns the row of a bucket that cannot be read; `None` if the item is no bucket's.
    pub(crate) fn unreadable(item: Unreadable, at: EpochMillis) -> Option<Self> {
        Some(Self {
            entity: item.entity?,
            resource: item.resource?,
            shards: 0,
            leases: 0,
            granted: None,
            at: at.0,
            limits: vec![],
            error: Some(item.error),
        })
    }

    pub(crate) fn key(&self) -> Key {
        (self.entity.clone(), self.resource.clone())
    }

    /// Returns whether the page shows this row differently from `shown`.
    pub(crate) fn differs(&self, shown: &Self) -> bool {
        let elapsed_ms = self.at.saturating_sub(shown.at);
        (self.shards, self.leases, self.granted) != (shown.shards, shown.leases, shown.granted)
            || self.error != shown.error
            || self.limits.len() != shown.limits.len()
            || self
                .limits
                .iter()
                .zip(&shown.limits)
                .any(|(limit, shown)| limit.differs(shown, elapsed_ms))
    }
}

/// What two reads of a bucket tell about its rates.
#[derive(Debug)]
pub(crate) struct Rates {
    since: Instant,
    base: Usage,
    /// What was counted a second, in thousandths of an acquire and millitokens.
    rate: Option<Usage>,
}

impl Rates {
    pub(crate) const fn new(now: Instant, base: Usage) -> Self {
        Self {
            since: now,
            base,
            rate: None,
        }
    }

    /// Compares a read with the one before. Counts that fell, by a merge or an expiry, begin again.
    pub(crate) fn read(&mut self, now: Instant, counted: &Usage) {
        let elapsed = now.saturating_duration_since(self.since);
        let has_fallen = counted.acquires < self.base.acquires;
        if elapsed < RATE_OVER && !has_fallen {
            return;
        }
        let ms = i128::try_from(elapsed.as_millis())
            .unwrap_or(i128::MAX)
            .max(1);
        let per_second = |amount: i128, base: i128, scale: i128| {
            amount.saturating_sub(base).saturating_mul(scale * 1000) / ms
        };
        self.rate = (!has_fallen).then(|| {
            let base = |name| self.base.tokens.get(name).copied().unwrap_or_default();
            let tokens = counted.tokens.iter().map(|(name, amount)| {
                let rate = per_second(amount.0, base(name).0, 1);
                (name.clone(), MilliTotal(rate))
            });
            Usage {
                tokens: tokens.collect(),
                acquires: per_second(counted.acquires, self.base.acquires, 1000),
            }
        });
        (self.since, self.base) = (now, counted.clone());
    }

    /// Returns the row of a bucket that was read at `at`.
    pub(crate) fn row(&self, bucket: StoredBucket, at: EpochMillis) -> Row {
        let limits = bucket.limits.iter().map(|status| {
            let used = self.rate.as_ref().and_then(|rate| {
                let mut tokens = rate.tokens.iter();
                let (_, amount) = tokens.find(|(name, _)| name.as_str() == status.limit)?;
                Some(amount.0)
            });
            RowLimit {
                used,
                ..RowLimit::of(status)
            }
        });
        Row {
            limits: limits.collect(),
            shards: bucket.shards,
            leases: bucket.leases,
            granted: self.rate.as_ref().map(|rate| rate.acquires),
            at: at.0,
            entity: bucket.entity,
            resource: bucket.resource,
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(available: i64, at: i64) -> Row {
        Row {
            entity: EntityId::new("user-1").unwrap(),
            resource: Resource::new("gpt-4").unwrap(),
            shards: 1,
            leases: 0,
            granted: None,
            at,
            limits: vec![RowLimit {
                name: "rpm".to_owned(),
                available,
                capacity: 60_000,
                refill: 60_000,
                period_ms: 60_000,
                used: None,
            }],
            error: None,
        }
    }

    #[test]
    fn a_row_that_only_refilled_is_not_sent_again() {
        let shown = row(10_000, 0);
        assert!(!row(15_000, 5_000).differs(&shown), "refilled");
        assert!(!row(60_000, 500_000).differs(&shown), "refilled and cut");
        assert!(!row(15_200, 5_000).differs(&shown), "read a little later");
        assert!(row(14_000, 5_000).differs(&shown), "a token was taken");
        assert!(row(16_000, 5_000).differs(&shown), "a token was returned");
        let leased = Row {
            leases: 1,
            ..row(15_000, 5_000)
        };
        assert!(leased.differs(&shown));
    }

    #[test]
    fn a_rate_is_what_was_counted_between_two_reads_and_unknown_after_counts_fell() {
        let start = Instant::now();
        let second = |count| start + Duration::from_secs(count);
        let counted = |acquires, tokens| Usage {
            acquires,
            tokens: [("rpm".try_into().unwrap(), MilliTotal(tokens))].into(),
        };
        let mut rates = Rates::new(start, counted(100, 5_000));
        rates.read(second(1), &counted(150, 6_000));
        assert_eq!(rates.rate, None, "too soon");
        rates.read(second(4), &counted(300, 13_000));
        assert_eq!(rates.rate, Some(counted(50_000, 2_000)));
        rates.read(second(5), &counted(7, 70));
        assert_eq!(rates.rate, None, "merged");
    }
}

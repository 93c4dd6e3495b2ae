//! A bucket as the page shows it.

use serde::Serialize;
use weirgate::{EntityId, EpochMillis, LimitStatus, PlanName, Resource, StoredBucket, Unreadable};

use super::history::OVER_MS;
use super::levels::Levels;
use crate::why::{Saturation, Used, resets};

/// A balance counts as changed if it differs from what the page computes by more than the refill of
/// this time: a read and its answer take as long.
const INEXACT_MS: i128 = 250;

/// The time of rates counts as changed if it differs from what the page computes by more than this.
const INEXACT_OVER_MS: i64 = 5_000;

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
    /// Time over which rates and saturations are, which ends with the read; `None` until two reads
    /// are known.
    pub(crate) over_ms: Option<i64>,
    /// When it was read, epoch ms.
    pub(crate) at: i64,
    pub(crate) limits: Vec<RowLimit>,
    /// When its pause ends, epoch ms; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paused_until: Option<i64>,
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
    /// When the window of a quota ends, as people read it; `None` for other limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resets: Option<String>,
    /// Net consumption a second; `None` until two reads are known.
    pub(crate) used: Option<i128>,
    /// [Saturation] in percent; `None` if it is unknown.
    pub(crate) saturation: Option<i64>,
    /// The kind of the level that the limit comes from, or `caller` if it is not the table's; `None`
    /// if not all levels are read.
    pub(crate) from: Option<&'static str>,
}

impl RowLimit {
    fn of(status: &LimitStatus, used: Option<&Used>, from: Option<&'static str>) -> Self {
        let per_second = used.map(|used| {
            let mut tokens = used.usage.tokens.iter();
            let known = tokens.find(|(name, _)| name.as_str() == status.limit);
            per_second(known.map_or(0, |(_, amount)| amount.0), used.over_ms)
        });
        let saturation = Saturation::of(status, used);
        Self {
            name: status.limit.clone(),
            available: status.available.0,
            capacity: status.capacity.0,
            refill: status.refill_amount.0,
            period_ms: i64::try_from(status.refill_period.as_millis()).unwrap_or(i64::MAX),
            resets: resets(status),
            used: per_second,
            saturation: saturation.map(|known| known.percent),
            from,
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
            || Self { available: 0, ..self.clone() } != Self { available: 0, ..shown.clone() }
    }
}

impl Row {
    /// Returns the row of a bucket that was read at `at`, and `used` so much in the minute before.
    pub(crate) fn of(
        bucket: StoredBucket,
        used: Option<&Used>,
        (levels, plan): (&Levels, Option<&PlanName>),
        at: EpochMillis,
    ) -> Self {
        let paused_for = bucket.limits.iter().find_map(|status| status.paused_for);
        let limits = bucket.limits.iter();
        let limits = limits.map(|status| RowLimit::of(status, used, levels.source(status, plan)));
        Self {
            limits: limits.collect(),
            shards: bucket.shards,
            leases: bucket.leases,
            granted: used
                .map(|used| per_second(used.usage.acquires.saturating_mul(1_000), used.over_ms)),
            over_ms: used.map(|used| used.over_ms),
            at: at.0,
            entity: bucket.entity,
            resource: bucket.resource,
            paused_until: paused_for.map(|left| at.plus(left.into()).0),
            error: None,
        }
    }

    /// Returns the row of a bucket that cannot be read; `None` if the item is no bucket's.
    pub(crate) fn unreadable(item: Unreadable, at: EpochMillis) -> Option<Self> {
        Some(Self {
            entity: item.entity?,
            resource: item.resource?,
            shards: 0,
            leases: 0,
            granted: None,
            over_ms: None,
            at: at.0,
            limits: vec![],
            paused_until: None,
            error: Some(item.error),
        })
    }

    pub(crate) fn key(&self) -> Key {
        (self.entity.clone(), self.resource.clone())
    }

    /// Returns whether the pause ends at another instant than the shown one.
    fn is_paused_otherwise(&self, shown: &Self) -> bool {
        match (self.paused_until, shown.paused_until) {
            (Some(until), Some(shown)) => i128::from(until.abs_diff(shown)) > INEXACT_MS,
            // The page knows when a pause is over.
            (None, Some(until)) => self.at < until,
            (until, None) => until.is_some(),
        }
    }

    /// Returns whether the time of rates differs from that of `shown`, which the page extends to a minute
    /// itself.
    fn is_over_otherwise(&self, shown: &Self) -> bool {
        match (self.over_ms, shown.over_ms) {
            (Some(over), Some(shown_over)) => {
                let elapsed_ms = self.at.saturating_sub(shown.at);
                let computed = (shown_over + elapsed_ms).min(shown_over.max(OVER_MS));
                (over - computed).abs() > INEXACT_OVER_MS
            }
            (over, shown) => over != shown,
        }
    }

    /// Returns whether the page shows this row differently from `shown`.
    pub(crate) fn differs(&self, shown: &Self) -> bool {
        let elapsed_ms = self.at.saturating_sub(shown.at);
        (self.shards, self.leases, self.granted) != (shown.shards, shown.leases, shown.granted)
            || self.error != shown.error
            || self.is_paused_otherwise(shown)
            || self.is_over_otherwise(shown)
            || self.limits.len() != shown.limits.len()
            || self
                .limits
                .iter()
                .zip(&shown.limits)
                .any(|(limit, shown)| limit.differs(shown, elapsed_ms))
    }
}

/// Returns an amount of a span as one of a second.
fn per_second(amount: i128, over_ms: i64) -> i128 {
    amount.saturating_mul(1_000) / i128::from(over_ms.max(1))
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
            over_ms: None,
            at,
            limits: vec![RowLimit {
                name: "rpm".to_owned(),
                available,
                capacity: 60_000,
                refill: 60_000,
                period_ms: 60_000,
                resets: None,
                used: None,
                saturation: None,
                from: None,
            }],
            paused_until: None,
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
        let leased = Row { leases: 1, ..row(15_000, 5_000) };
        assert!(leased.differs(&shown));
        let mut known = row(15_000, 5_000);
        known.limits[0].from = Some("system");
        assert!(known.differs(&shown), "its level is known");
    }

    #[test]
    fn the_time_of_rates_is_sent_again_where_the_page_computes_another_one() {
        let over = |over_ms, at| Row { over_ms, ..row(60_000, at) };
        let shown = over(Some(2_000), 0);
        for (read, is_sent) in [
            (over(Some(12_000), 10_000), false),
            (over(Some(10_000), 10_000), false),
            (over(Some(60_000), 3_600_000), false),
            (over(Some(2_000), 60_000), true),
            (over(Some(400_000), 400_000), true),
            (over(None, 1_000), true),
        ] {
            assert_eq!(read.differs(&shown), is_sent, "{read:?}");
        }
        let slow = over(Some(400_000), 0);
        assert!(!over(Some(400_000), 400_000).differs(&slow));
        assert!(shown.differs(&over(None, 0)));
    }

    #[test]
    fn a_row_is_sent_again_when_its_pause_begins_moves_or_ends_early() {
        let paused = |until, at| Row { paused_until: until, ..row(60_000, at) };
        let shown = paused(Some(20_000), 0);
        for (read, is_sent) in [
            (paused(Some(20_000), 1_000), false),
            (paused(Some(20_100), 1_000), false),
            (paused(Some(21_000), 1_000), true),
            (paused(Some(19_000), 1_000), true),
            (paused(None, 1_000), true),
            (paused(None, 20_000), false),
        ] {
            assert_eq!(read.differs(&shown), is_sent, "{read:?}");
        }
        assert!(shown.differs(&paused(None, 0)));
        assert!(!paused(None, 0).differs(&paused(None, 0)));
    }
}

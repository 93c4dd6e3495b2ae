//! Pauses of a bucket: for some time nothing is granted, whatever the balances are.

use crate::quota::fnv1a;
use crate::{BucketKey, EpochMillis, Millis};

/// The longest pause that a vendor can ask for, 1 h.
const LONGEST_REPORTED: Millis = Millis(3_600_000);
/// The first pause without a retry-after, 1 s.
const FIRST: Millis = Millis(1_000);
/// The longest pause without a retry-after, 60 s.
const LONGEST_DOUBLED: Millis = Millis(60_000);
/// What a pause must end later than the known one to be written, 1 s. So a storm of equal reports costs
/// one write.
const WORTH: Millis = Millis(1_000);

/// A pause of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Nothing is granted before.
    pub until: EpochMillis,
    /// Its length, without what spreads its end, which the next one doubles; zero if its end was named, by
    /// the vendor or an operator.
    pub lasts: Millis,
}

impl Pause {
    /// Returns the pause that an operator ordered.
    #[must_use]
    pub const fn ordered(until: EpochMillis) -> Self {
        let lasts = Millis(0);
        Self { until, lasts }
    }

    /// Returns the pause of a shard that a vendor's answer asks for; `None` if the known one ends as
    /// late.
    ///
    /// `retry_after` counts up to 1 h. Without it, the pause is 1 s, and twice as long as the last such
    /// one if that ended less than its own length ago: then it was too short. It is 60 s at most, and a pause
    /// that goes on is not prolonged. The end is later by up to 5 %, a different part for each bucket, so
    /// that not all callers of a vendor come back at one instant; equal reports have equal ends, in all shards.
    #[must_use]
    pub fn reported(
        key: &BucketKey,
        known: Option<Self>,
        retry_after: Option<Millis>,
        now: EpochMillis,
    ) -> Option<Self> {
        let (asked, lasts) = match (retry_after, known) {
            (Some(asked), _) if asked > Millis(0) => (asked.min(LONGEST_REPORTED), Millis(0)),
            (_, Some(known)) if now < known.until => return None,
            (_, Some(known)) if now.since(known.until) < known.lasts => {
                let doubled = Millis(known.lasts.0.saturating_mul(2));
                let next = doubled.clamp(FIRST, LONGEST_DOUBLED);
                (next, next)
            }
            _ => (FIRST, FIRST),
        };
        let part = i64::from(fnv1a(&key.with_shard(0).item_key().pk));
        let spread = asked.0 / 20 * part / i64::from(u32::MAX);
        let until = now.plus(Millis(asked.0 + spread));
        let is_later = |known: Self| until >= known.until.plus(WORTH);
        known.is_none_or(is_later).then_some(Self { until, lasts })
    }

    /// Returns the one of two pauses that ends later.
    #[must_use]
    pub fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).max_by_key(|pause| pause.until)
    }
}

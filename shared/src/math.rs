//! Bucket math: credit, share and retry-after, in integers, products in `i128`.

use crate::limit::RefillRule;
use crate::{EpochMillis, MilliTokens};

/// The most shards of a bucket: the largest power of two of which one transaction, of 100 items,
/// can take a part each.
pub const MAX_SHARDS: u32 = 64;

/// One of the `count` shards of a bucket; shard 0 of 1 is a whole bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShardIndex {
    /// Which shard, from 0.
    pub index: u32,
    /// How many there are, at least 1 and more than `index`.
    pub count: u32,
}

impl ShardIndex {
    /// The only shard of a bucket that was never split.
    pub const UNSPLIT: Self = Self { index: 0, count: 1 };

    /// This shard's part of `whole`: `x/n + (1 if i < x mod n)`. The parts of all shards add up to
    /// `whole`.
    #[must_use]
    pub fn share(self, whole: MilliTokens) -> MilliTokens {
        MilliTokens(narrow(self.share_wide(i128::from(whole.0))))
    }

    /// The halves this shard splits into: itself, with the larger share, and its sibling. Their
    /// shares add up to its own.
    #[must_use]
    pub const fn halves(self) -> (Self, Self) {
        let count = self.count.saturating_mul(2);
        (
            Self {
                index: self.index,
                count,
            },
            Self {
                index: self.index.saturating_add(self.count),
                count,
            },
        )
    }

    /// The shard that this one and its sibling are halves of; `None` for a whole bucket.
    #[must_use]
    pub const fn parent(self) -> Option<Self> {
        let count = self.count / 2;
        if count == 0 {
            None
        } else {
            Some(Self {
                index: self.index % count,
                count,
            })
        }
    }

    /// What the shard `index` was when it was split off, which is the largest it can be.
    #[must_use]
    pub const fn at_creation(index: u32) -> Self {
        // No splits make one of a number past half of all numbers, but a key can have it.
        let count = match index.saturating_add(1).checked_next_power_of_two() {
            Some(count) => count,
            None => u32::MAX,
        };
        Self { index, count }
    }

    fn share_wide(self, whole: i128) -> i128 {
        let (index, count) = (i128::from(self.index), i128::from(self.count.max(1)));
        whole.div_euclid(count) + i128::from(index < whole.rem_euclid(count))
    }
}

/// What flows into a shard from `from` to `to`: the shard's part of `⌊to·A/P⌋` less its part of
/// `⌊from·A/P⌋`.
///
/// It telescopes: cutting an interval into pieces never changes the total, and the parts of all
/// shards add up to the credit of the whole bucket. Zero if `to` is not after `from`, and for
/// concurrency limits.
#[must_use]
pub fn refill_between(
    rule: &RefillRule,
    shard: ShardIndex,
    from: EpochMillis,
    to: EpochMillis,
) -> MilliTokens {
    if to <= from {
        return MilliTokens::ZERO;
    }
    let flowed = |at: EpochMillis| {
        let product = i128::from(at.0) * i128::from(rule.refill_amount.0);
        shard.share_wide(product.div_euclid(i128::from(rule.refill_period_ms)))
    };
    MilliTokens(narrow(flowed(to) - flowed(from)))
}

/// What a balance is at `now`: with its credit since `rf`, never above the shard's share of the
/// capacity.
#[must_use]
pub fn refilled(
    tk: MilliTokens,
    rule: &RefillRule,
    shard: ShardIndex,
    rf: EpochMillis,
    now: EpochMillis,
) -> MilliTokens {
    (tk + refill_between(rule, shard, rf, now)).min(shard.share(rule.capacity))
}

/// The first instant at which a balance `tk`, credited up to `rf`, holds `need`: the least `t ≥ rf`
/// with `tk + credit(rf, t) ≥ need`.
///
/// Exact: one millisecond earlier is too early. `None` if time alone never brings it: a concurrency
/// limit, or a `need` above the shard's share.
#[must_use]
pub fn ready_at(
    need: MilliTokens,
    tk: MilliTokens,
    rule: &RefillRule,
    shard: ShardIndex,
    rf: EpochMillis,
) -> Option<EpochMillis> {
    if tk >= need {
        return Some(rf);
    }
    if rule.is_concurrent() || need > shard.share(rule.capacity) {
        return None;
    }
    let (amount, period) = (
        i128::from(rule.refill_amount.0),
        i128::from(rule.refill_period_ms),
    );
    let at_rf = (i128::from(rf.0) * amount).div_euclid(period);
    // The shard's part must reach `part`, so the whole flow must reach `whole`, the least x whose
    // share is `part`.
    let part = shard.share_wide(at_rf) + i128::from(need.0) - i128::from(tk.0);
    // Debts and periods that no limit can have saturate: such an instant is past `i64` in any case.
    let whole = (part - 1)
        .saturating_mul(i128::from(shard.count.max(1)))
        .saturating_add(i128::from(shard.index) + 1);
    // The least t with ⌊t·A/P⌋ ≥ whole is ⌈whole·P/A⌉.
    let ready = -((-whole.saturating_mul(period)).div_euclid(amount));
    Some(EpochMillis(narrow(ready)).max(rf))
}

/// Saturates: an instant or an amount past `i64` is as far as it can be.
fn narrow(wide: i128) -> i64 {
    i64::try_from(wide).unwrap_or(if wide < 0 { i64::MIN } else { i64::MAX })
}

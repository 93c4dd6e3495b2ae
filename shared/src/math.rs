//! Bucket math: refill, share and retry-after in integers, with products in `i128`.

use crate::limit::{LimitKind, RefillRule};
use crate::{EpochMillis, MilliTokens};

/// Maximum number of shards of a bucket: the largest power of two for which one transaction, of 100
/// items, can take from every shard.
pub const MAX_SHARDS: u32 = 64;

/// Minimum balance: no take or adjustment leads deeper into debt. Refill since `rf` is credited
/// before it passes 2^60, so a balance and its refill stay within 64 bits.
pub const MIN_BALANCE: MilliTokens = MilliTokens(-(1 << 62));
/// Refill since `rf` from which on a take moves `rf`: a quarter of the distance to `i64::MAX`
/// that [`MIN_BALANCE`] leaves.
pub(crate) const MAX_UNCREDITED: MilliTokens = MilliTokens(1 << 60);

/// One of the `count` shards of a bucket; shard 0 of 1 is an unsplit bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShardIndex {
    /// Index of the shard, from 0.
    pub index: u32,
    /// Number of shards, at least 1 and above `index`.
    pub count: u32,
}

impl ShardIndex {
    /// The only shard of a bucket that was never split.
    pub const UNSPLIT: Self = Self { index: 0, count: 1 };

    /// Returns this shard's share of `whole`: `x/n + (1 if i < x mod n)`. The shares of all shards
    /// add up to `whole`.
    #[must_use]
    pub fn share(self, whole: MilliTokens) -> MilliTokens {
        MilliTokens(narrow(self.share_wide(i128::from(whole.0))))
    }

    /// Returns the halves of this shard: itself, with the larger share, and its sibling. Their
    /// shares add up to its own.
    #[must_use]
    pub const fn halves(self) -> (Self, Self) {
        let count = self.count.saturating_mul(2);
        (
            Self { index: self.index, count },
            Self { index: self.index.saturating_add(self.count), count },
        )
    }

    /// Returns the shard that this one and its sibling are halves of; `None` for an unsplit bucket.
    #[must_use]
    pub const fn parent(self) -> Option<Self> {
        let count = self.count / 2;
        if count == 0 { None } else { Some(Self { index: self.index % count, count }) }
    }

    /// Returns the shard `index` as it was created by a split, when its share is largest.
    #[must_use]
    pub const fn at_creation(index: u32) -> Self {
        // No splits create an index in the upper half of `u32`, but a key can contain one.
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

/// Returns a shard's refill from `from` to `to`: its share of `⌊to·A/P⌋` less its share of
/// `⌊from·A/P⌋`.
///
/// The sum telescopes: cutting an interval into pieces never changes the total, and the shares of
/// all shards add up to the refill of the bucket. Returns zero if `to` is not after `from`, and for
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

/// Returns the balance at `now`: `tk` and the refill since `rf`, cut at the shard's share of the
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

/// Returns the first instant at which a balance `tk`, refilled up to `rf`, covers `need`: the least
/// `t ≥ rf` with `tk + refill_between(rf, t) ≥ need`.
///
/// Exact: one millisecond earlier, the balance is too low. Returns `None` if refill alone never
/// suffices: for a concurrency limit, or a `need` above the shard's share.
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
    match rule.kind() {
        LimitKind::Rate if need <= shard.share(rule.capacity) => {}
        LimitKind::Rate | LimitKind::Slots | LimitKind::Quota => return None,
    }
    let (amount, period) = (i128::from(rule.refill_amount.0), i128::from(rule.refill_period_ms));
    let at_rf = (i128::from(rf.0) * amount).div_euclid(period);
    // The shard's share must reach `part`, so the bucket's refill since 1970 must reach `whole`,
    // the least x whose share is `part`.
    let part = shard.share_wide(at_rf) + i128::from(need.0) - i128::from(tk.0);
    // Debts and periods outside every limit's range saturate: such an instant is past `i64` anyway.
    let whole = (part - 1)
        .saturating_mul(i128::from(shard.count.max(1)))
        .saturating_add(i128::from(shard.index) + 1);
    // The least t with ⌊t·A/P⌋ ≥ whole is ⌈whole·P/A⌉.
    let ready = -((-whole.saturating_mul(period)).div_euclid(amount));
    Some(EpochMillis(narrow(ready)).max(rf))
}

/// Converts to `i64`, and saturates.
fn narrow(wide: i128) -> i64 {
    i64::try_from(wide).unwrap_or(if wide < 0 { i64::MIN } else { i64::MAX })
}

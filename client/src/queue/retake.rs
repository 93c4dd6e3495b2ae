//! Takes that were planned by a clock that was behind, as their answers showed.

use weirgate_shared::{EpochMillis, LimitName, LimitState, MilliTokens, Shard};

use super::Amounts;
use crate::hold::Hold;
use crate::inner::Inner;
use crate::stats::count;

/// Whether such a take, of `needs` and with the bucket as it was after it, took what had flowed
/// over by then.
pub(super) fn took_overflow(amounts: &Amounts, after: &Shard, now: EpochMillis) -> bool {
    let before = |state: &LimitState, need: &MilliTokens| LimitState {
        available: state.available + *need,
        ..*state
    };
    amounts.iter().any(|(name, need)| {
        after
            .limits
            .get(name)
            .is_some_and(|state| after.is_full(&before(state, need), now))
    })
}

/// Takes back what one caller was to be granted, to be taken again. What was there goes back; for
/// what had flowed over nothing does, and it counts as taken.
pub(super) async fn undo_take(
    inner: &Inner,
    hold: Hold,
    amounts: &Amounts,
    after: &Shard,
    spilled: bool,
) {
    let has_lease = hold.lease().is_some();
    let ended = if spilled {
        hold.release().await
    } else {
        hold.roll_back().await
    };
    let stays = match &ended {
        Ok(_) => spilled,
        // An unknown outcome without a lease has been counted where it was met.
        Err(error) => has_lease || !error.is_unknown(),
    };
    let is_rate = |name: &LimitName| {
        after
            .limits
            .get(name)
            .is_some_and(|state| !state.rule.is_concurrent())
    };
    let rate: MilliTokens = amounts
        .iter()
        .filter(|(name, _)| is_rate(name))
        .map(|(_, need)| *need)
        .sum();
    let milli = if stays {
        u64::try_from(rate.0).unwrap_or_default()
    } else {
        0
    };
    count(&inner.counters.unconfirmed_millitokens, milli);
    let bucket = after.key.item_key().pk;
    tracing::warn!(
        bucket,
        milli,
        ?ended,
        "a take by a clock that was off is made again; so much stays taken"
    );
}

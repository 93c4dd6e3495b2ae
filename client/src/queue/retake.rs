//! Takes that were planned by a slow clock, as their responses showed.

use weirgate_shared::{Asks, Effect, EpochMillis, LimitName, LimitState, MilliTokens, Shard};

use super::part::Ending;
use super::taken::Taken;
use crate::session::Session;
use crate::values::count;

/// Returns whether such a take of these amounts, which left the shard as `after`, took overflow.
pub(super) fn took_overflow(asks: &Asks, after: &Shard, now: EpochMillis) -> bool {
    let before = |state: &LimitState, need: MilliTokens| LimitState {
        available: state.available + need,
        ..*state
    };
    asks.with(Effect::Enforce).any(|(name, need)| {
        after
            .limits
            .get(name)
            .is_some_and(|state| after.is_full(&before(state, need), now))
    })
}

/// Undoes the take of one waiter, so that it can be made again. Available tokens are rolled back.
/// Tokens that were overflow do not return, and count as consumed.
pub(super) async fn undo_take(
    session: &Session,
    taken: Taken,
    asks: &Asks,
    after: &Shard,
    spilled: bool,
) {
    let has_lease = taken.expires_at().is_some();
    let ending = if spilled {
        Ending::Release
    } else {
        Ending::RollBack
    };
    let ended = taken.end(ending).await;
    let stays = match &ended {
        Ok(_) => spilled,
        // An unconfirmed return without a lease was already counted where it failed.
        Err(error) => has_lease || !error.is_unknown(),
    };
    let is_rate = |name: &LimitName| {
        after
            .limits
            .get(name)
            .is_some_and(|state| !state.rule.is_concurrent())
    };
    let rate: MilliTokens = asks
        .with(Effect::Enforce)
        .filter(|(name, _)| is_rate(name))
        .map(|(_, need)| need)
        .sum();
    let milli = if stays {
        u64::try_from(rate.0).unwrap_or_default()
    } else {
        0
    };
    count(&session.counters.unconfirmed_millitokens, milli);
    let bucket = after.key.item_key().pk;
    tracing::warn!(
        bucket,
        milli,
        ?ended,
        "take by a slow clock repeated; these tokens stay taken"
    );
}

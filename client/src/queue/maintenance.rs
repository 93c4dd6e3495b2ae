//! Writes that take nothing but let waiters be served. They bring changed limits to a shard that is
//! short by its old ones, and return more expired leases than one take can.

use weirgate_shared::write::{Take, Update, expire};
use weirgate_shared::{EpochMillis, Shard};
use weirgate_store::WriteOutcome;

use super::shard_state::ShardState;
use super::waiter::Waiter;
use crate::session::Session;

/// Writes so that `first`, for which `shard` is short, may fit. Returns whether the view is new.
///
/// A failure fails no waiter: the usual write or denial follows.
pub(super) async fn maintain(
    session: &Session,
    state: &ShardState,
    shard: &Shard,
    first: &Waiter,
    now: EpochMillis,
) -> bool {
    let Some(update) = plan(session, state, shard, first, now) else {
        return false;
    };
    let sent = session.ages.sent();
    match session.update(&update).await {
        Ok(WriteOutcome::Applied(Some(item)) | WriteOutcome::ConditionFailed(Some(item))) => item
            .bucket()
            .map(|shard| state.record_response(shard, sent))
            .is_ok(),
        Ok(WriteOutcome::ConditionFailed(None)) => {
            state.clear_view();
            true
        }
        Ok(WriteOutcome::Applied(None)) => false,
        Err(error) => {
            tracing::debug!(%error, "maintenance write failed");
            false
        }
    }
}

fn plan(
    session: &Session,
    state: &ShardState,
    shard: &Shard,
    first: &Waiter,
    now: EpochMillis,
) -> Option<Update> {
    if shard.has_unreclaimable(now) {
        return expire(shard, now).map(|(update, _)| update);
    }
    if shard.matches_rules(&first.request.limits, now) {
        return None;
    }
    let op = weirgate_store::random_id();
    let nothing = Take {
        roll: state.roll(session, now),
        unconfirmed: std::slice::from_ref(&op),
        ..Take::nothing(&state.key, &first.request.limits, op.clone(), now)
    };
    Some(nothing.plan(shard, now))
}

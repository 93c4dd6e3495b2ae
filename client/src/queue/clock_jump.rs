//! Takes planned on a view from before the wall clock jumped ahead. Usually the process was frozen,
//! and the view is still valid. If the clock was set instead, the response shows it, and the take's
//! wrong changes are corrected.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{Condition, LimitDelta, Path, Roll, Take, Update, Value};
use weirgate_shared::{EpochMillis, LimitState, MilliTokens, Shard, attr, refill_between};

use super::settle::SettleAttempt;
use super::shard_state::ShardState;
use crate::session::Session;
use crate::values::{Amounts, Limits};

/// Returns whether a take on such a view can be corrected if the clock turns out to be ahead: it
/// brings no limits, credits no refill, begins no hour, and ends no leases.
pub(super) fn is_safe(seen: &Shard, limits: &Limits, roll: Roll, now: EpochMillis) -> bool {
    seen.matches_rules(limits, now)
        && !seen.must_credit(now)
        && seen.hour == roll.hour
        && seen.expired(now).next().is_none()
}

/// Requires that the shard has not changed since the view, unless the take needs no refill and so
/// does not depend on the time.
pub(super) fn require_unchanged(
    update: &mut Update,
    take: &Take<'_>,
    seen: &Shard,
    now: EpochMillis,
) {
    if !take.is_covered(seen, now) {
        update.conditions.push(Condition::Equals(
            Path::of(attr::WRITE_SEQ),
            Value::Int(seen.write_seq),
        ));
    }
}

/// Restores the tokens that a take of `amounts` cut, because a fast clock made the shard look full.
/// Returns whether the shard had all that was taken.
pub(super) async fn restore_cut(
    session: &Session,
    state: &Arc<ShardState>,
    (seen, after): (&Shard, &Shard),
    amounts: &Amounts,
) -> bool {
    let (back, was_there) = cut(seen, after, amounts, session.now());
    if back.is_empty() {
        return was_there;
    }
    let amount = |(limit, tk): (&_, &_)| {
        let ceiling = after.limits.get(limit).map(|state| after.share(state));
        (
            weirgate_shared::LimitName::clone(limit),
            LimitDelta {
                available: *tk,
                consumed: MilliTokens::ZERO,
                ceiling,
            },
        )
    };
    let settling = SettleAttempt {
        session,
        state: Arc::clone(state),
        write_id: weirgate_store::random_id(),
        lease: None,
        amounts: back.iter().map(amount).collect(),
        acquires: 0,
        held_amounts: &Amounts::new(),
    };
    if let Err(error) = settling.run().await {
        let bucket = state.key.item_key().pk;
        tracing::warn!(%error, bucket, "tokens that a fast clock cut could not be restored");
    }
    was_there
}

/// Returns the tokens that a take of `amounts` cut too much, and whether the shard had what it took
/// at `now`.
fn cut(seen: &Shard, after: &Shard, amounts: &Amounts, now: EpochMillis) -> (Amounts, bool) {
    let (mut back, mut was_there) = (BTreeMap::new(), true);
    // Only the very next write shows the balance before the take.
    let is_next = after.write_seq == seen.write_seq + 1;
    for (name, need) in amounts {
        let (Some(old), Some(new)) = (seen.limits.get(name), after.limits.get(name)) else {
            continue;
        };
        if new.rule.is_concurrent() {
            continue;
        }
        let before = if is_next {
            seen.balance(old, now) - refill_between(&old.rule, seen.shard(), seen.refilled_at, now)
        } else {
            new.available + *need
        };
        was_there &= after.balance(
            &LimitState {
                available: before,
                ..*new
            },
            now,
        ) >= *need;
        let too_much = before - *need - new.available;
        if too_much > MilliTokens::ZERO {
            back.insert(name.clone(), too_much);
        }
    }
    (back, was_there)
}

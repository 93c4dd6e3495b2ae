//! Copies usage to a snapshot.

use weirgate_shared::Snapshot;
use weirgate_shared::write::UsageCopy;
use weirgate_store::{RetryPolicy, ReturnValues, Table, WriteOutcome};

use super::effect::Effect;
use super::failure::FailureReason;

/// Maximum number of plans for a copy. The first assumes no copy or one of the same life; the
/// second has read the snapshot. A further one means that two functions copy different lives of a
/// shard concurrently.
const COPY_TRIES: usize = 4;

/// Runs one copy, unless the snapshot has a newer one. `retry` must allow a second time.
///
/// # Errors
/// [`FailureReason`] if the copy failed or is unconfirmed; it can be repeated.
pub async fn run_copy(
    table: &Table,
    copy: &UsageCopy,
    retry: RetryPolicy,
) -> Result<Effect, FailureReason> {
    let (mut update, mut is_after_gap) = (copy.first(), false);
    for _ in 0..COPY_TRIES {
        let WriteOutcome::ConditionFailed(item) =
            table.update_with(&update, ReturnValues::None, retry).await?
        else {
            return Ok(match is_after_gap {
                true => Effect::CopiedAfterGap,
                false => Effect::Copied,
            });
        };
        let unreadable = |error| FailureReason::Snapshot { key: copy.key.item_key(), error };
        let seen = item
            .map_or_else(|| Ok(Snapshot::default()), |item| item.snapshot())
            .map_err(unreadable)?;
        match copy.after(&seen) {
            Some(_) if !copy.fits(&seen) => {
                table.update_with(&copy.unfit(), ReturnValues::None, retry).await?;
                return Err(FailureReason::Full { key: copy.key.item_key() });
            }
            Some(next) => (update, is_after_gap) = (next, copy.is_after_gap(&seen)),
            None => return Ok(Effect::Superseded),
        }
    }
    Err(FailureReason::Races(COPY_TRIES))
}

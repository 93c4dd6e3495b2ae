//! Pausing a bucket as its vendor asked: one conditional write for each shard.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use weirgate_shared::write::pause_reported;
use weirgate_shared::{EpochMillis, Pause};
use weirgate_store::WriteOutcome;

use super::state::BucketState;
use crate::queue::ShardState;
use crate::session::{Session, decode_shard};
use crate::values::Error;

/// Writes of a report to one shard at most, 3: another report came in between each time.
const MAX_WRITES: usize = 3;

impl BucketState {
    /// Pauses all shards as far as they are not paused as long. Returns the last end of their pauses;
    /// `None` if the bucket has no item.
    pub(crate) async fn pause(
        &self,
        session: &Session,
        retry_after: Option<Duration>,
    ) -> Result<Option<EpochMillis>, Error> {
        // Of many answers at once one is written; the others then know its pause.
        let _one = self.pausing.lock().await;
        let (mut done, mut last) = (0, None);
        // A response shows the number of shards.
        loop {
            let count = self.summary().max_shards_seen();
            let shards = (done..count).map(|shard| self.shard(shard));
            let pauses = shards.map(|shard| pause_shard(session, shard, retry_after));
            let ends = try_join_all(pauses).await?;
            last = ends.into_iter().flatten().chain(last).max();
            done = count;
            if last.is_none() || self.summary().max_shards_seen() <= done {
                return Ok(last);
            }
        }
    }
}

/// Pauses one shard. Returns the end of its pause; `None` if it has no item.
async fn pause_shard(
    session: &Session,
    shard: Arc<ShardState>,
    retry_after: Option<Duration>,
) -> Result<Option<EpochMillis>, Error> {
    let mut known = shard.view().and_then(|view| view.shard.pause);
    for _ in 0..MAX_WRITES {
        let (now, asked) = (session.now(), retry_after.map(Into::into));
        let Some(pause) = Pause::reported(&shard.key, known, asked, now) else {
            break;
        };
        let sent = session.env.ages.sent();
        let update = pause_reported(&shard.key, pause);
        let item = match session.update_idempotent(&update).await? {
            WriteOutcome::Applied(item) | WriteOutcome::ConditionFailed(item) => item,
        };
        let Some(item) = item else {
            return Ok(None);
        };
        known = shard.record_response(decode_shard(&item)?, sent).pause;
    }
    Ok(known.map(|pause| pause.until))
}

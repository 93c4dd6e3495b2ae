//! Splits that another process has begun and not finished.

use weirgate_shared::write::finish_writes;
use weirgate_shared::{Bucket, EpochMillis, Shard};
use weirgate_store::{StoreError, WriteOutcome};

use super::state::BucketState;
use crate::session::Session;
use crate::values::Limits;

/// Writes the new half of `parent`, if its split is unfinished. Returns whether this process ended
/// the split.
pub(super) async fn finish_split(session: &Session, parent: &Shard) -> Result<bool, StoreError> {
    let mut is_ended = false;
    for update in finish_writes(parent).into_iter().flatten() {
        // Either this write or an earlier one created the half, so only the last outcome matters.
        let outcome = session.update_idempotent(&update).await?;
        is_ended = matches!(outcome, WriteOutcome::Applied(_));
    }
    Ok(is_ended)
}

impl BucketState {
    /// Finishes the splits of `parents`.
    pub(super) async fn finish(
        &self,
        session: &Session,
        parents: &[Shard],
    ) -> Result<(), StoreError> {
        for parent in parents {
            finish_split(session, parent).await?;
        }
        Ok(())
    }

    /// Returns all viewed shards with the request's limits at `now`, and the halves in escrow.
    /// Tokens in escrow count, though they cannot be taken yet.
    pub(super) fn seen_with_escrows(&self, limits: &Limits, now: EpochMillis) -> Bucket {
        let bucket = self.cached_bucket(limits, now);
        let is_made = |half: &Shard| {
            self.shard(half.key.shard)
                .view()
                .is_some_and(|view| view.shard.write_seq >= half.write_seq)
        };
        let halves = bucket
            .shards()
            .iter()
            .filter_map(|shard| shard.escrow.as_deref())
            .filter(|half| !is_made(half));
        let halves: Vec<_> = halves.map(|half| half.projected(limits, now)).collect();
        let is_older = |shard: &&Shard| halves.iter().all(|half| half.key != shard.key);
        let shards = bucket
            .shards()
            .iter()
            .filter(is_older)
            .cloned()
            .collect::<Vec<_>>();
        Bucket::new([shards, halves].concat())
    }
}

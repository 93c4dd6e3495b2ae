//! Splits that another process has begun and not finished.

use weirgate_shared::write::finish;
use weirgate_shared::{Bucket, EpochMillis, Whole};
use weirgate_store::StoreError;

use super::Shards;
use crate::inner::Inner;
use crate::limits::Limits;

/// Makes the new half of `parent`, if its split is not finished.
pub(super) async fn finish_split(inner: &Inner, parent: &Bucket) -> Result<(), StoreError> {
    for update in finish(parent).into_iter().flatten() {
        // Whether the write is made now or was made before does not matter.
        inner.update_again(&update).await?;
    }
    Ok(())
}

impl Shards {
    /// Finishes the splits of `parents`.
    pub(super) async fn finish(&self, inner: &Inner, parents: &[Bucket]) -> Result<(), StoreError> {
        for parent in parents {
            finish_split(inner, parent).await?;
        }
        Ok(())
    }

    /// All shards that were seen, with the callers' own limits at `now`, and halves that are yet to
    /// be made: nothing can be taken of those yet, but it is there.
    pub(super) fn seen_with_escrows(&self, limits: &Limits, now: EpochMillis) -> Whole {
        let whole = self.seen(limits, now, |_| true);
        let is_made = |half: &Bucket| {
            self.line(half.key.shard)
                .view()
                .is_some_and(|view| view.bucket.v >= half.v)
        };
        let halves = whole
            .shards()
            .iter()
            .filter_map(|shard| shard.escrow.as_deref())
            .filter(|half| !is_made(half));
        let halves: Vec<_> = halves.map(|half| half.advanced(limits, now)).collect();
        let is_older = |shard: &&Bucket| halves.iter().all(|half| half.key != shard.key);
        let shards = whole
            .shards()
            .iter()
            .filter(is_older)
            .cloned()
            .collect::<Vec<_>>();
        Whole::new([shards, halves].concat())
    }
}

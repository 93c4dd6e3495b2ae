//! Runs what a review says about the shards of one bucket, and reviews them anew when somebody else was faster.

use futures_util::stream::{self, StreamExt};
use weirgate_shared::{Bucket, BucketKey, ItemKey, MAX_SHARDS, WriteId};
use weirgate_store::{Retry, StoreError, Transacted};

use crate::execute::{Done, settle};
use crate::plan::plan_look;
use crate::review::{Change, Depth, Review, review};
use crate::tree::tree;
use crate::{Run, Summary, WRITES, read};

/// How often the shards of one bucket are read and planned for. Whoever loses this often is still due.
const ROUNDS: usize = 3;

/// What became of some transactions.
#[derive(Default)]
struct Made {
    shards: usize,
    /// Somebody else was faster with one of them.
    lost: bool,
    /// One failed, or there was no time for it.
    failed: bool,
}

impl Run<'_> {
    /// Reviews all shards of the bucket whose first one is `first`. What cannot be done is still due.
    pub(crate) async fn reshape(self, first: &BucketKey, summary: &mut Summary) {
        let keys: Vec<_> = (0..MAX_SHARDS).map(|shard| first.with_shard(shard).item_key()).collect();
        for round in 1..=ROUNDS {
            let Some((shards, is_all)) = self.shards(&keys, summary).await else { return };
            let depth = if round == 1 { Depth::All } else { Depth::Pairs };
            let Review { repairs, merges, looks } = review(&shards, is_all, depth, self.now, new_id);
            let repaired = self.transact(repairs, summary).await;
            summary.repaired(repaired.shards);
            let merged = self.transact(merges, summary).await;
            summary.merged(merged.shards);
            let is_lost = repaired.lost || merged.lost;
            if is_lost && round < ROUNDS && !repaired.failed && !merged.failed {
                continue;
            }
            if is_lost {
                summary.lost_race();
            }
            self.look(looks, summary).await;
            return;
        }
    }

    /// All shards that are there and can be read, and whether these are all that are there.
    async fn shards(self, keys: &[ItemKey], summary: &mut Summary) -> Option<(Vec<Bucket>, bool)> {
        match self.deadline.bound(self.table.read(keys)).await {
            Some(Ok(items)) => {
                let shards: Vec<_> = items.iter().filter_map(read::bucket).collect();
                let is_all = shards.len() == items.len();
                if is_all && tree(&shards).is_none() {
                    let (bucket, shards) = (&keys[0].pk, items.len());
                    tracing::warn!(bucket, shards, "no splits make such shards; they are neither merged nor mended");
                }
                Some((shards, is_all))
            }
            Some(Err(error)) => {
                summary.left(1, Some(error));
                None
            }
            None => {
                summary.left(1, None);
                None
            }
        }
    }

    async fn transact(self, changes: Vec<Change>, summary: &mut Summary) -> Made {
        let run = async |Change { actions, shards }: Change| {
            // Its own token for each: the same actions are never sent under another one.
            let token = new_id();
            let sent = self.table.transact_with(&actions, &token, Retry::Unknown);
            (shards, self.deadline.bound(sent).await)
        };
        let mut made = Made::default();
        let mut all = stream::iter(changes).map(run).buffer_unordered(WRITES);
        while let Some((shards, done)) = all.next().await {
            match done {
                Some(Ok(Transacted::Applied)) => made.shards += shards,
                Some(Ok(Transacted::LostRace(_))) => made.lost = true,
                failed => {
                    summary.left(1, failed.and_then(Result::err));
                    made.failed = true;
                }
            }
        }
        made
    }

    async fn look(self, shards: Vec<&Bucket>, summary: &mut Summary) {
        let look = async |shard: &Bucket| -> Option<Result<Done, StoreError>> {
            let look = settle(self.table, shard.clone(), |image| plan_look(image, self.now));
            self.deadline.bound(look).await
        };
        let mut all = stream::iter(shards).map(look).buffer_unordered(WRITES);
        while let Some(done) = all.next().await {
            summary.bucket(done);
        }
    }
}

fn new_id() -> WriteId {
    weirgate_store::random_id()
}

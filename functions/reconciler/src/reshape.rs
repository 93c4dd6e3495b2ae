//! Runs what a review says about the shards of one bucket, and reviews them anew when somebody else
//! was faster.

use futures_util::stream::{self, StreamExt};
use tokio::sync::MutexGuard;
use weirgate_shared::write::finish_writes;
use weirgate_shared::{BucketKey, ItemKey, MAX_SHARDS, Shard, WriteId};
use weirgate_store::{ErrorKind, ReadWithin, RetryPolicy, ReturnValues, TransactOutcome};

use crate::plan::plan_look;
use crate::review::{Change, Depth, Review, review};
use crate::tree::tree;
use crate::{Run, Summary, WRITES, read};

/// How often the shards of one bucket are read and planned for. Whoever loses this often is still
/// due.
const ROUNDS: usize = 3;
/// Text of the shards of one bucket, in bytes, past which the others are not read: the bucket is
/// neither merged nor mended.
const LARGE_BUCKET: u64 = 4 * 1024 * 1024;

/// What became of some transactions.
#[derive(Default)]
struct Made {
    shards: usize,
    /// Somebody else was faster with one of them.
    lost: bool,
    /// One failed, or there was no time for it.
    failed: bool,
    /// One failed because an item has no room for it.
    hopeless: bool,
}

/// The shards of a bucket, as far as they are there and can be read.
#[derive(Default)]
struct Shards<'a> {
    shards: Vec<Shard>,
    /// Whether there are no others.
    is_all: bool,
    /// Text that was read.
    bytes: u64,
    /// Held if they are large.
    guard: Option<MutexGuard<'a, ()>>,
}

impl<'r> Run<'r> {
    /// Reviews all shards of the bucket whose first one is `first`. What cannot be done is still
    /// due. Returns how many keys were read, and bytes.
    pub(crate) async fn reshape(self, first: &BucketKey, summary: &mut Summary) -> (usize, u64) {
        let keys: Vec<_> = (0..MAX_SHARDS)
            .map(|shard| first.with_shard(shard).item_key())
            .collect();
        let (mut read, mut before) = ((0, 0), vec![]);
        for round in 1..=ROUNDS {
            let Some(mut found) = self.shards(&keys, summary).await else {
                return read;
            };
            read = (read.0 + keys.len(), read.1 + found.bytes);
            if found.shards.iter().any(|shard| shard.escrow.is_some()) {
                if !self.finish(&found.shards, summary).await {
                    return read;
                }
                // What is large is read by one at a time.
                drop(found);
                let Some(again) = self.shards(&keys, summary).await else {
                    return read;
                };
                read = (read.0 + keys.len(), read.1 + again.bytes);
                found = again;
            }
            let depth = if round == 1 { Depth::All } else { Depth::Pairs };
            let Review {
                repairs,
                merges,
                looks,
            } = review(&found.shards, found.is_all, depth, self.now, new_id);
            let repaired = self.transact(repairs, summary).await;
            summary.repaired(repaired.shards);
            let merged = self.transact(merges, summary).await;
            summary.merged(merged.shards);
            let is_lost = repaired.lost || merged.lost;
            // Then no other process has made them fail, and the next run would fail like this one.
            let is_stuck = is_lost && found.shards == before;
            if is_lost && !is_stuck && round < ROUNDS && !repaired.failed && !merged.failed {
                before = found.shards;
                continue;
            }
            if is_lost {
                summary.lost_race();
            }
            self.look(looks, summary).await;
            if is_stuck || repaired.hopeless || merged.hopeless {
                // One of them has no room for what it would become, or is what no code here writes.
                for shard in found
                    .shards
                    .iter()
                    .filter(|shard| shard.due_at.is_some_and(|due| due <= self.now))
                {
                    self.postpone(&shard.key.item_key(), summary).await;
                }
            }
            return read;
        }
        read
    }

    /// Finishes the splits that another process has begun, and left; returns whether all are
    /// finished.
    async fn finish(self, shards: &[Shard], summary: &mut Summary) -> bool {
        for [make, clear] in shards.iter().filter_map(finish_writes) {
            for update in [make, clear] {
                // Whether the write is made now or was made before does not matter.
                let sent = self.table.update_with(
                    &update,
                    ReturnValues::None,
                    RetryPolicy::AlsoUnconfirmed,
                );
                match self.deadline.bound(sent).await {
                    Some(Ok(_)) => {}
                    failed => {
                        summary.left(
                            1,
                            failed.and_then(Result::err).map(|error| self.told(error)),
                        );
                        return false;
                    }
                }
            }
        }
        true
    }

    /// All shards that are there and can be read.
    async fn shards(self, keys: &[ItemKey], summary: &mut Summary) -> Option<Shards<'r>> {
        let mut found = Shards {
            is_all: true,
            ..Shards::default()
        };
        for batch in keys.chunks(read::BATCH) {
            match self.read(batch, read::SMALL, &mut found, summary).await? {
                true => continue,
                false if found.guard.is_none() => {
                    found.guard = Some(self.deadline.bound(self.large.lock()).await?)
                }
                false => {}
            }
            for key in batch {
                let is_read = found.bytes < LARGE_BUCKET
                    && self
                        .read(std::slice::from_ref(key), read::LARGE, &mut found, summary)
                        .await?;
                found.is_all &= is_read;
            }
        }
        if found.is_all && tree(&found.shards).is_none() {
            let (bucket, shards) = (&keys[0].pk, found.shards.len());
            if self.budget.allows(bucket, &[bucket]) {
                tracing::warn!(
                    bucket,
                    shards,
                    "no splits make such shards; they are neither merged nor mended"
                );
            }
        }
        Some(found)
    }

    /// Adds the shards with these keys to `found`, unless they are too large: then it returns
    /// `false`.
    async fn read(
        self,
        keys: &[ItemKey],
        most: u64,
        found: &mut Shards<'r>,
        summary: &mut Summary,
    ) -> Option<bool> {
        match self
            .deadline
            .bound(self.table.read_within(keys, most))
            .await
        {
            Some(Ok(ReadWithin::Items { items, bytes })) => {
                for item in items.iter().filter(|item| !item.is_merged()) {
                    match read::bucket(item, self.budget) {
                        Some(shard) => found.shards.push(shard),
                        None => found.is_all = false,
                    }
                }
                found.bytes += bytes;
                Some(true)
            }
            Some(Ok(ReadWithin::TooLarge { bytes })) => {
                found.bytes += bytes;
                Some(false)
            }
            failed => {
                summary.left(
                    1,
                    failed.and_then(Result::err).map(|error| self.told(error)),
                );
                None
            }
        }
    }

    async fn transact(self, changes: Vec<Change>, summary: &mut Summary) -> Made {
        let run = async |Change { actions, shards }: Change| {
            // Its own token for each: the same actions are never sent under another one.
            let token = new_id();
            let sent = self
                .table
                .transact_with(&actions, &token, RetryPolicy::AlsoUnconfirmed);
            (shards, self.deadline.bound(sent).await)
        };
        let mut made = Made::default();
        let mut all = stream::iter(changes).map(run).buffer_unordered(WRITES);
        while let Some((shards, done)) = all.next().await {
            match done {
                Some(Ok(TransactOutcome::Applied)) => made.shards += shards,
                Some(Ok(TransactOutcome::ConditionFailed(_))) => made.lost = true,
                failed => {
                    let error = failed.and_then(Result::err);
                    made.hopeless |= error
                        .as_ref()
                        .is_some_and(|error| error.kind == ErrorKind::Invalid);
                    summary.left(1, error.map(|error| self.told(error)));
                    made.failed = true;
                }
            }
        }
        made
    }

    async fn look(self, shards: Vec<&Shard>, summary: &mut Summary) {
        let look = async |shard: &Shard| {
            let mut summary = Summary::default();
            self.settle(shard.clone(), &mut summary, plan_look).await;
            summary
        };
        let mut all = stream::iter(shards).map(look).buffer_unordered(WRITES);
        while let Some(one) = all.next().await {
            *summary = std::mem::take(summary).with(one);
        }
    }
}

fn new_id() -> WriteId {
    weirgate_store::random_id()
}

//! Runs the transactions of a review of one bucket, and reviews it again if another process wrote
//! first.

use futures_util::stream::{self, StreamExt};
use tokio::sync::MutexGuard;
use weirgate_shared::write::finish_writes;
use weirgate_shared::{BucketKey, ItemKey, MAX_SHARDS, Shard, WriteId};
use weirgate_store::{ErrorKind, ReadWithin, RetryPolicy, ReturnValues, TransactOutcome};

use crate::leases::plan_sample;
use crate::merge_plan::{Change, Depth, review};
use crate::shard_tree::tree;
use crate::{Run, Summary, WRITES, read};

/// Maximum number of reviews of one bucket in a run. After that, it is still due.
const ROUNDS: usize = 3;
/// Maximum bytes of the responses for the shards of one bucket. Beyond it, the others are left out, and
/// the bucket is neither merged nor repaired.
const LARGE_BUCKET: u64 = 4 * 1024 * 1024;

/// The outcome of some transactions.
#[derive(Default)]
struct Made {
    shards: usize,
    /// Whether another process wrote first to a shard of one of them.
    lost: bool,
    /// Whether one failed, or there was no time for it.
    failed: bool,
    /// Whether one failed because an item has no room for it.
    hopeless: bool,
}

/// The shards of a bucket that exist and can be read.
#[derive(Default)]
struct Shards<'a> {
    shards: Vec<Shard>,
    /// Whether the bucket has no others.
    is_all: bool,
    /// Bytes of the responses.
    bytes: u64,
    /// Keys that are not read.
    left_out: Vec<ItemKey>,
    /// Lock held if they are large.
    guard: Option<MutexGuard<'a, ()>>,
}

/// What a review read.
#[derive(Default)]
pub(crate) struct Read {
    pub(crate) keys: usize,
    pub(crate) bytes: u64,
    /// Shards to be processed one by one.
    pub(crate) left_out: Vec<ItemKey>,
}

impl<'r> Run<'r> {
    /// Reviews all shards of the bucket of shard 0, `first`. Unfinished work stays due.
    pub(crate) async fn reshape(self, first: &BucketKey, summary: &mut Summary) -> Read {
        let keys: Vec<_> =
            (0..MAX_SHARDS).map(|shard| first.with_shard(shard).item_key()).collect();
        let (mut read, mut before) = (Read::default(), vec![]);
        for round in 1..=ROUNDS {
            let Some(mut found) = self.shards(&keys, summary).await else {
                return read;
            };
            (read.keys, read.bytes) = (read.keys + keys.len(), read.bytes + found.bytes);
            if found.shards.iter().any(|shard| shard.escrow.is_some()) {
                if !self.finish(&found.shards, summary).await {
                    return read;
                }
                // Large shards are read by one task at a time.
                drop(found);
                let Some(again) = self.shards(&keys, summary).await else {
                    return read;
                };
                (read.keys, read.bytes) = (read.keys + keys.len(), read.bytes + again.bytes);
                found = again;
            }
            let depth = if round == 1 { Depth::All } else { Depth::Pairs };
            let mut review = review(&found.shards, found.is_all, depth, self.now(), new_id);
            let decided = read::decide_fill(self.table, &first.namespace, &mut review);
            match self.deadline.bound(decided).await {
                Some(Ok(())) => {}
                failed => {
                    summary.left(1, self.failure(failed));
                    return read;
                }
            }
            let repaired = self.transact(review.repairs, summary).await;
            summary.repaired(repaired.shards);
            let merged = self.transact(review.merges, summary).await;
            summary.merged(merged.shards);
            let is_lost = repaired.lost || merged.lost;
            // No other process made them fail, so the next run would fail too.
            let is_stuck = is_lost && found.shards == before;
            if is_lost && !is_stuck && round < ROUNDS && !repaired.failed && !merged.failed {
                before = found.shards;
                continue;
            }
            if is_lost {
                summary.lost_race();
            }
            self.sample(review.samples, summary).await;
            if is_stuck || repaired.hopeless || merged.hopeless {
                // One of them has no room for its new state, or has content that this software
                // never writes.
                for shard in found
                    .shards
                    .iter()
                    .filter(|shard| shard.due_at.is_some_and(|due| due <= self.now()))
                {
                    self.postpone(&shard.key.item_key(), summary).await;
                }
            }
            read.left_out = found.left_out;
            return read;
        }
        read
    }

    /// Finishes splits that another process has abandoned. Returns whether all are finished.
    async fn finish(self, shards: &[Shard], summary: &mut Summary) -> bool {
        for [make, clear] in shards.iter().filter_map(finish_writes) {
            for update in [make, clear] {
                // It does not matter whether the write is applied now or was before.
                let sent = self.table.update_with(
                    &update,
                    ReturnValues::None,
                    RetryPolicy::AlsoUnconfirmed,
                );
                match self.deadline.bound(sent).await {
                    Some(Ok(_)) => {}
                    failed => {
                        summary.left(1, self.failure(failed));
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Returns all shards that exist and can be read.
    async fn shards(self, keys: &[ItemKey], summary: &mut Summary) -> Option<Shards<'r>> {
        let mut found = Shards { is_all: true, ..Shards::default() };
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
                if !is_read {
                    found.left_out.push(key.clone());
                    found.is_all = false;
                }
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

    /// Adds the shards with these keys to `found`. Returns `false` if they are too large.
    async fn read(
        self,
        keys: &[ItemKey],
        most: u64,
        found: &mut Shards<'r>,
        summary: &mut Summary,
    ) -> Option<bool> {
        match self.deadline.bound(self.table.read_within(keys, most)).await {
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
                summary.left(1, self.failure(failed));
                None
            }
        }
    }

    async fn transact(self, changes: Vec<Change>, summary: &mut Summary) -> Made {
        let run = async |Change { actions, shards }: Change| {
            // Each has its own token: the same actions are never sent with another one.
            let token = new_id();
            let sent = self.table.transact_with(&actions, &token, RetryPolicy::AlsoUnconfirmed);
            (shards, self.deadline.bound(sent).await)
        };
        let mut made = Made::default();
        let mut all = stream::iter(changes).map(run).buffer_unordered(WRITES);
        while let Some((shards, done)) = all.next().await {
            match done {
                Some(Ok(TransactOutcome::Applied)) => made.shards += shards,
                Some(Ok(TransactOutcome::ConditionFailed(_))) => made.lost = true,
                failed => {
                    let error = self.failure(failed);
                    made.hopeless |=
                        error.as_ref().is_some_and(|error| error.kind == ErrorKind::Invalid);
                    summary.left(1, error);
                    made.failed = true;
                }
            }
        }
        made
    }

    async fn sample(self, shards: Vec<&Shard>, summary: &mut Summary) {
        let sample = async |shard: &Shard| {
            let mut summary = Summary::default();
            self.settle(shard.clone(), &mut summary, plan_sample).await;
            summary
        };
        let mut all = stream::iter(shards).map(sample).buffer_unordered(WRITES);
        while let Some(one) = all.next().await {
            *summary = std::mem::take(summary).with(one);
        }
    }
}

fn new_id() -> WriteId {
    weirgate_store::random_id()
}

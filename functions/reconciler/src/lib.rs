//! The reconciler: gives back what expired leases held in buckets that nobody uses meanwhile, and merges shards that have
//! become cold.
//!
//! # Layout
//!
//! - `config`: [`Config`]: what the environment says
//! - `read`: what is due, and the buckets as they are
//! - `plan`: what is to be done about one bucket shard; pure
//! - `execute`: one write per shard, and what to do when somebody else was faster
//! - `tree`, `review`: [`review`]: what is to be done about all shards of a bucket together; pure
//! - `reshape`: its transactions, and what to do when somebody else was faster
//! - `report`: [`Summary`]: the answer, and the log line
//! - `deadline`: [`Deadline`]: when to stop
//!
//! It costs what is due, not what is stored: what stays due because of a failure is met again by the next run.

mod config;
mod deadline;
mod execute;
mod plan;
mod read;
mod report;
mod reshape;
mod review;
mod tree;

use std::collections::HashSet;
use std::future::ready;
use std::sync::{Mutex, PoisonError};

use futures_util::stream::{self, StreamExt};
use lambda_runtime::Context;
use weirgate_shared::{BucketKey, EpochMillis, ItemKey, due_shards};
use weirgate_store::{Item, StoreError, Table};

pub use config::Config;
pub use deadline::Deadline;
pub use report::Summary;
pub use review::{Change, Depth, Review, review};

use execute::{Done, settle};

/// Partitions of the index worked on at once: all of them, so that the oldest of each come first.
const PARTITIONS: usize = 16;
/// Buckets of one partition written at once.
const WRITES: usize = 4;

/// One invocation.
///
/// # Errors
/// [`StoreError`] if nothing worked at all.
pub async fn invoke(table: &Table, config: &Config, context: &Context) -> Result<Summary, StoreError> {
    let now = table.skew().now();
    let deadline = Deadline::after(weirgate_runtime::time_left(context, now));
    reconcile(table, config, now, deadline).await
}

/// Restores all that is due at `now`, until the deadline.
///
/// # Errors
/// [`StoreError`] if nothing worked at all; what failed for some buckets is in the summary.
pub async fn reconcile(
    table: &Table,
    config: &Config,
    now: EpochMillis,
    deadline: Deadline,
) -> Result<Summary, StoreError> {
    let reviewed = Mutex::default();
    let run = Run { table, config, now, deadline, reviewed: &reviewed };
    let partitions = stream::iter(due_shards()).map(|due_shard| run.partition(due_shard));
    let all = partitions.buffer_unordered(PARTITIONS).fold(Summary::default(), |all, one| ready(all.with(one))).await;
    all.log();
    all.answer()
}

#[derive(Clone, Copy)]
struct Run<'a> {
    table: &'a Table,
    config: &'a Config,
    now: EpochMillis,
    deadline: Deadline,
    /// Shard 0 of every bucket whose shards were reviewed together: once is enough, however many of them are due.
    reviewed: &'a Mutex<HashSet<BucketKey>>,
}

impl Run<'_> {
    /// One partition of the index, page by page. It ends: each page begins after the one before it, and `now` stays.
    async fn partition(self, due_shard: String) -> Summary {
        let (mut summary, mut met, mut after) = (Summary::default(), HashSet::new(), None);
        loop {
            let page = read::page(self.table, &due_shard, self.now, self.config.page, after.as_ref(), &mut met);
            let page = match self.deadline.bound(page).await {
                Some(Ok(page)) => page,
                Some(Err(error)) => {
                    summary.unfinished(Some(error));
                    return summary;
                }
                None => {
                    summary.unfinished(None);
                    return summary;
                }
            };
            summary.page(page.keys.len(), page.oldest, self.now);
            for keys in page.keys.chunks(read::BATCH) {
                self.buckets(keys, &mut summary).await;
            }
            after = page.next;
            if after.is_none() {
                return summary;
            }
        }
    }

    async fn buckets(self, keys: &[ItemKey], summary: &mut Summary) {
        let items = match self.deadline.bound(self.table.read(keys)).await {
            Some(Ok(items)) => items,
            Some(Err(error)) => return summary.left(keys.len(), Some(error)),
            None => return summary.left(keys.len(), None),
        };
        let met = stream::iter(items).map(|item| self.item(item)).buffer_unordered(WRITES);
        let all = met.fold(std::mem::take(summary), |all, one| ready(all.with(one)));
        *summary = all.await;
    }

    /// One due item: a bucket, or one of its shards.
    async fn item(self, item: Item) -> Summary {
        let mut summary = Summary::default();
        match read::bucket(&item) {
            None => summary.bucket(Some(Ok(Done::Undecodable))),
            Some(bucket) if review::is_reviewed(&bucket, self.now) => {
                let first = bucket.key.with_shard(0);
                if self.reviewed.lock().unwrap_or_else(PoisonError::into_inner).insert(first.clone()) {
                    self.reshape(&first, &mut summary).await;
                }
            }
            Some(bucket) => {
                let restored = settle(self.table, bucket, |image| plan::plan(image, self.now));
                summary.bucket(self.deadline.bound(restored).await);
            }
        }
        summary
    }
}

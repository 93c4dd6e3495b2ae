//! The reconciler: releases expired leases of shards that no client reclaims, and merges idle
//! shards.
//!
//! # Layout
//!
//! - `function`: [`function`], as Lambda runs it; `config`: [`Config`] from the environment
//! - `partition`: the entries of one partition of the index, by age and within the `share` of each
//!   namespace
//! - `read`: due entries, and their shards
//! - `leases`: the write for one due shard, replanned after a failed condition
//! - `shard_tree`, `merge_plan`: [`review`]: the work on all shards of a bucket together; pure
//! - `merge`: its transactions, and another review after a failed condition
//! - `preview`: [`preview`]: what a run would do, without a write
//! - `report`: [`Summary`]: the response, and the invocation's metrics
//! - `deadline`: [`Deadline`]: when to stop
//! - `schedule`: the schedule's event: its id and its time
//!
//! Its cost grows with the due items, not with the stored ones. An item that stays due after a
//! failure is processed by the next run. Tenants can write anything into their items: no item makes
//! a run fail, and no namespace gets more than its share before all others had theirs.

mod config;
mod deadline;
mod function;
mod leases;
mod merge;
mod merge_plan;
mod partition;
mod preview;
mod read;
mod report;
mod schedule;
mod shard_tree;
mod share;

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex};

use futures_util::stream::{self, StreamExt};
use tokio::sync::OnceCell;
use weirgate_runtime::{LogBudget, SHOWN, shorten};
use weirgate_shared::{BucketKey, EpochMillis, ItemKey, due_shards};
use weirgate_store::{StoreError, Table};

pub use config::Config;
pub use deadline::Deadline;
pub use function::function;
pub use merge_plan::{Change, Depth, Review, review};
pub use preview::{DueItem, Preview, Reshaped, Work, preview};
pub use report::Summary;

/// Returns the current time.
pub type Clock<'a> = dyn Fn() -> EpochMillis + Sync + 'a;

/// Index partitions processed concurrently: all of them, so that the oldest entries of each come
/// first.
const PARTITIONS: usize = 16;
/// Shards of one partition written concurrently.
const WRITES: usize = 4;

/// Processes all shards that are due at the start, until the deadline. A run may last minutes, so
/// it reads `clock` for each plan.
///
/// # Errors
/// [`StoreError`] if nothing worked at all; what failed for some buckets is in the summary.
pub async fn reconcile(
    table: &Table,
    config: &Config,
    clock: &Clock<'_>,
    deadline: Deadline,
) -> Result<Summary, StoreError> {
    run(table, config, clock, deadline).await.answer()
}

async fn run(table: &Table, config: &Config, clock: &Clock<'_>, deadline: Deadline) -> Summary {
    let (reviewed, large, budget) =
        (Mutex::default(), tokio::sync::Mutex::default(), LogBudget::default());
    let run = Run {
        table,
        config,
        started_at: clock(),
        clock,
        deadline,
        reviewed: &reviewed,
        large: &large,
        budget: &budget,
    };
    let partitions = stream::iter(due_shards()).map(|due_shard| run.partition(due_shard));
    partitions
        .buffer_unordered(PARTITIONS)
        .fold(Summary::default(), |all, one| ready(all.with(one)))
        .await
}

/// The shards that the review of a bucket left out because it is large; set when the review ends.
type LeftOut = OnceCell<Vec<ItemKey>>;

#[derive(Clone, Copy)]
struct Run<'a> {
    table: &'a Table,
    config: &'a Config,
    /// Bound of the index pages: a later one would never end.
    started_at: EpochMillis,
    clock: &'a Clock<'a>,
    deadline: Deadline,
    /// Shard 0 of every bucket of which a review has begun. One in a run suffices, however many of its
    /// shards are due.
    reviewed: &'a Mutex<HashMap<BucketKey, Arc<LeftOut>>>,
    /// Lock held while a large item is in memory.
    large: &'a tokio::sync::Mutex<()>,
    budget: &'a LogBudget,
}

impl Run<'_> {
    fn now(self) -> EpochMillis {
        (self.clock)()
    }

    /// Logs the error of a failed request, and returns it: `None` if there was no time for the request.
    fn failure<T>(self, failed: Option<Result<T, StoreError>>) -> Option<StoreError> {
        failed.and_then(Result::err).map(|error| self.warn(error))
    }

    /// Logs the error at WARN if the budget allows it, and returns it.
    fn warn(self, error: StoreError) -> StoreError {
        let text = error.to_string();
        let text = shorten(&text, SHOWN);
        if self.budget.allows("", &[&text]) {
            tracing::warn!(error = %text, "bucket left for the next run");
        }
        error
    }
}

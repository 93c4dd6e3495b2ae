//! The reconciler: gives back what expired leases held in buckets that nobody uses meanwhile, and
//! merges shards that have become cold.
//!
//! # Layout
//!
//! - `config`: [`Config`]: what the environment says
//! - `partition`: the entries of one partition of the index, by age and within the `share` of each
//!   namespace
//! - `read`: what is due, and the buckets as they are
//! - `plan`: what is to be done about one bucket shard; pure
//! - `execute`: one write per shard, and what to do when somebody else was faster
//! - `tree`, `review`: [`review`]: what is to be done about all shards of a bucket together; pure
//! - `reshape`: its transactions, and what to do when somebody else was faster
//! - `report`: [`Summary`]: the answer, and the log line
//! - `deadline`: [`Deadline`]: when to stop
//! - `schedule`: the schedule's event: its id and its time
//!
//! It costs what is due, not what is stored: what stays due because of a failure is met again by
//! the next run. Tenants write what they like into their items; no item makes a run fail, and none
//! takes more than its namespace's share before all others have had theirs.

mod config;
mod deadline;
mod execute;
mod partition;
mod plan;
mod read;
mod report;
mod reshape;
mod review;
mod schedule;
mod share;
mod tree;

use std::collections::HashSet;
use std::future::ready;
use std::sync::Mutex;

use futures_util::stream::{self, StreamExt};
use lambda_runtime::Context;
use weirgate_runtime::{LogBudget, shorten};
use weirgate_shared::{BucketKey, EpochMillis, due_shards};
use weirgate_store::{StoreError, Table};

pub use config::Config;
pub use deadline::Deadline;
pub use report::Summary;
pub use review::{Change, Depth, Review, review};

use schedule::Schedule;

/// Partitions of the index worked on at once: all of them, so that the oldest of each come first.
const PARTITIONS: usize = 16;
/// Buckets of one partition written at once.
const WRITES: usize = 4;
/// Bytes of a log line that an error may take.
const SHOWN: usize = 1024;

/// Runs once for an event. Whatever it says, it means: now. That of a schedule is named in the log.
///
/// # Errors
/// [`StoreError`] if nothing worked at all.
pub async fn invoke(
    table: &Table,
    config: &Config,
    event: &str,
    context: &Context,
) -> Result<Summary, StoreError> {
    let now = table.skew().now();
    let deadline = Deadline::after(weirgate_runtime::time_left(context, now));
    let summary = run(table, config, now, deadline).await;
    summary.log(Schedule::of(event, now).as_ref());
    summary.answer()
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
    let summary = run(table, config, now, deadline).await;
    summary.log(None);
    summary.answer()
}

async fn run(table: &Table, config: &Config, now: EpochMillis, deadline: Deadline) -> Summary {
    let (reviewed, large, budget) = (
        Mutex::default(),
        tokio::sync::Mutex::default(),
        LogBudget::default(),
    );
    let run = Run {
        table,
        config,
        now,
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

#[derive(Clone, Copy)]
struct Run<'a> {
    table: &'a Table,
    config: &'a Config,
    now: EpochMillis,
    deadline: Deadline,
    /// Shard 0 of every bucket whose shards were reviewed together: once is enough, however many of
    /// them are due.
    reviewed: &'a Mutex<HashSet<BucketKey>>,
    /// Held for as long as something large is in memory.
    large: &'a tokio::sync::Mutex<()>,
    budget: &'a LogBudget,
}

impl Run<'_> {
    /// Says at WARN what failed, if the budget allows it, and passes it on.
    fn told(self, error: StoreError) -> StoreError {
        let text = error.to_string();
        let text = shorten(&text, SHOWN);
        if self.budget.allows("", &[&text]) {
            tracing::warn!(error = %text, "left due");
        }
        error
    }
}

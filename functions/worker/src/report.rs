//! What the functions did.

use std::time::Duration;

use weirgate_shared::EpochMillis;

pub use weirgate_aggregator::Summary as BatchSummary;
pub use weirgate_reconciler::Summary as RunSummary;

/// One invocation of a function that found something to do, or failed.
#[derive(Debug)]
pub struct Report {
    /// When it began.
    pub at: EpochMillis,
    /// How long it took.
    pub took: Duration,
    /// What was done.
    pub work: Work,
}

/// The work of one invocation.
#[derive(Debug)]
pub enum Work {
    /// The aggregator handled records of the stream.
    Aggregated(BatchSummary),
    /// The reconciler ran.
    Reconciled(RunSummary),
    /// So many expired items were deleted.
    Expired(usize),
    /// This process has the lock, so it works from now on.
    Began,
    /// A function failed, and tries again.
    Failed {
        /// The function: `aggregator`, `reconciler` or `table`.
        function: &'static str,
        /// The reason.
        reason: String,
    },
}

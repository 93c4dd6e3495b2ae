//! What the functions did.

use std::fmt;
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
    /// The reconciler released leases, or merged shards.
    Reconciled(RunSummary),
    /// The table deleted so many expired items.
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

impl Work {
    /// The function: `aggregator`, `reconciler`, or `table` for what the table itself does; `functions` for both.
    #[must_use]
    pub const fn function(&self) -> &'static str {
        match self {
            Self::Aggregated(_) => "aggregator",
            Self::Reconciled(_) => "reconciler",
            Self::Expired(_) => "table",
            Self::Began => "functions",
            Self::Failed { function, .. } => function,
        }
    }
}

impl fmt::Display for Work {
    /// Without the function: `120 records, 3 usage copies, 1 refill`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = match self {
            Self::Aggregated(summary) => vec![
                (summary.records, "record", "records"),
                (summary.copied, "usage copy", "usage copies"),
                (summary.refilled, "refill", "refills"),
                (summary.splits, "split", "splits"),
                (summary.undecodable, "undecodable record", "undecodable records"),
                (summary.refused, "refused write", "refused writes"),
                (summary.failed, "failed write", "failed writes"),
            ],
            Self::Reconciled(summary) => [
                (summary.leases_restored, "lease released", "leases released"),
                (summary.shards_merged, "shard merged", "shards merged"),
                (summary.shards_repaired, "shard repaired", "shards repaired"),
                (summary.undecodable, "undecodable item", "undecodable items"),
                (summary.left_over, "shard left over", "shards left over"),
            ]
            .map(|(count, one, many)| (usize::try_from(count).unwrap_or(usize::MAX), one, many))
            .to_vec(),
            Self::Expired(count) => vec![(*count, "expired item deleted", "expired items deleted")],
            Self::Began => return f.write_str("begin"),
            Self::Failed { reason, .. } => return write!(f, "failed, and tries again: {reason}"),
        };
        let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
        let text = |(count, one, many)| format!("{count} {}", if count == 1 { one } else { many });
        f.write_str(&counts.map(text).collect::<Vec<_>>().join(", "))
    }
}

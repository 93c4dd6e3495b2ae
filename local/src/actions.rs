//! What the functions did last.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use weirgate_shared::EpochMillis;

/// How many actions are remembered.
const REMEMBERED: usize = 256;

/// One invocation of a function that found something to do, or failed.
#[derive(Debug)]
pub struct Action {
    /// Number of the action, from 1 on.
    pub number: u64,
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
    Aggregated(weirgate_aggregator::Summary),
    /// The reconciler released leases, or merged shards.
    Reconciled(weirgate_reconciler::Summary),
    /// The table deleted so many expired items.
    Expired(usize),
    /// A function failed, and tries again.
    Failed {
        /// The function: `aggregator`, `reconciler` or `table`.
        function: &'static str,
        /// The reason.
        reason: String,
    },
}

impl Work {
    /// The function: `aggregator`, `reconciler`, or `table` for what DynamoDB itself does.
    #[must_use]
    pub const fn function(&self) -> &'static str {
        match self {
            Self::Aggregated(_) => "aggregator",
            Self::Reconciled(_) => "reconciler",
            Self::Expired(_) => "table",
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
                (
                    summary.undecodable,
                    "undecodable record",
                    "undecodable records",
                ),
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
            Self::Failed { reason, .. } => return write!(f, "failed, and tries again: {reason}"),
        };
        let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
        let text = |(count, one, many)| format!("{count} {}", if count == 1 { one } else { many });
        f.write_str(&counts.map(text).collect::<Vec<_>>().join(", "))
    }
}

/// The last actions of the functions. Clones share them.
#[derive(Debug, Clone)]
pub struct Actions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    last: Mutex<VecDeque<Arc<Action>>>,
    count: watch::Sender<u64>,
}

impl Default for Actions {
    fn default() -> Self {
        Self(Arc::new(Shared {
            last: Mutex::default(),
            count: watch::Sender::new(0),
        }))
    }
}

impl Actions {
    /// Returns the remembered actions after number `after`, the oldest first. The last 256 are
    /// remembered.
    #[must_use]
    pub fn after(&self, after: u64) -> Vec<Arc<Action>> {
        let last = self.last();
        let from = last.partition_point(|action| action.number <= after);
        last.range(from..).cloned().collect()
    }

    /// Returns a receiver of the number of the last action, for callers that wait for the next one.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.count.subscribe()
    }

    pub(crate) fn push(&self, at: EpochMillis, took: Duration, work: Work) {
        let mut last = self.last();
        let number = *self.0.count.borrow() + 1;
        last.push_back(Arc::new(Action {
            number,
            at,
            took,
            work,
        }));
        if last.len() > REMEMBERED {
            last.pop_front();
        }
        // Under the lock, so that numbers are in order.
        self.0.count.send_replace(number);
    }

    fn last(&self) -> MutexGuard<'_, VecDeque<Arc<Action>>> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_actions_are_remembered_in_order_and_told_in_words() {
        let actions = Actions::default();
        let told = actions.subscribe();
        for count in 0..300 {
            actions.push(EpochMillis(0), Duration::ZERO, Work::Expired(count));
        }
        assert_eq!(*told.borrow(), 300);
        let last = actions.after(0);
        assert_eq!((last.len(), last[0].number), (256, 45));
        let last = actions.after(298);
        let lines: Vec<_> = last.iter().map(|action| action.work.to_string()).collect();
        assert_eq!(
            lines,
            ["298 expired items deleted", "299 expired items deleted"]
        );
        assert!(actions.after(300).is_empty());
        let summary = weirgate_aggregator::Summary {
            records: 120,
            copied: 1,
            ..Default::default()
        };
        let work = Work::Aggregated(summary);
        assert_eq!(work.to_string(), "120 records, 1 usage copy");
        assert_eq!(work.function(), "aggregator");
    }
}

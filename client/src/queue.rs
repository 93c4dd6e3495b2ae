//! The queue of one shard: the waiters of one process share its writes.
//!
//! [`machine`] decides what they get and what is asked of the table, without I/O; [`driver`] asks it.

mod attempt;
mod batch;
mod directory;
mod driver;
mod machine;
mod pace;
mod part;
mod settle;
mod shard_state;
mod summary;
mod waiter;

pub(crate) use directory::ShardQueues;
pub(crate) use driver::ShardQueue;
pub(crate) use part::{Ending, HoldPart};
pub(crate) use settle::{SettleAttempt, SettleOutcome};
pub(crate) use shard_state::{ShardState, ShardView};
pub(crate) use summary::BucketSummary;
pub(crate) use waiter::{Reason, Taken};

#[cfg(test)]
mod tests {
    mod explorer;
    mod machine;
}

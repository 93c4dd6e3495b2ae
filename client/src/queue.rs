//! The queue of one shard: the waiters of one process share its writes.
//!
//! [`machine`] decides what they get and what is asked of the table, without I/O; [`driver`] asks it.

mod driver;
mod machine;
mod pace;
mod part;
mod shard_state;
mod waiter;

pub(crate) use driver::ShardQueue;
pub(crate) use machine::{AMPLE_FACTOR, SLOTS_UNREAD_TTL, is_key_range_throttle};
pub(crate) use part::{HoldPart, Portion, SettleOutcome, Taken, Windows, windows_in};
pub(crate) use shard_state::{BucketSummary, ShardState, ShardView};
pub(crate) use waiter::Reason;

#[cfg(test)]
pub(crate) use {
    driver::GRACE,
    machine::{Command, Written},
    waiter::{Reply, Waiter},
};

#[cfg(test)]
pub(crate) mod tests {
    mod batch;
    mod explorer;
    pub(crate) mod exploring;
    mod machine;
}

//! The queue of one shard: the waiters of one process share its writes.
//!
//! While a take is in flight, new requests wait in the queue; the next write takes for all of them.
//! A worker task of its own drains the queue, so a dropped request does not stop the others.

mod batch;
mod clock_jump;
mod contention;
mod directory;
mod hour;
mod maintenance;
mod part;
mod pick;
mod read;
mod recheck;
mod retake;
mod retry_times;
mod settle;
mod shard_queue;
mod shard_state;
mod summary;
mod take;
mod taken;
mod throttle;
mod view;
mod waiter;
mod worker;

pub(crate) use directory::ShardQueues;
pub(crate) use part::{Ending, HoldPart};
#[cfg(test)]
pub(crate) use recheck::SLOT_DENIAL_TTL;
pub(crate) use recheck::denial_ttl;
pub(crate) use settle::{SettleAttempt, SettleOutcome};
pub(crate) use shard_queue::ShardQueue;
pub(crate) use shard_state::ShardState;
pub(crate) use summary::BucketSummary;
pub(crate) use taken::Taken;
pub(crate) use view::ShardView;
pub(crate) use waiter::{QueueReply, RerouteReason, ShardDecision, Waiter};
pub(crate) use worker::run_worker;

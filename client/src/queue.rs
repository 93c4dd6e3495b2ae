//! The queue of one shard: the waiters of one process share its writes.
//!
//! While a take is in flight, new requests wait in the queue; the next write takes for all of them.
//! A worker task of its own drains the queue, so a dropped request does not stop the others.

mod batch;
mod clock_jump;
mod contention;
mod denial_ttl;
mod directory;
mod hour;
mod maintenance;
mod part;
mod pick_shard;
mod read;
mod read_short_shard;
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

#[cfg(test)]
pub(crate) use denial_ttl::SLOT_DENIAL_TTL;
pub(crate) use denial_ttl::denial_ttl;
pub(crate) use directory::ShardQueues;
pub(crate) use part::{Ending, HoldPart};
pub(crate) use settle::{SettleAttempt, SettleOutcome};
pub(crate) use shard_queue::ShardQueue;
pub(crate) use shard_state::ShardState;
pub(crate) use summary::BucketSummary;
pub(crate) use taken::Taken;
pub(crate) use view::ShardView;
pub(crate) use waiter::{QueueReply, RerouteReason, ShardDecision, Waiter};
pub(crate) use worker::run_worker;

//! One bucket of any number of shards: routing, holds, prefetch.

mod all_or_none;
mod balance_plan;

mod denial;
mod edit;
mod evaluate;
mod hold;
mod prefetch;
mod refresh;
mod refund;
mod registry;
mod reshard;
mod route;
mod spread;
mod state;

pub(crate) use all_or_none::{AllOrNone, acquire, take_all};
pub(crate) use balance_plan::{AmountChange, BalancePlan, balances};
pub(crate) use denial::cached_denial;
pub(crate) use edit::finished;
pub(crate) use hold::{Hold, HoldToken};
pub(crate) use prefetch::drain;
pub(crate) use refresh::{refresh_all, refresh_each};
pub(crate) use refund::refund;
pub(crate) use registry::BucketRegistry;
pub(crate) use reshard::Resharding;
pub(crate) use state::{BucketState, BucketTarget};

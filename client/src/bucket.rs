//! One bucket of any number of shards: routing, holds, prefetch.

mod acquire;
mod balance_plan;
mod cached_denial;
mod edit;
mod evaluate;
mod hold;
mod prefetch;
mod refresh;
mod refund;
mod registry;
mod reshard;
mod route;
mod state;
mod vendor;

pub(crate) use acquire::{AllOrNone, acquire, take_all};
pub(crate) use balance_plan::{AmountChange, BalancePlan, balances};
pub(crate) use cached_denial::cached_denial;
pub(crate) use edit::finished;
pub(crate) use evaluate::above_floors;
pub(crate) use hold::{Adjustment, Hold, HoldToken};
pub(crate) use prefetch::drain;
pub(crate) use refresh::{refresh_all, refresh_each};
pub(crate) use refund::refund;
pub(crate) use registry::BucketRegistry;
pub(crate) use reshard::Resharding;
pub(crate) use state::{BucketState, BucketTarget};

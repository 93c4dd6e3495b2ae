//! One bucket of any number of shards: routing, holds, prefetch.

mod acquire;
mod cached_denial;
mod evaluate;
mod hold;
mod prefetch;
mod refresh;
mod route;
mod state;
mod vendor;

pub(crate) use acquire::{AllOrNone, acquire, take_all};
pub(crate) use cached_denial::cached_denial;
pub(crate) use evaluate::above_floors;
pub(crate) use hold::{Adjustment, Ending, Hold, HoldToken, check_namespace};
pub(crate) use prefetch::drain;
pub(crate) use refresh::{finish_split, refresh_all, refresh_each};
pub(crate) use state::{BucketRegistry, BucketState, BucketTarget};

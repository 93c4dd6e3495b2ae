//! What applications call. It checks their input, and hands it to the layers below.

mod acquire;
mod acquire_all;
mod audit;
#[cfg(feature = "blocking")]
pub mod blocking;
mod buckets;
mod builder;
mod check;
mod configs;
mod descriptions;
mod entities;
mod erase;
mod leases;
mod limiter;
mod operate;
mod page;
mod peek;
mod purge;
mod refund;
mod reshard;
mod restore;
mod scope;
mod usage;

pub use acquire::Acquire;
pub use acquire_all::{AcquireAll, Grants};
pub use buckets::StoredBucket;
pub use builder::Builder;
pub use erase::{EraseReport, LiveLeases};
pub use leases::StoredLease;
pub use limiter::RateLimiter;
pub use operate::{
    BalanceEdit, BalanceReport, LimitsEdit, LimitsReport, OperationOutcome, PolicyEdit,
    PolicyReport, SwitchEdit, SwitchReport,
};
pub use page::{Page, PageToken, Unreadable};
pub use peek::{Balances, Peek};
pub use purge::{Purge, PurgeReport};
pub use refund::Refund;
pub use scope::ScopeError;
pub use usage::{TopUser, UsageReport, UsageRow, UsageScope, UsageTotal};

//! What applications call. It checks their input, and hands it to the layers below.

mod acquire;
mod acquire_all;
mod admin;
#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod check;
mod limiter;
mod page;
mod peek;
mod refund;
mod restore;
mod scope;
mod usage;

pub use acquire::Acquire;
pub use acquire_all::{AcquireAll, Grants};
pub use admin::{
    Admin, BalanceEdit, BalanceReport, ConfigChange, ConfigReport, ConfiguredLevel,
    EffectiveBucket, EffectiveLimits, EraseReport, LimitScale, LimitsEdit, LimitsReport,
    LiveLeases, OperationOutcome, PauseEdit, PauseReport, PlanUse, PolicyEdit, PolicyReport, Purge,
    PurgeReport, StoredBucket, StoredLease, SwitchEdit, SwitchReport,
};
pub use builder::Builder;
pub use limiter::RateLimiter;
pub use page::{Page, PageToken, Unreadable};
pub use peek::{Balances, Peek};
pub use refund::Refund;
pub use scope::ScopeError;
pub use usage::{TopUser, UsageReport, UsageRow, UsageScope, UsageTotal};

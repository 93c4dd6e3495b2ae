//! Plain data that every layer uses.

pub(crate) mod calendar;
mod denial;
mod effective_config;
mod error;
mod file_levels;
mod gauges;
#[cfg(feature = "serde")]
pub(crate) mod json;
mod limit_status;
mod limits;
mod locked;
mod prefetch;
mod request;
mod settlement;
mod stats;
mod vendor;
mod vendor_advice;

pub(crate) use calendar::CALENDAR;
#[cfg(test)]
pub(crate) use denial::SLOT_DENIAL_TTL;
pub use denial::{Degraded, Denied, Disabled, NeverFits};
pub(crate) use denial::{
    Denials, Outcome, blocking_limits, denial_of, denial_ttl, longest_wait, merge_denials,
    merge_two, shortage,
};
pub(crate) use effective_config::EffectiveConfig;
pub use error::Error;
pub(crate) use error::invalid;
pub(crate) use file_levels::FileLevels;
pub use gauges::BreakerState;
pub(crate) use gauges::{OutstandingGauge, change_breaker, describe_gauges};
pub use limit_status::LimitStatus;
pub(crate) use limit_status::{
    bucket_status, most_restrictive, never_status, status, status_for, whole, with_floors,
};
pub(crate) use limits::{
    Amounts, Limits, check_amount, check_bucket_debt, check_bucket_limits, check_debt,
    check_limit_count, check_next_windows, check_whole, check_windows, debited, parse_amount,
    subtract,
};
pub(crate) use locked::Locked;
pub use prefetch::Prefetch;
pub(crate) use request::{
    AcquireOptions, Amount, BucketRequest, DEFAULT_LEASE, RequestSpec, check_lease,
    check_on_unavailable, effect,
};
pub(crate) use settlement::HoldSettlement;
pub use settlement::Settlement;
pub use stats::Stats;
pub(crate) use stats::{Counter, Counters, count, counters};
pub use vendor::{VendorCount, VendorLimit, VendorReport};
pub(crate) use vendor_advice::VendorAdvices;
pub use vendor_advice::{ConfiguredRate, VendorAdvice};
pub use weirgate_shared::OnUnavailable;

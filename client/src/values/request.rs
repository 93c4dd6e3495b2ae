//! What one acquire requests of one bucket.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{Asks, Effect, LimitMode, Millis, OnUnavailable, exact_span};

use super::error::Error;
use super::limits::Limits;

/// Default duration of a lease, 60 s.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(60);
/// Longest duration of a lease, one day. A longer hold renews it.
const MAX_LEASE: Duration = Duration::from_secs(86_400);

/// What one acquire requests of one bucket.
#[derive(Debug, Clone)]
pub(crate) struct BucketRequest {
    pub(crate) asks: Asks,
    pub(crate) limits: Limits,
    /// Duration of a durable lease, and its owner.
    pub(crate) lease: Option<(Duration, Arc<str>)>,
    /// Time allowed for the decision.
    pub(crate) timeout: Duration,
    /// Acquires that the write counts: 1, those that were granted from prefetched tokens, or 0 for
    /// all but the first part of a request.
    pub(crate) acquires: i64,
}

impl BucketRequest {
    /// Returns whether the request bypasses the limits: all its amounts only count then.
    pub(crate) fn is_bypass(&self) -> bool {
        self.asks.has(Effect::Count)
    }

    /// Returns whether it takes slots.
    pub(crate) fn takes_slots(&self) -> bool {
        let mut enforced = self.asks.with(Effect::Enforce);
        enforced.any(|(name, _)| self.limits.is_held(name))
    }
}

/// Returns what a request does with its amount of a limit in this mode.
pub(crate) const fn effect(mode: LimitMode, is_bypass: bool, is_into_debt: bool) -> Effect {
    match mode {
        _ if is_bypass => Effect::Count,
        LimitMode::Soft => Effect::IntoDebt,
        LimitMode::Enforced | LimitMode::Shadow if is_into_debt => Effect::IntoDebt,
        LimitMode::Enforced | LimitMode::Shadow => Effect::Enforce,
    }
}

/// Requires that a lease lasts 1 ms to a day.
pub(crate) fn check_lease(lasts: Duration) -> Result<(), Error> {
    if lasts > MAX_LEASE || Millis::from(lasts) < Millis(1) {
        return Err(Error::Invalid(format!(
            "a lease must last 1ms to 1d, got {}: renew it to hold longer",
            exact_span(lasts)
        )));
    }
    Ok(())
}

/// Requires that a local percentage is 1 to 100.
pub(crate) fn check_on_unavailable(policy: OnUnavailable) -> Result<(), Error> {
    match policy {
        OnUnavailable::Local { percent } if !(1..=100).contains(&percent) => Err(Error::Invalid(
            format!("OnUnavailable::Local: percent must be 1 to 100, got {percent}"),
        )),
        _ => Ok(()),
    }
}

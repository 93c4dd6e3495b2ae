//! Options of the layer.

use http::StatusCode;

use crate::http::PolicyNames;
use crate::values::Error;

/// What to do with a request without a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Respond with 503, or with 500 if a later attempt would fail too. While the circuit breaker is
    /// open, `Retry-After` is the time until its next attempt.
    Refuse,
    /// Pass the request on, uncounted, as if there was no limit.
    Pass,
}

/// Options of the layer.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) names: PolicyNames,
    pub(crate) has_x_rate_limit: bool,
    pub(crate) refund_if: fn(StatusCode) -> bool,
    pub(crate) on_error: fn(&Error) -> OnError,
}

//! State of the circuit breaker, for the application.

/// State of a limiter's [circuit breaker](crate::CircuitBreakerConfig).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum BreakerState {
    /// Requests pass.
    #[default]
    Closed,
    /// One request probes whether DynamoDB answers; no other passes.
    HalfOpen,
    /// No request passes. After the pause, the next one probes.
    Open,
}

impl BreakerState {
    /// Returns the value of the gauge `weirgate_breaker_state`: 0 closed, 0.5 half open, 1 open.
    #[must_use]
    pub const fn value(self) -> f64 {
        match self {
            Self::Closed => 0.0,
            Self::HalfOpen => 0.5,
            Self::Open => 1.0,
        }
    }
}

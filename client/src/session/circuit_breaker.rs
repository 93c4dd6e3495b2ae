//! A circuit breaker: after failures in a row it stops requests for a while, then lets one probe
//! through.

use std::sync::MutexGuard;
use std::time::Duration;

use weirgate_store::{ErrorKind, StoreError};

use super::ages::{AgeClock, Moment};
use crate::values::{BreakerState, Error, Locked, change_breaker};

/// Sets when a limiter stops sending requests to DynamoDB, and for how long.
///
/// A failure is a connection that cannot be made, a request without a response, a server error, or
/// a throttled table or account. Any other response closes the breaker. A throttled bucket, index
/// or partition counts as neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitBreakerConfig {
    /// Failed requests in a row after which it opens; 0 for never. Default: 10.
    pub failure_threshold: u32,
    /// First pause before one probe; it doubles with each failed probe. Default: 1 s.
    pub open_for: Duration,
    /// Longest pause. Default: 30 s.
    pub max_open_for: Duration,
}

impl Default for CircuitBreakerConfig {
    fn default() -> Self {
        Self {
            failure_threshold: 10,
            open_for: Duration::from_secs(1),
            max_open_for: Duration::from_secs(30),
        }
    }
}

/// The circuit breaker of a limiter.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    settings: CircuitBreakerConfig,
    ages: AgeClock,
    state: Locked<State>,
}

#[derive(Debug)]
enum State {
    /// Requests pass; the number of failures in a row.
    Closed(u32),
    /// No request passes.
    Open {
        until: Moment,
        pause: Duration,
        why: String,
    },
    /// One probe passes.
    HalfOpen { pause: Duration, why: String },
}

/// Permission to send a request.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    circuit: &'a CircuitBreaker,
    is_probe: bool,
}

/// Rejection by the open circuit breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Open {
    /// Failure that opened it.
    pub(crate) cause: String,
    /// Time until a probe may pass.
    pub(crate) retry_after: Duration,
}

impl CircuitBreaker {
    pub(crate) const fn new(settings: CircuitBreakerConfig, ages: AgeClock) -> Self {
        Self {
            settings,
            ages,
            state: Locked::new(State::Closed(0)),
        }
    }

    /// Returns the shortest pause.
    pub(crate) const fn pause(&self) -> Duration {
        self.settings.open_for
    }

    /// Returns the state.
    pub(crate) fn current(&self) -> BreakerState {
        self.state().name()
    }

    /// Returns whether requests pass, all of them and not only a probe.
    pub(crate) fn is_closed(&self) -> bool {
        self.current() == BreakerState::Closed
    }

    /// Returns a permit, or the rejection if the breaker is open.
    pub(crate) fn admit(&self) -> Result<Permit<'_>, Open> {
        let state = self.state();
        let (pause, why) = match &*state {
            State::Closed(_) => {
                return Ok(Permit {
                    circuit: self,
                    is_probe: false,
                });
            }
            State::Open { until, pause, why } => {
                let left = until.since(self.ages.now());
                if !left.is_zero() {
                    return Err(Open {
                        cause: why.clone(),
                        retry_after: left,
                    });
                }
                (*pause, why.clone())
            }
            State::HalfOpen { pause, why } => {
                return Err(Open {
                    cause: why.clone(),
                    retry_after: *pause,
                });
            }
        };
        Self::set(state, State::HalfOpen { pause, why });
        Ok(Permit {
            circuit: self,
            is_probe: true,
        })
    }

    /// Records the outcome of a request. Returns whether the breaker opened.
    pub(crate) fn record(&self, error: Option<&StoreError>) -> bool {
        let mut state = self.state();
        let Some(failure) = error.filter(|error| is_failure(error.kind)) else {
            let says_nothing = |error: &StoreError| {
                matches!(
                    error.kind,
                    ErrorKind::Throttled { .. }
                        | ErrorKind::IndexThrottled
                        | ErrorKind::MissingCredentials
                        | ErrorKind::CredentialsUnavailable
                        | ErrorKind::ClockSkew
                )
            };
            if !error.is_some_and(says_nothing) {
                Self::set(state, State::Closed(0));
            }
            return false;
        };
        let CircuitBreakerConfig {
            failure_threshold: failures,
            open_for: pause,
            max_open_for: longest,
        } = self.settings;
        let pause = match &mut *state {
            State::Closed(seen) => {
                *seen = seen.saturating_add(1);
                if failures == 0 || *seen < failures {
                    return false;
                }
                pause
            }
            State::HalfOpen { pause, .. } => pause.saturating_mul(2).min(longest),
            // These requests were sent before it opened.
            State::Open { .. } => return false,
        };
        let open = State::Open {
            until: self.ages.now() + pause,
            pause,
            why: failure.to_string(),
        };
        Self::set(state, open);
        true
    }

    /// Sets the state, and then, without the lock, the gauge.
    fn set(mut state: MutexGuard<'_, State>, to: State) {
        let (before, after) = (state.name(), to.name());
        *state = to;
        drop(state);
        change_breaker(before, after);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Lets another probe through if this one ends without a recorded outcome.
impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if !self.is_probe {
            return;
        }
        let state = self.circuit.state();
        if let State::HalfOpen { pause, why } = &*state {
            let open = State::Open {
                until: self.circuit.ages.now(),
                pause: *pause,
                why: why.clone(),
            };
            CircuitBreaker::set(state, open);
        }
    }
}

/// Takes the limiter's part out of the gauge.
impl Drop for CircuitBreaker {
    fn drop(&mut self) {
        change_breaker(self.current(), BreakerState::Closed);
    }
}

impl State {
    const fn name(&self) -> BreakerState {
        match self {
            Self::Closed(_) => BreakerState::Closed,
            Self::Open { .. } => BreakerState::Open,
            Self::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }
}

impl From<Open> for Error {
    fn from(
        Open {
            cause: why,
            retry_after: left,
        }: Open,
    ) -> Self {
        Self::Unavailable {
            retry_after: left.max(Duration::from_millis(1)),
            last: why,
        }
    }
}

pub(crate) const fn is_failure(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unconfirmed | ErrorKind::Unreachable | ErrorKind::Throttled { key_range: false }
    )
}

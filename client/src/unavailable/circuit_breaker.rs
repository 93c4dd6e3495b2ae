//! A circuit breaker: after failures in a row DynamoDB is not asked for a while, then by one caller
//! alone.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weirgate_store::{ErrorKind, StoreError};

use crate::ages::{AgeClock, Moment};

/// When a limiter stops asking DynamoDB, and for how long.
///
/// A failure is a connection that cannot be made, a request without an answer, a server error, or a
/// table or account over its throughput. Whatever else DynamoDB answers shows that it is there. A
/// single bucket, index or partition that is too hot is neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitBreakerConfig {
    /// Failed requests in a row after which it opens; 0 never. 10 if nothing is said.
    pub failure_threshold: u32,
    /// How long nothing is sent then, before one caller tries again; doubles with each try that
    /// fails. 1 s if nothing is said.
    pub open_for: Duration,
    /// The longest pause. 30 s if nothing is said.
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

/// The breaker of a limiter.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    settings: CircuitBreakerConfig,
    ages: AgeClock,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Everybody asks; failures in a row.
    Closed(u32),
    /// Nobody does.
    Open {
        until: Moment,
        pause: Duration,
        why: String,
    },
    /// One does.
    HalfOpen { pause: Duration, why: String },
}

/// May ask.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    circuit: &'a CircuitBreaker,
    is_probe: bool,
}

/// Nobody asks now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Open {
    /// The failure that opened it.
    pub(crate) cause: String,
    /// Until somebody may ask again.
    pub(crate) retry_after: Duration,
}

impl CircuitBreaker {
    pub(crate) const fn new(settings: CircuitBreakerConfig, ages: AgeClock) -> Self {
        Self {
            settings,
            ages,
            state: Mutex::new(State::Closed(0)),
        }
    }

    /// The shortest pause.
    pub(crate) const fn pause(&self) -> Duration {
        self.settings.open_for
    }

    /// Whether to ask.
    pub(crate) fn admit(&self) -> Result<Permit<'_>, Open> {
        let mut state = self.state();
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
        *state = State::HalfOpen { pause, why };
        Ok(Permit {
            circuit: self,
            is_probe: true,
        })
    }

    /// What a request met; whether the circuit opened by it.
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
                *state = State::Closed(0);
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
            // Requests from before it opened.
            State::Open { .. } => return false,
        };
        *state = State::Open {
            until: self.ages.now() + pause,
            pause,
            why: failure.to_string(),
        };
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements: a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A probe that ends without having asked leaves it to the next one.
impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if !self.is_probe {
            return;
        }
        let mut state = self.circuit.state();
        if let State::HalfOpen { pause, why } = &*state {
            *state = State::Open {
                until: self.circuit.ages.now(),
                pause: *pause,
                why: why.clone(),
            };
        }
    }
}

pub(crate) const fn is_failure(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unconfirmed | ErrorKind::Unreachable | ErrorKind::Throttled { key_range: false }
    )
}

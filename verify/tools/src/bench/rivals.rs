//! The rate limiters that are driven, each by the same scenarios.
//!
//! # Layout
//!
//! - [`weirgate`]: this project, with and without prefetched tokens
//! - [`peer`]: zae-limiter, in a process of its own: `tests/peer/drive.py`
//! - [`redis`]: `tests/peer/token_bucket.lua` on a redis-server
//! - [`governor`]: limiters in memory

pub mod governor;
pub mod peer;
pub mod redis;
pub mod weirgate;

use std::time::Duration;

use super::round::{Measured, call_for};
use super::scenario::{Rival, Scenario};

/// A rate limiter that is ready for the rounds of a scenario.
#[derive(Debug)]
pub enum Ready {
    /// Weirgate.
    Weirgate(weirgate::Caller),
    /// zae-limiter.
    Peer(Box<peer::Process>),
    /// Redis.
    Redis(redis::Caller),
    /// governor.
    Governor(governor::Caller),
}

/// Where those are that are not in this process.
#[derive(Debug)]
pub struct Endpoints {
    /// DynamoDB.
    pub dynamodb: String,
    /// Redis, if it is driven.
    pub redis: Option<redis::Server>,
}

impl Ready {
    /// Connects a rival and makes its buckets.
    ///
    /// # Panics
    /// If it is not installed, or fails.
    pub async fn new(rival: Rival, scenario: &Scenario, endpoints: &Endpoints) -> Self {
        match rival {
            Rival::Weirgate | Rival::Prefetched => {
                Self::Weirgate(weirgate::Caller::new(&endpoints.dynamodb, scenario, rival).await)
            }
            Rival::Peer => {
                let arguments = [&endpoints.dynamodb, scenario.name];
                Self::Peer(Box::new(peer::Process::start(&arguments).await))
            }
            Rival::Redis => {
                let server = endpoints.redis.as_ref().expect("the server was started");
                Self::Redis(redis::Caller::new(server, scenario).await)
            }
            Rival::Governor => Self::Governor(governor::Caller::new(scenario)),
        }
    }

    /// Makes calls for this long.
    ///
    /// # Panics
    /// If a call fails, or is decided otherwise than the scenario says.
    pub async fn round(&mut self, callers: usize, lasts: Duration) -> Measured {
        match self {
            Self::Weirgate(caller) => caller.round(callers, lasts).await,
            Self::Peer(process) => process.ask(&lasts.as_secs_f64().to_string()).await,
            Self::Redis(caller) => Measured {
                requests: caller.requests(),
                ..call_for(caller, callers, lasts).await.measured()
            },
            Self::Governor(caller) => call_for(caller, callers, lasts).await.measured(),
        }
    }
}

//! One client of a load, and what it saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weirgate::{Decision, Error, Limit, RateLimiter};

/// How the calls of a client follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// One at a time, as of a Lambda, at even intervals.
    Even,
    /// One at a time, at random intervals.
    Random,
    /// At random intervals, whether or not the calls before have ended, as in a server.
    Open,
}

pub(super) struct Caller {
    pub(super) entity: String,
    pub(super) limiter: RateLimiter,
    pub(super) limits: Arc<[Limit]>,
    pub(super) arrivals: Arrivals,
    /// Time between its calls, on average.
    pub(super) pause: Duration,
    pub(super) until: Instant,
    pub(super) is_over: Arc<AtomicBool>,
}

/// What one client saw.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) granted: u64,
    pub(super) denied: u64,
    pub(super) failed: u64,
    pub(super) writes: u64,
}

impl Seen {
    fn count(&mut self, decision: &Result<Decision, Error>) {
        match decision {
            Ok(decision) if decision.is_granted() => self.granted += 1,
            Ok(_) => self.denied += 1,
            Err(_) => self.failed += 1,
        }
    }
}

impl Caller {
    pub(super) async fn run(self, first: Instant) -> Seen {
        let (mut seen, mut next, mut calls) = (Seen::default(), first, JoinSet::new());
        while next < self.until && !self.is_over.load(Ordering::Relaxed) {
            sleep_until(next).await;
            let (limiter, limits) = (self.limiter.clone(), Arc::clone(&self.limits));
            let entity = self.entity.clone();
            calls.spawn(async move {
                let call = limiter.acquire(&entity, "gpt-4").shared_limits(&limits);
                call.take("rpm", 1).send().await
            });
            next += match self.arrivals {
                Arrivals::Even => self.pause,
                Arrivals::Random | Arrivals::Open => {
                    self.pause.mul_f64(-(1.0 - fastrand::f64()).ln())
                }
            };
            if self.arrivals != Arrivals::Open {
                let call = calls.join_next().await.expect("it was just begun");
                seen.count(&call.expect("no call panics"));
                // A call that took too long is not made up for.
                next = next.max(Instant::now());
            }
        }
        while let Some(call) = calls.join_next().await {
            seen.count(&call.expect("no call panics"));
        }
        seen.writes = self.limiter.stats().writes;
        seen
    }
}

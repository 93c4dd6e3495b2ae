//! `GET /healthz`.

use std::sync::atomic::{AtomicBool, Ordering};

use weirgate::RateLimiter;

use super::refusal::Refusal;

/// Whether the table was reached since the start.
#[derive(Debug, Default)]
pub struct Health(AtomicBool);

impl Health {
    /// Notes that the table was reached.
    pub fn reached(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns the body, after a read of the table if it was not reached yet.
    pub(super) async fn check(&self, limiter: &RateLimiter) -> Result<Vec<u8>, Refusal> {
        if !self.0.load(Ordering::Relaxed) {
            limiter
                .check()
                .await
                .map_err(|error| Refusal::not_reached(&error))?;
            self.reached();
        }
        Ok(br#"{"status":"ok"}"#.to_vec())
    }
}

//! `GET /healthz`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weirgate::RateLimiter;

use super::refusal::Refusal;

/// Pause before the table is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether the table was reached since the start.
#[derive(Debug, Default)]
pub struct Health(AtomicBool);

impl Health {
    /// Reads the table until it is reached, which also opens the connection to it.
    pub async fn reach(self: Arc<Self>, limiter: RateLimiter) {
        while let Err(error) = limiter.check().await {
            tracing::error!(%error, "the table was not reached");
            tokio::time::sleep(PAUSE).await;
        }
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns the body, after a read of the table if it was not reached yet.
    pub(super) async fn check(&self, limiter: &RateLimiter) -> Result<Vec<u8>, Refusal> {
        if !self.0.load(Ordering::Relaxed) {
            limiter
                .check()
                .await
                .map_err(|error| Refusal::not_reached(&error))?;
            self.0.store(true, Ordering::Relaxed);
        }
        Ok(br#"{"status":"ok"}"#.to_vec())
    }
}

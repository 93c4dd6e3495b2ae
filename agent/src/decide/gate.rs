//! How many requests are in flight.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds the requests in flight. Clones share the bound.
#[derive(Debug, Clone)]
pub struct Gate {
    free: Arc<Semaphore>,
    max: u32,
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub struct Permit(#[allow(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

impl Gate {
    /// Creates a gate for at most `max` requests.
    #[must_use]
    pub fn new(max: u32) -> Self {
        let permits = usize::try_from(max).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(permits)),
            max,
        }
    }

    /// Returns a permit, unless as many requests as allowed are in flight.
    #[must_use]
    pub fn enter(&self) -> Option<Permit> {
        Arc::clone(&self.free).try_acquire_owned().ok().map(Permit)
    }

    /// Returns the maximum number of requests in flight.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.max
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let free = u64::try_from(self.free.available_permits()).unwrap_or(u64::MAX);
        u64::from(self.max).saturating_sub(free)
    }

    /// Waits until no request is in flight. None can enter from the call on.
    pub async fn close_and_drain(&self) {
        // Queued before later ones; `enter` does not queue.
        if let Ok(all) = self.free.acquire_many(self.max).await {
            all.forget();
        }
    }
}

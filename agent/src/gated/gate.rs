//! How many requests are in flight, and how much memory they may take.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit in which the bytes of requests are counted, 1 KiB. As much of each request is free, so small
/// ones always find room.
const UNIT: usize = 1024;
/// Units for each request that may be in flight, 2. A request that waits takes several times its bytes.
const UNITS_PER_REQUEST: u32 = 2;
/// Fewest units, 4 MiB: two of the largest requests.
const MIN_UNITS: u32 = 4096;

/// Bounds the requests in flight, and the sum of their bytes. Clones share the bounds.
#[derive(Debug, Clone)]
pub struct Gate {
    free: Arc<Semaphore>,
    max: u32,
    free_units: Arc<Semaphore>,
    max_units: u32,
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    _request: OwnedSemaphorePermit,
    _units: Option<OwnedSemaphorePermit>,
}

/// The bound that a request exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// So many requests are in flight, the maximum.
    Requests(u32),
    /// The requests in flight have so many KiB together, the maximum.
    Kibibytes(u32),
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests(max) => write!(f, "{max} requests are in flight, the maximum"),
            Self::Kibibytes(max) => {
                write!(f, "the requests in flight have {max} KiB, the maximum")
            }
        }
    }
}

impl Gate {
    /// Creates a gate for at most `max` requests.
    #[must_use]
    pub fn new(max: u32) -> Self {
        let max_units = max.saturating_mul(UNITS_PER_REQUEST).max(MIN_UNITS);
        let permits = |number| usize::try_from(number).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(permits(max))),
            max,
            free_units: Arc::new(Semaphore::new(permits(max_units))),
            max_units,
        }
    }

    /// Returns a permit for a request of so many bytes.
    ///
    /// # Errors
    /// The bound that the request would exceed.
    pub fn enter(&self, bytes: usize) -> Result<Permit, Full> {
        let request = Arc::clone(&self.free).try_acquire_owned();
        let request = request.map_err(|_| Full::Requests(self.max))?;
        let units = bytes.div_ceil(UNIT).saturating_sub(1);
        let units = match u32::try_from(units).unwrap_or(u32::MAX) {
            0 => None,
            units => {
                let units = Arc::clone(&self.free_units).try_acquire_many_owned(units);
                Some(units.map_err(|_| Full::Kibibytes(self.max_units))?)
            }
        };
        Ok(Permit { _request: request, _units: units })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_leave_room_for_small_ones() {
        let gate = Gate::new(4096);
        let large: Vec<_> = (0..200).map_while(|_| gate.enter(64 * 1024).ok()).collect();
        assert_eq!(large.len(), 130, "8 MiB, of each 1 KiB is free");
        let full = gate.enter(64 * 1024).unwrap_err();
        assert_eq!(full, Full::Kibibytes(8192));
        let small: Vec<_> = (0..5000).map_while(|_| gate.enter(1024).ok()).collect();
        assert_eq!(small.len(), 4096 - large.len());
        assert_eq!(gate.enter(1).unwrap_err(), Full::Requests(4096));
        drop((large, small));
        assert_eq!(gate.in_flight(), 0);
        assert!(gate.enter(64 * 1024).is_ok());
    }

    #[test]
    fn the_largest_request_fits_into_the_smallest_gate() {
        assert!(Gate::new(1).enter(2 * 1024 * 1024).is_ok());
    }
}

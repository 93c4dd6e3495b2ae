//! Bounds of a batch, and its time.

use std::collections::HashSet;

use tokio::time::Instant;
use weirgate_shared::EpochMillis;

use super::throttles::Throttles;

/// Bounds of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// Maximum number of concurrent writes.
    pub concurrency: usize,
    /// Time of the plan, by both clocks.
    pub planned: (EpochMillis, Instant),
    /// Instant at which the invocation must end.
    pub stop: Instant,
    /// Records that are not redelivered for an item that stays throttled.
    pub old: &'a HashSet<usize>,
    /// Copies that stayed throttled in earlier invocations.
    pub throttles: &'a Throttles,
}

impl Limits<'_> {
    /// Returns the current time.
    pub(crate) fn now(&self) -> EpochMillis {
        let (at, instant) = self.planned;
        at.plus(instant.elapsed().into())
    }
}

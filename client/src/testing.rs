//! Limiters on a table in memory, for an application's own tests: no AWS, Docker or network, and a
//! clock that the test moves. The feature `testing` belongs in `[dev-dependencies]`.
//!
//! ```
//! use std::time::Duration;
//! use weirgate::Limit;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a test with #[tokio::test(start_paused = true)]:
//! let (limiter, clock) = weirgate::testing::limiter().await;
//! let limits = [Limit::per_minute("rpm", 2)?];
//! let request = || limiter.acquire("user-1", "api").limits(&limits).take("rpm", 1).send();
//!
//! assert!(request().await?.is_granted());
//! assert!(request().await?.is_granted());
//! let denied = request().await?.denied().expect("the third within a minute");
//! assert_eq!(denied.retry_after, Some(Duration::from_secs(30)));
//!
//! clock.advance(Duration::from_secs(30)).await;
//! assert!(request().await?.is_granted());
//! # Ok(())
//! # }
//! ```

use std::time::Instant as RealInstant;

use tokio::time::Instant;
use weirgate_shared::EpochMillis;
use weirgate_store::{MemoryTable, Table};

use crate::api::{Builder, RateLimiter};
use crate::session::FakeClock;

/// Instant at which the time of a [`TestTable`] begins: 2026-01-01T00:00:00Z.
pub const START: EpochMillis = EpochMillis(1_767_225_600_000);

/// Returns a limiter on an empty table in memory, and the clock that both use. For other settings,
/// or several limiters on one table, see [`TestTable`].
///
/// # Panics
/// As [`TestTable::new`].
pub async fn limiter() -> (RateLimiter, FakeClock) {
    let table = TestTable::new();
    (table.limiter().await, table.clock().clone())
}

/// A table in memory, and its clock. Limiters on it decide as on DynamoDB: both evaluate the same
/// planned writes. Clones share the items and the time.
///
/// The stack's functions do not run. So limiters return expired leases only with their own takes,
/// buckets split and merge only by [`set_shards`](crate::Admin::set_shards), and usage reports know
/// only the hour and the day in progress. Items never expire.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use weirgate::{Config, ConfigLevel, Limit, testing::TestTable};
///
/// let table = TestTable::new();
/// let (one, other) = (table.limiter().await, table.builder().owner("other").build().await?);
/// one.admin().set_config(&ConfigLevel::System, &Config::of([Limit::per_minute("rpm", 1)?])).await?;
///
/// assert!(one.acquire("user-1", "api").take("rpm", 1).send().await?.is_granted());
/// assert!(!other.acquire("user-1", "api").take("rpm", 1).send().await?.is_granted());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TestTable {
    table: MemoryTable,
    clock: FakeClock,
}

impl Default for TestTable {
    fn default() -> Self {
        Self::new()
    }
}

impl TestTable {
    /// Returns an empty table at [`START`]. Its time is the paused time of the runtime: it moves
    /// with [`FakeClock::advance`], and to the next timer whenever all tasks wait. So waits take no
    /// real time.
    ///
    /// # Panics
    /// If the runtime's time is not paused: write `#[tokio::test(start_paused = true)]`.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(START)
    }

    /// Returns an empty table whose time begins at `start`, as [`new`](Self::new).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn starting_at(start: EpochMillis) -> Self {
        assert!(
            is_paused(),
            "the runtime's time must be paused: write #[tokio::test(start_paused = true)]"
        );
        Self { table: MemoryTable::default(), clock: FakeClock::at(start) }
    }

    /// Returns the clock of the table and of its limiters.
    #[must_use]
    pub const fn clock(&self) -> &FakeClock {
        &self.clock
    }

    /// Returns a limiter on this table, with default settings: another process, as it were.
    pub async fn limiter(&self) -> RateLimiter {
        let limiter = self.builder().build().await;
        limiter.unwrap_or_else(|error| unreachable!("the default settings are valid: {error}"))
    }

    /// Returns a builder of a limiter on this table, for settings such as prefetch or shadow mode.
    #[must_use]
    pub fn builder(&self) -> Builder {
        RateLimiter::builder("in-memory").table(Table::in_memory(&self.table, self.clock.clone()))
    }

    /// Sets whether every request to the table fails as if no connection could be made, to test
    /// [`OnUnavailable`](crate::OnUnavailable).
    pub fn set_unavailable(&self, is_unavailable: bool) {
        self.table.set_unavailable(is_unavailable);
    }
}

/// Returns whether the runtime's time is paused. Time that is not has moved with the machine's.
fn is_paused() -> bool {
    let (before, real) = (Instant::now(), RealInstant::now());
    while real.elapsed().is_zero() {
        std::hint::spin_loop();
    }
    Instant::now() == before
}

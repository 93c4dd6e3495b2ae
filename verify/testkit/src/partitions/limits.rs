//! What partitions take, how transactions conflict, and how long responses take.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

/// What partitions take, how transactions conflict, and how long answers take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Write units that flow into a partition's balance each second.
    pub units_per_second: u32,
    /// The most write units a balance holds, and what it begins with.
    pub burst: u32,
    /// Read units that flow into a partition's balance each second.
    pub reads_per_second: u32,
    /// The most read units a balance holds, and what it begins with.
    pub read_burst: u32,
    /// How many partitions all keys share, of the table and of each index; by default, each key has
    /// its own.
    pub shared: Option<NonZeroU64>,
    /// For how long a shared partition is throttled until it splits in two by the hashes of its
    /// keys, as DynamoDB splits for heat; never by default.
    pub splits_after: Option<Duration>,
    /// For how long a write to an item cancels transactions on it, and for how long a transaction
    /// runs; 0 by default.
    pub conflict_window: Duration,
    /// A request takes as long as is drawn from here, to the microsecond; the timer rounds it up to
    /// whole milliseconds. It arrives after half of it.
    pub latency: RangeInclusive<Duration>,
}

impl Default for Limits {
    /// DynamoDB's 1,000 write units and 3,000 read units a second, a second's worth of burst, and
    /// answers within 3 to 9 milliseconds; no shared partitions or conflicts.
    fn default() -> Self {
        Self {
            units_per_second: 1000,
            burst: 1000,
            reads_per_second: 3000,
            read_burst: 3000,
            shared: None,
            splits_after: None,
            conflict_window: Duration::ZERO,
            latency: Duration::from_millis(3)..=Duration::from_millis(9),
        }
    }
}

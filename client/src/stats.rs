//! What a limiter has done: counters that only rise.

use std::sync::atomic::{AtomicU64, Ordering};

/// A limiter's counters since it was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Acquires granted.
    pub granted: u64,
    /// Acquires denied, after a request or from memory.
    pub denied: u64,
    /// Writes sent, applied or not.
    pub writes: u64,
    /// Reads of all shards of a bucket, when one of them could not say.
    pub reads: u64,
    /// Writes that lost a race and went on from the new state.
    pub lost_races: u64,
    /// Writes that were throttled, met a transaction, or could not be sent.
    pub refused: u64,
    /// Writes whose answer was lost.
    pub unknown: u64,
    /// Millitokens that a write of unknown outcome may have taken or failed to give back, or that a take by a clock that
    /// was behind did and had to be made again; they count as taken.
    pub unknown_milli: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64),*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}
counters!(granted, denied, writes, reads, lost_races, refused, unknown, unknown_milli);

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

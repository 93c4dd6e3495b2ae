//! What a limiter has done: counters that only rise.

use std::sync::atomic::{AtomicU64, Ordering};

/// A limiter's counters since it was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Acquires granted.
    pub granted: u64,
    /// Acquires denied, after a request or from memory.
    pub denied: u64,
    /// Acquires granted that would have been denied, were it not for shadow mode.
    pub shadow_denied: u64,
    /// Writes sent, applied or not.
    pub writes: u64,
    /// Reads of all shards of a bucket, when one of them could not say.
    pub reads: u64,
    /// Writes that lost a race and went on from the new state.
    pub lost_races: u64,
    /// Writes that were throttled or met a transaction.
    pub refused: u64,
    /// Writes whose answer was lost.
    pub unknown: u64,
    /// Millitokens that a write of unknown outcome may have taken or failed to give back; they count as taken.
    pub unknown_milli: u64,
    /// Acquires granted from tokens taken ahead, without a write.
    pub prefetch_hits: u64,
    /// Blocks of tokens taken ahead.
    pub prefetch_blocks: u64,
    /// Millitokens taken ahead that were not spent and went back.
    pub prefetch_returned_milli: u64,
    /// Millitokens taken ahead that were not spent and could not be given back, as far as is known; they count as used.
    pub prefetch_forfeited_milli: u64,
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
counters!(
    granted,
    denied,
    shadow_denied,
    writes,
    reads,
    lost_races,
    refused,
    unknown,
    unknown_milli,
    prefetch_hits,
    prefetch_blocks,
    prefetch_returned_milli,
    prefetch_forfeited_milli
);

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

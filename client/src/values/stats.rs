//! Counters of a limiter, which only rise, for the application and the process's metrics recorder.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Key, Level, Metadata};

use super::gauges::BreakerState;

/// A counter of a limiter, and the metric that all limiters of the process share.
#[derive(Debug)]
pub(crate) struct Counter {
    total: AtomicU64,
    /// Key of the metric, hashed once.
    key: Key,
}

impl Counter {
    /// Returns a counter at zero, and shows it to the recorder: without a series of the granted, a
    /// query for the denied part leaves out a process that has only denied.
    pub(crate) fn new(metric: &'static str) -> Self {
        let key = Key::from_static_name(metric);
        record(&key, 0);
        Self { total: AtomicU64::new(0), key }
    }

    pub(crate) fn read(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

pub(crate) fn count(counter: &Counter, by: u64) {
    if by > 0 {
        counter.total.fetch_add(by, Ordering::Relaxed);
        record(&counter.key, by);
    }
}

fn record(metric: &Key, by: u64) {
    static METADATA: Metadata<'static> =
        Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
    metrics::with_recorder(|recorder| recorder.register_counter(metric, &METADATA)).increment(by);
}

/// Defines counters, each with its metric's name and description, and a struct with their values.
/// The struct can have levels besides, which rise and fall: its owner sets them.
macro_rules! counters {
    (
        $(#[$doc:meta])* $stats:ident { $($name:ident: $metric:literal, $what:literal;)* }
        $($(#[$level_doc:meta])* $level:ident: $kind:ty;)*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[cfg_attr(
            feature = "serde",
            derive(serde::Serialize, serde::Deserialize),
            serde(default)
        )]
        pub struct $stats {
            $(#[doc = $what] pub $name: u64,)*
            $($(#[$level_doc])* pub $level: $kind,)*
        }

        #[derive(Debug)]
        pub(crate) struct Counters {
            $(pub(crate) $name: $crate::values::Counter,)*
        }

        impl Default for Counters {
            fn default() -> Self {
                $(metrics::describe_counter!($metric, $what);)*
                Self { $($name: $crate::values::Counter::new($metric),)* }
            }
        }

        impl Counters {
            pub(crate) fn read(&self) -> $stats {
                $stats { $($name: self.$name.read(),)* $($level: Default::default(),)* }
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// A limiter's counters since it was built, and its gauges. Each is a metric too: a counter as
    /// `weirgate_{name}_total`.
    Stats {
        granted: "weirgate_granted_total", "Acquires granted.";
        denied: "weirgate_denied_total", "Acquires denied, after a request or by a cached denial.";
        local_denied: "weirgate_local_denied_total", "Acquires denied by a cached denial, without a request.";
        shadow_denied: "weirgate_shadow_denied_total",
            "Acquires granted that would have been denied without shadow mode.";
        degraded: "weirgate_degraded_total", "Acquires decided without the table, because it was unavailable.";
        breaker_opened: "weirgate_breaker_opened_total",
            "Times that the circuit breaker opened, because the table was unavailable.";
        writes: "weirgate_writes_total", "Writes sent, applied or not.";
        reads: "weirgate_reads_total",
            "Reads sent: of the shards of a bucket, and of configurations.";
        lost_races: "weirgate_lost_races_total", "Writes whose condition failed because another write came first; they were planned again.";
        refused: "weirgate_refused_total", "Writes that were throttled, conflicted with a transaction, or could not be sent.";
        unconfirmed: "weirgate_unconfirmed_total", "Writes whose outcome is not known, because no answer came.";
        unconfirmed_millitokens: "weirgate_unconfirmed_millitokens_total",
            "Millitokens that an unconfirmed write may have taken or not returned, or that were taken twice because the first take used a clock that was behind; they count as consumed.";
        prefetch_hits: "weirgate_prefetch_hits_total", "Acquires granted from prefetched tokens, without a write.";
        prefetch_blocks: "weirgate_prefetch_blocks_total", "Blocks of tokens prefetched.";
        prefetch_returned_millitokens: "weirgate_prefetch_returned_millitokens_total",
            "Prefetched millitokens that were not spent and were returned.";
        prefetch_forfeited_millitokens: "weirgate_prefetch_forfeited_millitokens_total",
            "Prefetched millitokens that were not spent and could not be returned, as far as is known; they count as consumed.";
        vendor_fields_ignored: "weirgate_vendor_fields_ignored_total",
            "Fields of limits in the reported answers of vendors that could not be read.";
    }
    /// State of the circuit breaker, the gauge `weirgate_breaker_state`.
    breaker: BreakerState;
    /// Prefetched millitokens that are neither spent nor returned, blocks in flight included: the
    /// gauge `weirgate_prefetch_outstanding_millitokens`.
    prefetch_outstanding_millitokens: u64;
}

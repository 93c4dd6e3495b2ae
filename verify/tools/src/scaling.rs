//! How far one key goes: from acquires a second to shards, write units, stream shards, calls of the
//! aggregator and dollars an hour. Integers only; rounded up wherever there is a rest.
//!
//! # Layout
//!
//! - [`facts`]: what is known or assumed, with sources
//! - [`page`]: the tables of `docs/scaling.md`
//! - [`picture`]: the picture of it, `docs/scaling.svg`
//! - [`volume`]: a month by its number of acquires, for `docs/guide/cost-by-volume.md`

pub mod facts;
pub mod page;
pub mod picture;
pub mod volume;

pub use crate::number::{Grouped, PicoDollars};

use facts::*;

const HOUR_SECONDS: u64 = 3_600;
const HOUR_MINUTES: u64 = 60;

/// What is asked of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// Acquires a second, all granted.
    pub acquires: u64,
    /// Acquires that share one write; 1 if every caller is alone in its process. At least 1.
    pub acquires_per_write: u64,
}

impl Scenario {
    /// Every caller alone in its process, as Lambdas are.
    #[must_use]
    pub const fn alone(acquires: u64) -> Self {
        Self {
            acquires,
            acquires_per_write: 1,
        }
    }

    /// Callers of processes that share writes.
    #[must_use]
    pub const fn shared(acquires: u64) -> Self {
        Self {
            acquires,
            acquires_per_write: ACQUIRES_PER_SHARED_WRITE,
        }
    }

    /// What it takes.
    #[must_use]
    pub fn numbers(self) -> Numbers {
        let writes = self.acquires.div_ceil(self.acquires_per_write);
        let keys = writes.div_ceil(MAX_SHARDS * SHARD_WRITES).max(1);
        let shards = shards(writes.div_ceil(keys));
        let all_shards = keys * shards;

        let shard_writes = writes.div_ceil(all_shards);
        let shard_calls = calls(shard_writes, BATCH_WINDOW_SECONDS);
        // A bucket is refilled at most once a batch, and each refill is a record of the next one.
        // One with few writes in a batch is not refilled.
        let shard_refills = if shard_writes.div_ceil(shard_calls) < REFILL_WRITES {
            0
        } else {
            shard_calls
        };
        let (calls, refills) = (all_shards * shard_calls, all_shards * shard_refills);
        let call_ms = call_ms((shard_writes + shard_refills).div_ceil(shard_calls));
        let usage_units_of_a_key = usage_units_an_hour(shards, shard_writes);
        let usage_units_an_hour = keys * usage_units_of_a_key;
        let looks_a_minute = all_shards * LOOK_UNITS;
        Numbers {
            scenario: self,
            writes,
            shards_of_one_key: self::shards(writes),
            keys,
            shards,
            refills,
            usage_units_an_hour,
            usage_units_of_a_key,
            looks_a_minute,
            records: writes + refills,
            calls,
            call_ms,
            hour: Hour {
                acquires: PicoDollars(writes * WRITE_UNIT_PRICE * HOUR_SECONDS),
                usage: PicoDollars(
                    (usage_units_an_hour + refills * HOUR_SECONDS) * WRITE_UNIT_PRICE,
                ),
                stream: PicoDollars(all_shards * STREAM_READS * STREAM_READ_PRICE * HOUR_SECONDS),
                calls: PicoDollars(calls * (CALL_PRICE + run_price(call_ms)) * HOUR_SECONDS),
                logs: PicoDollars(calls * LOG_BYTES * LOG_BYTE_PRICE * HOUR_SECONDS),
                reconciler: PicoDollars(
                    reconciler_minute(all_shards, looks_a_minute) * HOUR_MINUTES,
                ),
            },
            peer_hour: PicoDollars(
                peer_units_per_100(self.acquires) * WRITE_UNIT_PRICE / 100 * HOUR_SECONDS,
            ),
        }
    }
}

/// What a scenario takes. Rates are per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// What was asked.
    pub scenario: Scenario,
    /// Conditional writes of acquires, one write unit each.
    pub writes: u64,
    /// Shards that one key would need, whether it can have them or not.
    pub shards_of_one_key: u64,
    /// Keys the limit must be parted over; 1 if one can do it.
    pub keys: u64,
    /// Shards of each key.
    pub shards: u64,
    /// Refills by the aggregator, at most; one write unit each.
    pub refills: u64,
    /// Write units of usage snapshots in an hour.
    pub usage_units_an_hour: u64,
    /// Those of one key's snapshots, which lie in one partition.
    pub usage_units_of_a_key: u64,
    /// Write units of the reconciler, a minute.
    pub looks_a_minute: u64,
    /// Stream records that reach the aggregator.
    pub records: u64,
    /// Calls of the aggregator.
    pub calls: u64,
    /// How long one of them takes.
    pub call_ms: u64,
    /// What an hour costs.
    pub hour: Hour,
    /// What an hour of zae-limiter's write units costs.
    pub peer_hour: PicoDollars,
}

impl Numbers {
    /// Whether one key can do it.
    #[must_use]
    pub const fn fits_one_key(&self) -> bool {
        self.keys == 1
    }

    /// Shards of all keys; so many partitions, and so many stream shards at least.
    #[must_use]
    pub const fn all_shards(&self) -> u64 {
        self.keys * self.shards
    }

    /// All write units of the table a second, the reconciler's spread over its minute.
    #[must_use]
    pub const fn write_units(&self) -> u64 {
        self.writes
            + self.refills
            + self.usage_units_an_hour.div_ceil(HOUR_SECONDS)
            + self.looks_a_minute.div_ceil(60)
    }

    /// Calls of the aggregator at once, at most.
    #[must_use]
    pub const fn calls_at_once(&self) -> u64 {
        self.all_shards() * PARALLELIZATION
    }

    /// Calls of the aggregator that run at any instant, in thousandths.
    #[must_use]
    pub const fn running_milli(&self) -> u64 {
        self.calls * self.call_ms
    }
}

/// What an hour of many users costs, each with a bucket of its own and one acquire a minute,
/// measured by
/// [`USAGE_LOADS`]: write units an hour, and dollars with the aggregator and the reconciler.
#[must_use]
pub fn users(users: u64) -> (u64, PicoDollars) {
    let (_, milli) = USAGE_LOADS[1];
    let units = (users * HOUR_MINUTES * milli).div_ceil(1_000);
    let per_second = units.div_ceil(HOUR_SECONDS);
    // As many stream shards as partitions, and all units are of records.
    let stream_shards = per_second.div_ceil(PARTITION_WRITE_UNITS);
    let call = call(per_second.div_ceil(stream_shards)).0;
    let dollars = units * WRITE_UNIT_PRICE
        + stream_shards * call * HOUR_SECONDS
        + reconciler_minute(0, 0) * HOUR_MINUTES
        + watching(BUSY_METRICS).0;
    (units, PicoDollars(dollars))
}

/// What an hour costs in which nothing is asked: the reconciler's look once a minute, and the
/// alarms with their metrics.
#[must_use]
pub const fn idle() -> PicoDollars {
    PicoDollars(reconciler_minute(0, 0) * HOUR_MINUTES + watching(IDLE_METRICS).0)
}

/// What an hour of the alarms costs, and of so many metrics of the functions.
#[must_use]
pub const fn watching(metrics: u64) -> PicoDollars {
    PicoDollars(ALARM_METRICS * ALARM_HOUR_PRICE + metrics * METRIC_HOUR_PRICE)
}

/// What an hour costs, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hour {
    /// Writes of acquires.
    pub acquires: PicoDollars,
    /// Writes of the aggregator: usage and refills.
    pub usage: PicoDollars,
    /// Reads of the stream.
    pub stream: PicoDollars,
    /// Calls and run time of the aggregator.
    pub calls: PicoDollars,
    /// Its logs.
    pub logs: PicoDollars,
    /// The reconciler's reads, writes, calls and logs.
    pub reconciler: PicoDollars,
}

impl Hour {
    /// All parts.
    #[must_use]
    pub const fn total(&self) -> PicoDollars {
        let Self {
            acquires,
            usage,
            stream,
            calls,
            logs,
            reconciler,
        } = self;
        PicoDollars(acquires.0 + usage.0 + stream.0 + calls.0 + logs.0 + reconciler.0)
    }
}

/// Shards for so many writes a second: the least power of two that has [`SHARD_WRITES`] for each.
#[must_use]
pub const fn shards(writes: u64) -> u64 {
    let full = writes.div_ceil(SHARD_WRITES);
    if full == 0 {
        1
    } else {
        full.next_power_of_two()
    }
}

/// Calls of the aggregator a second for one stream shard with so many records a second: when the
/// window is over, or the batch is full.
#[must_use]
pub fn calls(records: u64, window_seconds: u64) -> u64 {
    // Rarer than once a second is counted as once. Without a window, each read that finds something
    // is a call.
    let by_time = if window_seconds == 0 { STREAM_READS } else { 1 };
    by_time.max(records.div_ceil(BATCH_RECORDS))
}

/// Write units an hour of one key's usage snapshots, at most: each shard is copied when the hour
/// ends, twice a day, and to every window once in [`INTERIM_WRITES`].
#[must_use]
pub const fn usage_units_an_hour(shards: u64, shard_writes: u64) -> u64 {
    let all = shards * WINDOWS * snapshot_units(shards);
    all + (all * shard_writes * HOUR_SECONDS).div_ceil(INTERIM_WRITES)
}

/// Write units of one key's usage snapshots at the end of a day: the last copies of each shard for
/// its hour and its day, and the first one for the new day.
#[must_use]
pub const fn day_end_units(shards: u64) -> u64 {
    shards * (WINDOWS + 1) * snapshot_units(shards)
}

/// Write units of one write of a usage snapshot, which keeps what each shard has used.
#[must_use]
pub const fn snapshot_units(shards: u64) -> u64 {
    (SNAPSHOT_BYTES + shards * SNAPSHOT_BYTES_PER_SHARD).div_ceil(1_024)
}

/// Records a second that the aggregator reads and plans with the memory it has.
#[must_use]
pub const fn function_records() -> u64 {
    CORE_RECORDS * MEMORY_MB / VCPU_MB / VCPUS_PER_CORE
}

/// How long a call with so many records takes.
#[must_use]
pub const fn call_ms(records: u64) -> u64 {
    (records * 1_000).div_ceil(function_records()) + CALL_WRITES_MS
}

/// Records a second of one stream shard that Lambda can read.
#[must_use]
pub fn readable_records() -> u64 {
    STREAM_READS * STREAM_READ_RECORDS.min(STREAM_READ_BYTES / RECORD_BYTES)
}

/// Write units of zae-limiter in 100 seconds, so that there are no fractions.
const fn peer_units_per_100(acquires: u64) -> u64 {
    acquires * (100 * PEER_ACQUIRE_UNITS + PEER_USAGE_UNITS_PER_100)
}

/// Picodollars for so long a run of a function.
const fn run_price(ms: u64) -> u64 {
    GB_SECOND_PRICE * MEMORY_MB * ms / 1_024 / 1_000
}

/// Picodollars for a minute of the reconciler.
const fn reconciler_minute(shards: u64, looks: u64) -> u64 {
    let call = SCHEDULE_PRICE + CALL_PRICE + run_price(RECONCILER_MS) + LOG_BYTES * LOG_BYTE_PRICE;
    looks * WRITE_UNIT_PRICE + (shards + DUE_PARTITIONS) * READ_UNIT_PRICE + call
}

/// What a million acquires of a bucket cost that is used `rate` times a second, with a batching
/// window of so many seconds.
#[must_use]
pub fn million(rate: u64, window: u64) -> PicoDollars {
    let (_, milli_units) = USAGE_LOADS[0];
    let records = (rate * window).max(1);
    PicoDollars(1_000 * milli_units * WRITE_UNIT_PRICE + 1_000_000 * call(records).0 / records)
}

/// What one call of the aggregator with so many records costs, with its log.
#[must_use]
pub const fn call(records: u64) -> PicoDollars {
    PicoDollars(CALL_PRICE + run_price(call_ms(records)) + LOG_BYTES * LOG_BYTE_PRICE)
}

#[cfg(test)]
mod tests;

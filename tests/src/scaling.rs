//! How far one key goes, and what a month costs: from acquires a second to shards, write units,
//! calls of the aggregator and dollars. Integers only, rounded up. The tables are computed parts of
//! `docs/scaling.md` and `docs/guide/cost-by-volume.md`.

pub mod facts;

use std::fmt::Write;

use facts::*;

use crate::number::{Grouped, PicoDollars};

const HOUR_SECONDS: u64 = 3_600;
const HOUR_MINUTES: u64 = 60;
/// Hours of a month.
pub const MONTH_HOURS: u64 = 730;

/// Acquires on one key, all granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// Acquires a second.
    pub acquires: u64,
    /// Acquires that share one write; 1 if every caller is alone in its process. At least 1.
    pub acquires_per_write: u64,
}

/// What a scenario takes. Rates are per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// Conditional writes of acquires, one write unit each.
    pub writes: u64,
    /// Keys the limit must be divided over; 1 if one can do it.
    pub keys: u64,
    /// Shards of each key.
    pub shards: u64,
    /// Refills by the aggregator, at most; one write unit each.
    pub refills: u64,
    /// Write units of usage snapshots in an hour.
    pub usage_units_an_hour: u64,
    /// Write units of the reconciler, a minute.
    pub looks_a_minute: u64,
    /// Calls of the aggregator.
    pub calls: u64,
    /// How long one of them takes.
    pub call_ms: u64,
    /// What an hour costs.
    pub hour: PicoDollars,
    /// What an hour of zae-limiter's write units costs.
    pub peer_hour: PicoDollars,
}

impl Scenario {
    /// Every caller alone in its process, as Lambdas are.
    pub const fn alone(acquires: u64) -> Self {
        Self { acquires, acquires_per_write: 1 }
    }

    /// Callers of processes that share writes.
    pub const fn shared(acquires: u64) -> Self {
        Self { acquires, acquires_per_write: ACQUIRES_PER_SHARED_WRITE }
    }

    /// What it takes.
    pub fn numbers(self) -> Numbers {
        let writes = self.acquires.div_ceil(self.acquires_per_write);
        let keys = writes.div_ceil(MAX_SHARDS * SHARD_WRITES).max(1);
        let shards = shards(writes.div_ceil(keys));
        let all_shards = keys * shards;

        let shard_writes = writes.div_ceil(all_shards);
        let shard_calls = calls(shard_writes);
        // A bucket is refilled at most once a batch, and each refill is a record of the next one.
        // One with few writes in a batch is not refilled.
        let is_refilled = shard_writes.div_ceil(shard_calls) >= REFILL_WRITES;
        let shard_refills = if is_refilled { shard_calls } else { 0 };
        let (calls, refills) = (all_shards * shard_calls, all_shards * shard_refills);
        let call_ms = call_ms((shard_writes + shard_refills).div_ceil(shard_calls));
        let usage_units_an_hour = keys * usage_units_an_hour(shards, shard_writes);
        let looks_a_minute = all_shards * LOOK_UNITS;

        let units_an_hour = (writes + refills) * HOUR_SECONDS + usage_units_an_hour;
        let of_call = CALL_PRICE + run_price(call_ms) + LOG_BYTES * LOG_BYTE_PRICE;
        let of_reconciler = reconciler_minute(all_shards, looks_a_minute) * HOUR_MINUTES;
        let of_calls = calls * of_call * HOUR_SECONDS + busy_hours(1);
        let peer_units_per_100 = 100 * PEER_ACQUIRE_UNITS + PEER_USAGE_UNITS_PER_100;
        let peer_units = self.acquires * peer_units_per_100;
        Numbers {
            writes,
            keys,
            shards,
            refills,
            usage_units_an_hour,
            looks_a_minute,
            calls,
            call_ms,
            hour: PicoDollars(units_an_hour * WRITE_UNIT_PRICE + of_calls + of_reconciler),
            peer_hour: PicoDollars(peer_units * WRITE_UNIT_PRICE / 100 * HOUR_SECONDS),
        }
    }
}

impl Numbers {
    /// All write units of the table a second, the reconciler's spread over its minute.
    pub const fn write_units(&self) -> u64 {
        let spread =
            self.usage_units_an_hour.div_ceil(HOUR_SECONDS) + self.looks_a_minute.div_ceil(60);
        self.writes + self.refills + spread
    }

    /// Calls of the aggregator that run at any instant, in thousandths.
    pub const fn running_milli(&self) -> u64 {
        self.calls * self.call_ms
    }
}

/// What an hour costs in which nothing is asked: the reconciler's look once a minute, and the
/// alarms with their metrics.
pub const fn idle() -> PicoDollars {
    let watching = ALARM_METRICS * ALARM_HOUR_PRICE + IDLE_METRICS * METRIC_HOUR_PRICE;
    PicoDollars(reconciler_minute(0, 0) * HOUR_MINUTES + watching)
}

/// Picodollars for the metrics of so many hours in which the aggregator is called.
const fn busy_hours(hours: u64) -> u64 {
    hours * BUSY_METRICS * METRIC_HOUR_PRICE
}

/// Returns what a million acquires of one bucket cost at one a second, without the idle stack, if a
/// record waits so many seconds for others.
pub const fn a_million_at_one_a_second(window_seconds: u64) -> PicoDollars {
    let acquires: u64 = 1_000_000;
    let units = (acquires * USAGE_LOADS[0].1).div_ceil(1_000);
    let of_calls = acquires.div_ceil(window_seconds) * call(window_seconds).0;
    let of_metrics = busy_hours(acquires.div_ceil(HOUR_SECONDS));
    PicoDollars(units * WRITE_UNIT_PRICE + of_calls + of_metrics)
}

/// Shards for so many writes a second: the least power of two that has [`SHARD_WRITES`] for each.
const fn shards(writes: u64) -> u64 {
    match writes.div_ceil(SHARD_WRITES) {
        0 => 1,
        full => full.next_power_of_two(),
    }
}

/// Calls of the aggregator a second for one stream shard: when the window of a second is over, or
/// the batch is full.
fn calls(records: u64) -> u64 {
    records.div_ceil(BATCH_RECORDS).max(1)
}

/// Write units an hour of one key's usage snapshots, at most: each shard is copied when the hour
/// ends, twice a day, and to every window once in [`INTERIM_WRITES`].
const fn usage_units_an_hour(shards: u64, shard_writes: u64) -> u64 {
    let all = shards * WINDOWS * snapshot_units(shards);
    all + (all * shard_writes * HOUR_SECONDS).div_ceil(INTERIM_WRITES)
}

/// Write units of one write of a usage snapshot, which keeps what each shard has used.
pub const fn snapshot_units(shards: u64) -> u64 {
    (SNAPSHOT_BYTES + shards * SNAPSHOT_BYTES_PER_SHARD).div_ceil(1_024)
}

/// Records a second that the aggregator reads and plans with the memory it has.
pub const fn function_records() -> u64 {
    CORE_RECORDS * MEMORY_MB / VCPU_MB / VCPUS_PER_CORE
}

/// How long a call with so many records takes.
pub const fn call_ms(records: u64) -> u64 {
    (records * 1_000).div_ceil(function_records()) + CALL_WRITES_MS
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

/// What one call of the aggregator with so many records costs, with its log.
pub const fn call(records: u64) -> PicoDollars {
    PicoDollars(CALL_PRICE + run_price(call_ms(records)) + LOG_BYTES * LOG_BYTE_PRICE)
}

/// How callers acquire, in a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// What the page calls it.
    pub name: &'static str,
    /// Write units of an acquire with its usage and its settlement, in thousandths.
    pub write_milli: u64,
    /// Read units of it, in thousandths.
    pub read_milli: u64,
}

impl Profile {
    const fn writes(name: &'static str, write_milli: u64) -> Self {
        Self { name, write_milli, read_milli: 0 }
    }

    /// Returns what a month with so many acquires costs, if they are spread evenly over it: units,
    /// calls of the aggregator with their metrics, and the idle stack.
    pub fn month(&self, acquires: u64) -> PicoDollars {
        let seconds = MONTH_HOURS * HOUR_SECONDS;
        let units = (acquires * self.write_milli).div_ceil(1_000);
        let reads = (acquires * self.read_milli).div_ceil(1_000);
        // Each unit is at most one record. A stream shard has one call a second at most, because a
        // second brings no more than a batch.
        let calls = units.min(shards(units.div_ceil(seconds)) * seconds);
        let of_calls = match calls {
            0 => 0,
            _ => calls * call(units / calls).0 + busy_hours(calls.min(MONTH_HOURS)),
        };
        let idle = idle().0 * MONTH_HOURS;
        PicoDollars(units * WRITE_UNIT_PRICE + reads * READ_UNIT_PRICE + of_calls + idle)
    }
}

/// The profiles, in the order of the page.
pub const PROFILES: [Profile; 7] = [
    Profile::writes("one hot key, lone callers", USAGE_LOADS[2].1),
    Profile::writes("one hot key, shared writes", SHARED_MILLI + USAGE_MILLI),
    Profile::writes("one hot key, prefetched", PREFETCHED_MILLI + USAGE_MILLI),
    Profile::writes("a bucket per user, one acquire a minute each", USAGE_LOADS[1].1),
    Profile::writes("LLM: estimate, then adjust", CONTENDED_ESTIMATED_MILLI),
    Profile::writes("concurrency slots: acquire, then release", CONTENDED_SLOT_MILLI),
    Profile {
        name: "exhausted: every acquire is denied",
        write_milli: 0,
        read_milli: DENIAL_READ_MILLI,
    },
];

/// The computed part of `docs/scaling.md`: each rate, with lone callers and with shared writes.
pub fn keys() -> String {
    let mut text = String::from(
        "| acquires/s | callers | shards | write units/s | calls running | an hour | zae-limiter |\n\
         |--:|---|--:|--:|--:|--:|--:|\n",
    );
    for rate in [1_000, 10_000, 50_000, 100_000, 1_000_000] {
        for (callers, scenario) in
            [("alone", Scenario::alone(rate)), ("share writes", Scenario::shared(rate))]
        {
            let numbers = scenario.numbers();
            let shards = match numbers.keys {
                1 => numbers.shards.to_string(),
                keys => format!("{keys} keys × {}", numbers.shards),
            };
            let running = numbers.running_milli() / 10;
            let _ = writeln!(
                text,
                "| {} | {callers} | {shards} | {} | {}.{:02} | {} | {} |",
                Grouped(rate),
                Grouped(numbers.write_units()),
                running / 100,
                running % 100,
                numbers.hour,
                numbers.peer_hour,
            );
        }
    }
    text
}

/// The computed part of `docs/guide/cost-by-volume.md`: a row for each profile, and a column for
/// each volume.
pub fn months() -> String {
    let volumes = [6, 7, 8, 9, 10].map(|power| 10_u64.pow(power));
    let heads = volumes.map(|volume| Grouped(volume).to_string()).join(" | ");
    let rates = volumes.map(|volume| {
        let seconds = MONTH_HOURS * HOUR_SECONDS;
        let tenths = (volume * 10 + seconds / 2) / seconds;
        format!("*{}.{}*", Grouped(tenths / 10), tenths % 10)
    });
    let mut text = format!(
        "| acquires a month | {heads} |\n|---|--:|--:|--:|--:|--:|\n| *on average, a second* | {} |\n",
        rates.join(" | ")
    );
    for profile in PROFILES {
        let months = volumes.map(|volume| profile.month(volume).to_string());
        let _ = writeln!(text, "| {} | {} |", profile.name, months.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_one_acquire_a_second_has_the_known_cost() {
        let numbers = Scenario::alone(1).numbers();
        // 256 MB have 8,682 records a second: a record begins one millisecond.
        assert_eq!((function_records(), numbers.call_ms), (8_682, 11));
        // A copy ends the hour, another one is of a day, and some hours have two within.
        assert_eq!((numbers.refills, numbers.usage_units_an_hour), (0, 4));
        let units = (3_600 + 4) * 625_000;
        // 3,600 calls at $0.0000002, 11 ms of a quarter GB, and a line of 1,050 bytes at $0.50 a GB.
        let calls = 3_600 * (200_000 + 13_333_400 * 11 / 4_000 + 525_000);
        // Five metrics at $0.30 a month of 730 hours.
        let metrics = 5 * (300_000_000_000 / 730);
        assert_eq!(
            numbers.hour,
            PicoDollars(units + calls + metrics + reconciler_minute(1, 3) * 60)
        );
    }
}

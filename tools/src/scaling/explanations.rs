//! What the page says in sentences with computed numbers.

use super::facts::*;
use super::{
    Grouped, call_ms, day_end_units, function_records, readable_records, snapshot_units,
    usage_units_an_hour,
};
use crate::page::bullets;

/// Returns when acquires share writes.
pub(super) fn sharing() -> String {
    let rate = 1_000_000;
    let one_a_write = 1_000 / WRITE_MS;
    let of_a_process = ACQUIRES_PER_SHARED_WRITE * one_a_write;
    bullets([
        format!(
            "A write carries what comes to one process, for one shard, while the write before is under way. With {WRITE_MS} ms for \
             a write, {ACQUIRES_PER_SHARED_WRITE} acquires a write are {busy} acquires a second in one process for one shard; {rate} \
             acquires a second then come from at most {processes} such processes.",
            busy = Grouped(of_a_process),
            rate = Grouped(rate),
            processes = Grouped(rate.div_ceil(of_a_process)),
        ),
        format!(
            "Sharing needs concurrency: a process with {one_a_write} acquires a second or fewer shares nothing, and one that spreads its \
             callers over n tables or entities needs n times as many for the same effect. Of one bucket's shards a process \
             keeps to one while it has writes under way there, so shards do not thin out the sharing."
        ),
    ])
}

/// Returns how many shards a key needs, and how it gets them.
pub(super) fn splitting() -> String {
    let (doublings, splits) = (MAX_SHARDS.ilog2(), MAX_SHARDS - 1);
    bullets([
        format!(
            "Shards needed: the least power of two that is at least writes a second ÷ {SHARD_WRITES}. A shard splits when \
             DynamoDB throttles it, at {thousand} a second, or later while it is let burst. Planned with {SHARD_WRITES}, a fifth is left for crests; a load just below \
             {thousand} a shard rests at half as many shards, until it is throttled.",
            thousand = Grouped(PARTITION_WRITE_UNITS),
        ),
        format!(
            "{MAX_SHARDS} is the end: a request can ask for all shards in one transaction (`in_one_transaction`), a transaction \
             takes {TRANSACTION_ITEMS} items, and {MAX_SHARDS} is the largest power of two in it.",
        ),
        format!(
            "From 1 to {MAX_SHARDS} shards are {doublings} doublings, {splits} splits of {SPLIT_UNITS} write units and \
             {SPLIT_INDEX_UNITS} of indexes, {units} in all with the entry of shard 0 in `DueIndex`. Each doubling is seen in a batch of the stream first, so the whole way takes {doublings} batches or more.",
            units = splits * (SPLIT_UNITS + SPLIT_INDEX_UNITS) + FIRST_SPLIT_INDEX_UNITS,
        ),
    ])
}

/// Returns what the stream and the aggregator take.
pub(super) fn aggregator() -> String {
    let records = SHARD_WRITES + 1;
    let took = call_ms(records);
    bullets([
        format!(
            "A stream shard brings at most {records} records a second ({SHARD_WRITES} acquires and a refill), {kb} KB. Lambda reads it \
             {STREAM_READS} times a second, 1 MB at most, which would be {readable} records. DynamoDB does not charge Lambda for \
             these reads.",
            kb = Grouped((records * RECORD_BYTES).div_ceil(1_024)),
            readable = Grouped(readable_records()),
        ),
        format!(
            "With a window of {BATCH_WINDOW_SECONDS} s that is one call a second and stream shard. {MEMORY_MB} MB are {share} % of a vCPU, \
             and read {function} records a second if a vCPU is half of a core of the machine of `make bench`. The call takes {took} ms, \
             so the one call that a stream shard may have runs for {busy} % of the time.",
            share = MEMORY_MB * 100 / VCPU_MB,
            function = Grouped(function_records()),
            busy = took.div_ceil(10),
        ),
        format!(
            "A call refills its bucket shard at most once. It copies the shard's usage to a snapshot when the hour ends, to two \
             more when the day ends, and to those of hour and day once in {interim} writes, every {seconds} seconds at {writes} writes a second. A snapshot keeps about \
             {SNAPSHOT_BYTES_PER_SHARD} bytes for each shard of two limits: a write of it costs {one} unit up to {upto} shards, {last} at \
             {MAX_SHARDS}. All snapshots of one entity lie in one partition: of the {thousand} write units a second that it takes, {usage} \
             at {MAX_SHARDS} busy shards within the hour, and {ends} within the {ROLL_SECONDS} seconds or so in which the processes end a day.",
            interim = Grouped(INTERIM_WRITES),
            seconds = INTERIM_WRITES.div_ceil(SHARD_WRITES),
            writes = SHARD_WRITES,
            one = snapshot_units(1),
            upto = largest_with(snapshot_units(1)),
            last = snapshot_units(MAX_SHARDS),
            usage = usage_units_an_hour(MAX_SHARDS, SHARD_WRITES).div_ceil(3_600),
            ends = day_end_units(MAX_SHARDS),
            thousand = Grouped(PARTITION_WRITE_UNITS),
        ),
        format!(
            "Calls at once are stream shards times the parallelization factor ({PARALLELIZATION}): at most {most} for one key, of the \
             {account} that all functions of an account have by default. New accounts have fewer.",
            most = MAX_SHARDS * PARALLELIZATION,
            account = Grouped(ACCOUNT_CALLS),
        ),
    ])
}

/// The largest shard count at which a snapshot's write costs no more than so many units.
fn largest_with(units: u64) -> u64 {
    (0..=MAX_SHARDS.ilog2())
        .map(|k| 1 << k)
        .filter(|shards| snapshot_units(*shards) <= units)
        .max()
        .unwrap_or(1)
}

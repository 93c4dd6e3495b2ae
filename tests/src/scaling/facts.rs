//! What the numbers are computed from, each with its source. Prices are of us-east-1, on demand,
//! arm64.

/// Write units a second that one partition takes, and so one partition key at most.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/warm-throughput-scenarios.html>
pub const PARTITION_WRITE_UNITS: u64 = 1_000;
/// Writes a second that one shard is planned with: four fifths of what its partition takes.
pub const SHARD_WRITES: u64 = PARTITION_WRITE_UNITS * 4 / 5;
/// Write units a second that a table takes by default, warm or not: Service Quotas raises it.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/ServiceQuotas.html>
pub const TABLE_QUOTA: u64 = 40_000;
/// `WarmThroughput` by write of a known peak. With a partition for each [`PARTITION_WRITE_UNITS`] of
/// it, hardly one is full of 64 shards' writes up to [`WARMED_PEAK`].
pub const WARM_FACTOR: u64 = 4;
/// The highest peak that a table of [`TABLE_QUOTA`] can be warmed for.
pub const WARMED_PEAK: u64 = TABLE_QUOTA / WARM_FACTOR;
/// The most shards of one key: what the code has.
#[allow(clippy::as_conversions, reason = "no other conversion is constant")]
pub const MAX_SHARDS: u64 = weirgate_shared::MAX_SHARDS as u64;
/// Write units of the table for a split: three single writes. Tested on billed units, as are the
/// next two.
pub const SPLIT_UNITS: u64 = 3;
/// Write units of indexes for a split: the new half's entries in `GSI2`, `GSI3` and `DueIndex`.
pub const SPLIT_INDEX_UNITS: u64 = 3;
/// The first split of a bucket gives shard 0 an entry in `DueIndex` as well.
pub const FIRST_SPLIT_INDEX_UNITS: u64 = 1;

/// Acquires that share one write where 32 callers of one process want the same bucket: `make
/// bench`, 0.033 units each.
pub const ACQUIRES_PER_SHARED_WRITE: u64 = 30;
/// `BatchSize` of the aggregator's stream in `template.yaml`.
pub const BATCH_RECORDS: u64 = 1_000;
/// `StreamBatchWindowSeconds` of `template.yaml`.
pub const BATCH_WINDOW_SECONDS: u64 = 1;
/// `AggregatorMemoryMb` and `ReconcilerMemoryMb` of `template.yaml`.
pub const MEMORY_MB: u64 = 256;
/// Writes to a shard in one batch from which on the aggregator credits it: `REFILL_WRITES` of the
/// aggregator.
pub const REFILL_WRITES: u64 = 64;
/// Metrics that the alarms of `template.yaml` watch. One of metric math is paid for each that it
/// reads.
pub const ALARM_METRICS: u64 = 19;
/// Windows that usage is copied for: the hour and the day.
pub const WINDOWS: u64 = 2;
/// Writes to a shard after which its usage is copied before the hour is over: `INTERIM` of the
/// aggregator.
pub const INTERIM_WRITES: u64 = 4_096;
/// Records a second that the aggregator reads and plans on one core of the machine of `make bench`,
/// rounded down: that of its slowest load, 1,000 buckets that begin an hour.
pub const CORE_RECORDS: u64 = 120_000;
/// Memory at which a function has one vCPU.
/// <https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html>
pub const VCPU_MB: u64 = 1_769;
/// vCPUs that make one such core; assumed, as a vCPU is one of a core's two threads.
pub const VCPUS_PER_CORE: u64 = 2;
/// What a call of the aggregator takes beside reading: its writes, which run side by side; assumed.
pub const CALL_WRITES_MS: u64 = 10;
/// A usage snapshot without what it keeps of each bucket shard. Tested against what the
/// aggregator's writes cost.
pub const SNAPSHOT_BYTES: u64 = 90;
/// What a usage snapshot keeps of one bucket shard with two limits. Tested likewise.
pub const SNAPSHOT_BYTES_PER_SHARD: u64 = 46;
/// Write units of an acquire with the usage of its hour and day, in thousandths, rounded up, by
/// load: measured on billed units over simulated time by
/// `tests/tests/functions/aggregator/usage_cost.rs`, which holds these numbers.
pub const USAGE_LOADS: [(&str, u64); 4] = [
    ("one bucket at 1/s", 1_001),
    ("a million users at 1/min", 1_023),
    ("800/s on one shard", 1_001),
    ("a bucket used once an hour", 2_084),
];
/// Write units of usage with each write of a bucket that is in use, in thousandths: the rest of
/// the third of `USAGE_LOADS`.
pub const USAGE_MILLI: u64 = USAGE_LOADS[2].1 - 1_000;
/// Write units of an acquire by 32 callers of one process on one bucket, in thousandths, at most:
/// held by `tests/tests/client/acquire/coalesce.rs`.
pub const SHARED_MILLI: u64 = 40;
/// Write units of an acquire from prefetched tokens at 1,000 a second, in thousandths, at most: held
/// by `tests/tests/client/prefetch/blocks.rs`.
pub const PREFETCHED_MILLI: u64 = 20;
/// Write units of an acquire and its adjustment that win every race, in thousandths: held by
/// `tests/tests/client/acquire/cost.rs`, as is the next one.
pub const ESTIMATED_MILLI: u64 = 2_000;
/// Write units of an acquire of a slot and its release while others are held, in thousandths.
pub const SLOT_MILLI: u64 = 2_000;
/// Write units of an LLM call with its usage, in thousandths, rounded up: an acquire and its
/// adjustment, by 50 processes on one bucket. Measured by `make bench`, as is the next one.
pub const CONTENDED_ESTIMATED_MILLI: u64 = 2_200;
/// Write units of a slot's acquire and release with their usage, in thousandths, rounded up: by 50
/// processes on one bucket.
pub const CONTENDED_SLOT_MILLI: u64 = 2_900;
/// Read units of a denial by a rate that is not cached, in thousandths: held by
/// `tests/tests/client/acquire/cost.rs`.
pub const DENIAL_READ_MILLI: u64 = 500;
/// Log of one call: the function's line with its metrics, as `SystemLogLevel` leaves out Lambda's, and 26 bytes
/// that CloudWatch adds. Tested against the line.
pub const LOG_BYTES: u64 = 1_050;

/// Partitions of `DueIndex`, each queried once a minute.
pub const DUE_PARTITIONS: u64 = 16;
/// Write units with which the reconciler notes that it looked at a shard: the item, and its entry
/// of `DueIndex` moved.
pub const LOOK_UNITS: u64 = 3;
/// How long the reconciler takes; assumed.
pub const RECONCILER_MS: u64 = 500;

/// Picodollars for a write unit: $0.625 a million.
/// <https://aws.amazon.com/dynamodb/pricing/on-demand/>
pub const WRITE_UNIT_PRICE: u64 = 625_000;
/// Picodollars for a read unit: $0.125 a million; the same source.
pub const READ_UNIT_PRICE: u64 = 125_000;
/// Picodollars for a call of a function: $0.20 a million. <https://aws.amazon.com/lambda/pricing/>
pub const CALL_PRICE: u64 = 200_000;
/// Picodollars for a GB-second of an arm64 function: $0.0000133334; the same source.
pub const GB_SECOND_PRICE: u64 = 13_333_400;
/// Picodollars for a byte of log: $0.50 a GB. <https://aws.amazon.com/cloudwatch/pricing/>
pub const LOG_BYTE_PRICE: u64 = 500;

/// Picodollars for a call by EventBridge Scheduler: $1.00 a million.
/// <https://aws.amazon.com/eventbridge/pricing/>
pub const SCHEDULE_PRICE: u64 = 1_000_000;
/// Picodollars for a metric that an alarm watches, an hour: $0.10 a month of 730 hours.
/// <https://aws.amazon.com/cloudwatch/pricing/>
pub const ALARM_HOUR_PRICE: u64 = 100_000_000_000 / 730;
/// Metrics in the lines of the functions of an idle stack, which are those of the reconciler.
/// Tested against its line.
pub const IDLE_METRICS: u64 = 2;
/// Metrics in the line of a batch that copies usage, as one does in each hour in which the aggregator
/// is called. Tested likewise. Batches at other times can have more, such as `refilled`.
pub const BUSY_METRICS: u64 = 5;
/// Picodollars for one of them, an hour in which it has a value: $0.30 a month of 730 hours; the
/// same source.
pub const METRIC_HOUR_PRICE: u64 = 300_000_000_000 / 730;

/// Write units of one acquire in zae-limiter 0.17.
pub const PEER_ACQUIRE_UNITS: u64 = 2;
/// Write units with which its aggregator counts 100 records; the same source.
pub const PEER_USAGE_UNITS_PER_100: u64 = 810;

//! Stream batches of a load: what Lambda hands to the aggregator.

use serde_json::{Value, json};
use weirgate::{Clock, FakeClock, Limit, RateLimiter};
use weirgate_shared::EpochMillis;

use crate::Dynamo;

/// When a batch begins: 2026-11-20T18:10:00Z.
pub const BATCH_START: EpochMillis = EpochMillis(1_795_198_200_000);

/// Returns the records of `writes` acquires, in turn on so many buckets that were made before, and
/// the database they come from. They use nearly half of what each bucket holds, so that each is
/// worth a refill. A write happens every 50 ms.
pub async fn batch(buckets: usize, writes: usize) -> (Dynamo, Vec<Value>) {
    let clock = FakeClock::at(BATCH_START);
    let dynamo = Dynamo::new().await.with_clock(clock.clone());
    let limiter =
        RateLimiter::builder("weirgate").table(dynamo.table_by(clock.clone()).await).build().await;
    let limiter = limiter.expect("the settings are good");
    let limits =
        ["rpm", "tpm"].map(|name| Limit::per_minute(name, 1_000_000).expect("a valid limit"));
    let tokens = i64::try_from(420_000 * buckets / writes).expect("few tokens");
    let acquire = async |bucket: usize| {
        let acquire = limiter.acquire(&format!("user-{bucket:04}"), "gpt-4").limits(&limits);
        let granted = acquire.take("rpm", 1).take("tpm", tokens).send().await;
        assert!(granted.is_ok_and(|decision| decision.is_granted()));
    };
    for bucket in 0..buckets {
        acquire(bucket).await;
    }
    drop(dynamo.stream());
    let mut records = vec![];
    for (at, ms) in (0..writes).zip((0..).step_by(50)) {
        clock.skew(ms);
        acquire(at % buckets).await;
        records.extend(stream(&dynamo, clock.now()));
    }
    (dynamo, records)
}

/// Returns the records since the last call, as if all of them had been written at `at`: the
/// embedded database stamps them with the machine's time.
pub fn stream(dynamo: &Dynamo, at: EpochMillis) -> Vec<Value> {
    let mut records = dynamo.stream();
    for record in &mut records {
        record["dynamodb"]["ApproximateCreationDateTime"] = at.0.div_euclid(1_000).into();
    }
    records
}

/// The event of some records, as Lambda sends it.
pub fn event(records: &[Value]) -> String {
    json!({"Records": records}).to_string()
}

/// The aggregator's settings as it is deployed.
pub fn deployed() -> weirgate_aggregator::Config {
    weirgate_aggregator::Config {
        table_name: "weirgate".to_owned(),
        snapshot_ttl_days: 90,
        write_concurrency: 32,
        max_shards: 64,
        refill_writes: weirgate_aggregator::REFILL_WRITES,
        hot_units: weirgate_aggregator::HOT_UNITS,
    }
}

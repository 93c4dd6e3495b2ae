//! A run takes any time between its reads and writes, while others credit, take and let leases
//! expire: it makes no token (I1), and a sample has the time of its plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixtures::sharded::{new_id, shards, split_to};
use fastrand::Rng;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use weirgate_reconciler::{Config, Deadline, reconcile};
use weirgate_shared::write::{REVIEW_INTERVAL, Take, refill};
use weirgate_shared::{
    Asks, Effect, EpochMillis, Limit, MilliTokens, Millis, Shard, ShardIndex, attr, refill_between,
};
use weirgate_store::{ReturnValues, Table, WriteOutcome};
use weirgate_testkit::Dynamo;
use weirgate_testkit::leased::{NOW, full, holding, limit, store};

const LASTS: Duration = Duration::from_secs(150);

/// So large that a full shard is rare: what was used and what is left add up to the entitlement.
fn rate() -> Limit {
    Limit::custom("rps", 4_000, 20, 1_000).unwrap()
}

/// The clock of all processes: [`NOW`] and on, with the runtime's time.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> EpochMillis {
        NOW.plus(self.0.elapsed().into())
    }
}

/// Takes all that a shard has, as a process does that reads it first.
async fn empty(table: &Table, shard: &Shard, now: EpochMillis) {
    let rate = rate();
    let left = shard.balance(&shard.limits["rps"], now);
    if left <= MilliTokens::ZERO {
        return;
    }
    let take = Take {
        asks: Asks::of(Effect::Enforce, [(limit("rps"), left)]),
        acquires: 1,
        ..Take::nothing(&shard.key, std::slice::from_ref(&rate), new_id(), now)
    };
    let take = take.plan(shard, now);
    let done = table.update(&take, ReturnValues::None).await.unwrap();
    assert_eq!(done, WriteOutcome::Applied(None));
}

/// Net consumption of all items of the bucket, live and merged away.
fn consumed(dynamo: &Dynamo) -> MilliTokens {
    let items = dynamo.items();
    let of = |item: &Value| item["b_rps_tc"]["N"].as_str()?.parse().ok().map(MilliTokens);
    let is_own = |item: &&Value| item["PK"]["S"].as_str().is_some_and(|pk| pk.contains("#e-1#"));
    items.iter().filter(is_own).filter_map(of).sum()
}

async fn play(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let (clock, dynamo) = (Clock(Instant::now()), Dynamo::new().await);
    let latency = Duration::from_millis(random.u64(1..5_000).min(2_900));
    let (others, slow) = (dynamo.table().await, dynamo.clone().with_latency(latency).table().await);
    let mut whole = full("e-1", &[rate()]);
    for lease in 0..random.i64(0..4) {
        let expires = NOW.plus(Millis(random.i64(1..60_000)));
        whole = holding(whole, &format!("l{lease}"), expires, &[("rps", 5)]);
    }
    let key = whole.key.clone();
    store(&others, &whole).await;
    // Other buckets are due too, one a page, so the run may come late to this one.
    for other in 0..random.choice([0, 120]).unwrap() {
        let expires = NOW.plus(Millis(random.i64(1..60_000)));
        let other = full(&format!("o-{other}"), &[rate()]);
        store(&others, &holding(other, "l", expires, &[("rps", 1)])).await;
    }
    split_to(&others, &key, 1 << random.u32(0..3), NOW).await;

    // A request arrives one latency after it was sent, at most.
    let late = Arc::new(Mutex::new(vec![]));
    let seen = Arc::clone(&late);
    dynamo.fail_when(move |write| {
        let names = write["ExpressionAttributeNames"].as_object();
        let is_sample =
            names.is_some_and(|names| names.values().any(|name| name == attr::SAMPLE_AT));
        let now = clock.now();
        let values = write["ExpressionAttributeValues"].as_object().into_iter().flatten();
        let instants = values.filter_map(|(_, value)| value["N"].as_str()?.parse::<i64>().ok());
        // The only values of an update near the present are its times.
        let newest = instants.filter(|at| *at <= now.0).max().unwrap_or_default();
        if is_sample && NOW.0 <= newest {
            seen.lock().unwrap().push(now.since(EpochMillis(newest)));
        }
        None
    });

    // Some runs have the bucket to themselves between their read and their write.
    let pause = random.choice([4_000, 20_000]).unwrap();
    let run = tokio::spawn(async move {
        let config = Config { table_name: "weirgate".to_owned(), page: 1 };
        while clock.0.elapsed() < LASTS {
            let deadline = Deadline::after(Duration::from_secs(50));
            let _ = reconcile(&slow, &config, &|| clock.now(), deadline).await;
            sleep(Duration::from_secs(1)).await;
        }
    });
    while clock.0.elapsed() < LASTS {
        sleep(Duration::from_millis(random.u64(100..pause))).await;
        let now = clock.now();
        for shard in shards(&others, &key).await {
            match random.u8(..4) {
                1 => {
                    let used = BTreeMap::from([(limit("rps"), rate().rule().capacity)]);
                    if let Some(credit) = refill(&shard, &used, now) {
                        others.update(&credit, ReturnValues::None).await.unwrap();
                    }
                }
                2 => {}
                _ => empty(&others, &shard, now).await,
            }
        }
        let rule = *rate().rule();
        let entitled = rule.capacity + refill_between(&rule, ShardIndex::UNSPLIT, NOW, now);
        let live = shards(&others, &key).await;
        let left = live.iter().map(|shard| shard.balance(&shard.limits["rps"], now));
        let (used, left) = (consumed(&dynamo), left.sum());
        assert!(used + left <= entitled, "seed {seed} at {now:?}: {used} and {left} of {entitled}");
    }
    run.abort();
    let late = late.lock().unwrap();
    let most = Millis::from(latency * 2);
    assert!(late.iter().all(|late| *late <= most), "seed {seed}: {late:?}");
    assert!(REVIEW_INTERVAL < Millis::from(LASTS), "there were reviews");
}

#[tokio::test(start_paused = true)]
async fn i1_a_run_that_takes_any_time_makes_no_token_and_dates_its_samples() {
    for seed in 0..20 {
        play(seed).await;
    }
}

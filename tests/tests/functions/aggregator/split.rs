//! Hot shards are split: each reason, each bound, once, and never at the cost of what was used.

use crate::fixtures::aggregator;
use std::time::Duration;
use weirgate_tests::{assert_has, fresh};

use crate::fixtures::aggregator::usage::assert_exact;
use crate::fixtures::aggregator::{
    HOUR, bucket, config, counts, deliver, deliver_by, deliver_text, event, held, marked, name,
    new_id, records, run, shards, take, take_hot,
};
use serde_json::{Value, json};
use weirgate_aggregator::parse::{self, After};
use weirgate_aggregator::{Config, HOT_UNITS, Handled};
use weirgate_shared::write::Take;
use weirgate_shared::{
    ActivitySample, Asks, EditId, Effect, EpochMillis, EpochSeconds, Every, Hour, Limit,
    LimitsVersion, MilliTokens, Millis, Pause, Scaling, Shard,
};
use weirgate_store::Table;
use weirgate_testkit::batches;
use weirgate_testkit::leased::{full, holding, load, store};

async fn deliver_with(table: &Table, records: &[Value], config: &Config) -> Handled {
    deliver_by(table, &event(records), config, HOUR, MINUTE).await
}

const MINUTE: Duration = Duration::from_secs(60);

/// Whether a shard is hot is decided as deployed.
fn deployed() -> Config {
    Config { hot_units: HOT_UNITS, ..config() }
}

#[tokio::test(start_paused = true)]
async fn i6_a_marked_shard_is_split_once_and_no_token_is_made_or_lost() {
    let (dynamo, table, records) = marked().await;
    let before = held(&table).await;
    let handled = deliver(&table, &records).await;
    assert_has!(handled.summary, splits: 1, splits_lost: 0, refilled: 0);
    assert_eq!(handled.response.unwrap(), Default::default());
    assert_eq!(counts(&table).await, [(0, 2), (1, 2)]);
    assert_eq!(held(&table).await, before);
    let [lower, upper] = &*shards(&table).await else { panic!("two shards") };
    assert_eq!((lower.scaling.hot_at, upper.scaling.hot_at), (None, None));
    assert!(lower.limits.iter().all(|(name, state)| {
        let other = upper.limits[name].available;
        (state.available.0 - other.0).abs() <= 1 && other > MilliTokens::ZERO
    }));
    let records = [records, aggregator::records(&dynamo)].concat();
    assert_exact(&dynamo, &records);
}

/// A throttle is a partition's, which other keys share; and a record may come late.
#[tokio::test(start_paused = true)]
async fn a_throttled_shard_is_split_if_its_own_writes_are_many_until_now() {
    for (writes, late_ms, since, splits) in [
        (100, 0, 0, 1),
        (99, 0, 0, 0),
        (1, 0, 10_000, 0),
        (100, 3_000, 0, 1),
        (1_000, 13_000, 0, 0),
        (1_000, 13_000, 999, 0),
        (100, 13_000, 1_000, 1),
        (1_000, 86_400_000, 0, 0),
    ] {
        let (dynamo, table) = fresh().await;
        take(&table, &bucket("a", 0), 10).await;
        let written = |more: i64| {
            let mut item = dynamo.items().pop().unwrap();
            let v: i64 = item["v"]["N"].as_str().unwrap().parse().unwrap();
            item["v"]["N"] = (v + more).to_string().into();
            dynamo.put(&item);
        };
        drop(records(&dynamo));
        written(writes - 1);
        take_hot(&table, &bucket("a", 0)).await;
        let batch = batches::stream(&dynamo, HOUR);
        written(since);
        let now = HOUR.plus(Millis(late_ms));
        let handled = deliver_by(&table, &event(&batch), &deployed(), now, MINUTE).await;
        assert_has!(handled.summary, splits: splits, splits_put_off: 0; "{writes} {late_ms} {since}");
    }
}

/// A throttle says something about the writes of its time, not of those days later. Requests of older
/// clients have no time.
#[tokio::test(start_paused = true)]
async fn a_request_for_a_split_ends_by_itself_and_its_shard_is_then_quiet() {
    let asked = |age_ms: i64| json!({"N": (HOUR.0 - age_ms).to_string()});
    for (hot, splits) in [
        (asked(0), 1),
        (asked(-999), 1),
        (asked(60_000), 1),
        (asked(60_001), 0),
        (asked(7 * 86_400_000), 0),
        (json!({"BOOL": true}), 1),
        (json!({"BOOL": false}), 0),
        (json!({"S": "now"}), 0),
    ] {
        let (dynamo, table) = fresh().await;
        take(&table, &bucket("a", 0), 10).await;
        let mut item = dynamo.items().pop().unwrap();
        item["hot"] = hot.clone();
        dynamo.put(&item);
        drop(records(&dynamo));
        let v: i64 = item["v"]["N"].as_str().unwrap().parse().unwrap();
        item["v"]["N"] = (v + 100).to_string().into();
        dynamo.put(&item);
        let batch = batches::stream(&dynamo, HOUR);
        let handled = deliver_with(&table, &batch, &deployed()).await;
        assert_has!(handled.summary, splits: splits, splits_put_off: 0; "{hot}");
    }
}

/// A split raises `v` to the time.
#[tokio::test(start_paused = true)]
async fn a_split_in_a_batch_counts_as_no_writes() {
    let (dynamo, table, first) = marked().await;
    let handled = deliver_text(&table, &event(&first), HOUR.plus(Millis(1_000))).await;
    assert_eq!(handled.summary.splits, 1);
    take_hot(&table, &bucket("a", 0)).await;
    let handled = deliver_with(&table, &records(&dynamo), &deployed()).await;
    assert_eq!(handled.summary.splits, 0);
}

/// Leases stay without writes, so a record of any age shows them.
#[tokio::test(start_paused = true)]
async fn a_late_record_of_heavy_leases_splits_their_shard() {
    for late_ms in [0, 1_000, 13_000, 3_600_000] {
        let (dynamo, table) = fresh().await;
        let mut shard = full("a", &[Limit::concurrent("tpm", 1_000).unwrap()]);
        for id in 0..30 {
            let ends = EpochMillis(HOUR.0 + 86_400_000);
            shard = holding(shard, &format!("lease{id:08}"), ends, &[("tpm", 1)]);
        }
        shard.refilled_at = HOUR;
        store(&table, &shard).await;
        let batch = batches::stream(&dynamo, HOUR);
        let now = HOUR.plus(Millis(late_ms));
        let handled = deliver_by(&table, &event(&batch), &deployed(), now, MINUTE).await;
        assert_has!(handled.summary, splits: 1, splits_put_off: 0; "{late_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_its_leases_make_too_large_is_split_and_again_for_more() {
    let (dynamo, table) = fresh().await;
    let limits =
        [Limit::per_day("rpm", 1_000_000).unwrap(), Limit::concurrent("tpm", 1_000).unwrap()];
    let held = |mut bucket: Shard, from: u32, to: u32| {
        for id in from..to {
            bucket = holding(
                bucket,
                &format!("lease{id:08}"),
                EpochMillis(HOUR.0 + 60_000),
                &[("tpm", 1)],
            );
        }
        bucket
    };
    let mut shard = held(full("a", &limits), 0, 4);
    shard.refilled_at = HOUR;
    let touch = async |shard: &Shard| {
        store(&table, shard).await;
        let batch = records(&dynamo);
        let handled = deliver(&table, &batch).await;
        assert_eq!(handled.summary.undecodable, 0);
        handled.summary.splits
    };
    assert_eq!(touch(&shard).await, 0, "small");
    assert_eq!(touch(&held(shard.clone(), 4, 30)).await, 1);
    let halves = shards(&table).await;
    assert_eq!(counts(&table).await, [(0, 2), (1, 2)]);
    assert_eq!(
        halves[0].scaling.lease_bytes_at_split,
        i64::try_from(halves[0].lease_bytes).unwrap(),
        "measured as the store does"
    );
    // Those it had are no reason any more; as many as fill a write unit's quarter again are.
    let mut lower = halves[0].clone();
    lower.write_seq += 1;
    assert_eq!(touch(&lower).await, 0);
    let mut lower = held(lower, 30, 40);
    lower.write_seq += 1;
    assert_eq!(touch(&lower).await, 1);
    assert_eq!(counts(&table).await, [(0, 4), (1, 2), (2, 4)]);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_has_no_more_shards_than_the_operator_allows() {
    for (max_shards, expected) in
        [(1, vec![(0, 1)]), (2, vec![(0, 2), (1, 2)]), (4, vec![(0, 4), (1, 2), (2, 4)])]
    {
        let (dynamo, table, mut batch) = marked().await;
        let config = Config { max_shards, ..config() };
        let mut all = batch.clone();
        for _ in 0..3 {
            assert!(deliver_with(&table, &batch, &config).await.response.is_ok());
            take_hot(&table, &bucket("a", 0)).await;
            batch = records(&dynamo);
            all.extend(batch.clone());
        }
        assert!(deliver_with(&table, &batch, &config).await.response.is_ok());
        assert_eq!(counts(&table).await, expected);
        all.extend(records(&dynamo));
        assert_exact(&dynamo, &all);
    }
}

#[tokio::test(start_paused = true)]
async fn no_half_has_a_share_below_the_largest_request_of_the_batch() {
    // Of 10: the requests that one write grants, and how many callers share it.
    for (requests, callers, splits) in [(5, 1, 1), (6, 1, 0), (10, 2, 1), (9, 2, 1), (10, 1, 0)] {
        let (dynamo, table) = fresh().await;
        let limits = &[Limit::per_day("rpm", 10).unwrap()];
        let key = &bucket("a", 0);
        store(&table, &Shard { refilled_at: HOUR, ..full("a", limits) }).await;
        let amounts = [(name("rpm"), MilliTokens::from_tokens(requests))];
        let take = Take {
            asks: Asks::of(Effect::Enforce, amounts),
            acquires: callers,
            request_split: true,
            ..Take::nothing(key, limits, new_id(), HOUR)
        };
        run(&table, &take, HOUR).await;
        let batch = records(&dynamo);
        let summary = deliver(&table, &batch).await.summary;
        assert_has!(summary, splits: splits; "{requests} requests of {callers} callers");
    }
}

/// A split plans from an image. What it lacked there, the new half would lack.
#[tokio::test(start_paused = true)]
async fn an_image_is_the_shard_but_for_its_leases() {
    let (dynamo, table) = fresh().await;
    let limits = [
        Limit::per_minute("rpm", 100).unwrap(),
        Limit::quota("day", 100, Every::day()).unwrap(),
        Limit::concurrent("slots", 8).unwrap(),
    ];
    let held = holding(full("a", &limits), "l", HOUR, &[("slots", 1)]);
    // Without `..`, so that a new field gets a value too.
    let shard = Shard {
        key: bucket("a", 1),
        shard_count: 4,
        refilled_at: HOUR,
        write_seq: 23,
        birth_seq: 19,
        hour: Hour::of(HOUR),
        acquires: held.acquires,
        limits: held.limits,
        departed: held.departed,
        config_version: Some(LimitsVersion { number: 5, boundary: HOUR }),
        limits_changed_at: Some(HOUR),
        ttl: Some(EpochSeconds(9)),
        leases: held.leases,
        due_at: Some(HOUR),
        last_write_id: Some(new_id()),
        edit: Some(EditId(11)),
        pause: Some(Pause { until: HOUR, lasts: Millis(7) }),
        scaling: Scaling {
            hot_at: Some(HOUR),
            sample: Some(ActivitySample { at: HOUR, write_seq: 3 }),
            min_shards: 2,
            lease_bytes_at_split: 13,
        },
        escrow: None,
        size_bytes: 0,
        lease_bytes: 0,
    };
    store(&table, &shard).await;
    let records = parse::records(&event(&records(&dynamo))).unwrap().records;
    let After::Live(image) = &records[0].after else { panic!("{records:?}") };
    let read = load(&table, &shard.key).await.unwrap();
    let seen = Shard {
        leases: read.leases.clone(),
        size_bytes: read.size_bytes,
        lease_bytes: read.lease_bytes,
        ..(**image).clone()
    };
    assert_eq!(seen, read);
}

//! Splits at the ends of what may be: a shard that has nothing free to divide, and one that was hot
//! long ago.

use serde_json::Value;
use tokio::time::Instant;
use weirgate_aggregator::{Config, HOT_UNITS, Invocation, handle};
use weirgate_shared::write::REVIEW_INTERVAL;
use weirgate_shared::{BucketKey, EpochMillis};
use weirgate_tests::aggregator;
use weirgate_tests::aggregator::{HOUR, bucket, config, counts, event, held, marked};
use weirgate_tests::fleet;
use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::{Fleet, denied, leased, pass, secs, slots, tokens};
use weirgate_tests::sharded;

/// The new half has no slot then. Those that come back stay with the shard they were taken from,
/// and each can be had.
#[tokio::test(start_paused = true)]
async fn i2_every_slot_of_a_shard_split_while_all_were_held_comes_back() {
    let fleet = Fleet::new().await;
    let (table, limits) = (fleet.dynamo.table().await, [slots(4)]);
    let limiter = fleet.limiter().await;
    let mut grants = vec![];
    for _ in 0..4 {
        grants.push(leased(&limiter, &limits, &[("slots", 1)], secs(600)).await);
    }
    split(&limiter, &limits, 2).await;
    let key = BucketKey::parse(fleet::PK).unwrap();
    let free = async || {
        sharded::shards(&table, &key).await.into_iter().map(|shard| shard.limits["slots"].available)
    };
    assert!(free().await.all(|slots| slots == tokens(0)), "all are held in the old half");
    denied(&fleet.limiter().await, &limits, &[("slots", 1)]).await;
    for grant in grants {
        let _ = grant.release().await.unwrap();
        pass(secs(1)).await;
    }
    assert_eq!(free().await.fold(tokens(0), |sum, slots| sum + slots), tokens(4));
    // By processes that know nothing of it, one by one, and then all at once.
    let mut held = vec![];
    for _ in 0..4 {
        held.push(leased(&fleet.limiter().await, &limits, &[("slots", 1)], secs(600)).await);
    }
    denied(&fleet.limiter().await, &limits, &[("slots", 1)]).await;
    for grant in held {
        let _ = grant.release().await.unwrap();
    }
    let _ = leased(&fleet.limiter().await, &limits, &[("slots", 4)], secs(600)).await;
}

/// The stream was late, or began again at its horizon. The split of a shard that is still hot is as
/// exact as any, and the reconciler takes it back.
#[tokio::test(start_paused = true)]
async fn i6_a_late_record_splits_a_shard_once_if_it_was_hot_until_now() {
    for (hours, is_still_hot) in [1, 6, 23].map(|hours| [(hours, true), (hours, false)]).concat() {
        let (dynamo, table, records) = marked().await;
        let before = held(&table).await;
        let now = aggregator::later(hours);
        // Sequence numbers show the writes: those of the batch, and those since.
        let hot = |ms: i64| i64::try_from(records.len()).unwrap() + HOT_UNITS * ms / 1_000;
        let mut late = records.clone();
        for record in &mut late[1..] {
            let image = &mut record["dynamodb"]["NewImage"];
            image["v"]["N"] = (v(image) + hot(1_000)).to_string().into();
        }
        let mut item = dynamo.items().pop().unwrap();
        let since = if is_still_hot { now.since(HOUR).0 } else { 60_000 };
        item["v"]["N"] = (v(&item) + hot(1_000 + since)).to_string().into();
        dynamo.put(&item);
        drop(dynamo.stream());
        let deployed = Config { hot_units: HOT_UNITS, ..config() };
        let deliver = async |records: &[Value]| {
            let invocation = Invocation { now, deadline: Instant::now() + secs(60) };
            let handled = handle(&event(records), &table, &deployed, invocation).await;
            handled.unwrap().summary.splits
        };
        let splits = deliver(&late).await;
        if !is_still_hot {
            assert_eq!((splits, counts(&table).await), (0, vec![(0, 1)]), "{hours}");
            continue;
        }
        assert_eq!((splits, counts(&table).await), (1, vec![(0, 2), (1, 2)]));
        // The same records again, and those of the split.
        let all = [late, aggregator::records(&dynamo)].concat();
        assert_eq!(deliver(&all).await, 0);
        let looked = EpochMillis(now.0 + REVIEW_INTERVAL.0);
        assert_eq!(sharded::run(&table, looked).await.shards_merged, 1);
        assert_eq!(sharded::counts(&table, &bucket("a", 0)).await, [(0, 1)]);
        let after = held(&table).await;
        assert!(
            after.iter().zip(&before).all(|(after, before)| after >= before),
            "{before:?} at {HOUR:?}, {after:?}"
        );
    }
}

fn v(item: &Value) -> i64 {
    item["v"]["N"].as_str().unwrap().parse().unwrap()
}

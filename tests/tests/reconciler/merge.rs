//! Cold shards become one again: when, how far, and never at the cost of a token, a lease or an
//! operator's wish.

use crate::fixtures::sharded;
use crate::fixtures::sharded::{
    DUE, change, counts, is_complete, later, lease, limits, run, sharded, shards, split_to, total,
};
use weirgate_shared::EpochMillis;
use weirgate_shared::write::{REST_INTERVAL, REVIEW_INTERVAL, update_min_shards};
use weirgate_store::{ReturnValues, WriteOutcome};
use weirgate_testkit::Dynamo;
use weirgate_testkit::leased::{NOW, full, holding, key, limit, load, store, tokens};

#[tokio::test]
async fn i6_a_cold_bucket_goes_to_one_shard_in_one_run_with_all_its_tokens() {
    for count in [2, 16, 64] {
        let dynamo = Dynamo::new().await;
        let table = dynamo.table().await;
        let key = sharded(&table, count).await;
        let taken = tokens(7);
        change(&table, &key, count - 1, |shard| {
            let quota = shard.limits.get_mut("quota").unwrap();
            (quota.available, quota.consumed) = (quota.available - taken, taken.into());
        })
        .await;
        assert_eq!(run(&table, later(DUE, -1)).await.buckets_seen, 0, "not yet");
        let before = (
            total(&table, &key, "quota", DUE).await,
            total(&table, &key, "slots", DUE).await,
        );

        let _ = dynamo.take_operations();
        let summary = run(&table, DUE).await;
        assert_eq!(summary.shards_merged, u64::from(count - 1));
        assert_eq!((summary.lost_races, summary.left_over), (0, 0));
        let operations = dynamo.take_operations();
        assert_eq!(operations["TransactWriteItems"], 1, "all shards at once");
        assert!(!operations.contains_key("UpdateItem"), "{operations:?}");

        let [whole] = &*shards(&table, &key).await else {
            panic!("one shard")
        };
        assert_eq!(
            (
                whole.shard_count,
                whole.due_at,
                whole.scaling.sample.unwrap().at
            ),
            (1, None, DUE)
        );
        assert_eq!(
            (
                total(&table, &key, "quota", DUE).await,
                total(&table, &key, "slots", DUE).await
            ),
            before
        );
        assert_eq!(
            whole.limits["quota"].available,
            limits()[0].rule().capacity - taken
        );
        let _ = dynamo.take_operations();
        let items = dynamo.items();
        assert_eq!(
            run(&table, later(DUE, 60_000)).await.buckets_seen,
            0,
            "a whole bucket is due no more"
        );
        assert_eq!(dynamo.items(), items);
    }
}

#[tokio::test]
async fn shards_are_merged_below_a_quarter_of_what_one_partition_takes_and_not_at_it() {
    // 250 units a second for 60 seconds are 15,000.
    for (lower, upper, kb, merged) in [
        (7_500, 7_499, 0, 1),
        (7_500, 7_500, 0, 0),
        (0, 15_000, 0, 0),
        (0, 14_999, 0, 1),
        (3_750, 3_750, 1, 0),
    ] {
        let dynamo = Dynamo::new().await;
        let table = dynamo.table().await;
        let key = sharded(&table, 2).await;
        for (shard, writes) in [(0, lower), (1, upper)] {
            change(&table, &key, shard, |shard| {
                shard.write_seq = shard.scaling.sample.unwrap().write_seq + writes
            })
            .await;
            let mut item = dynamo.item(&key.with_shard(shard).item_key().pk, "#STATE");
            item["note"] = serde_json::json!({"S": "x".repeat(kb * 1024)});
            dynamo.put(&item);
        }
        let summary = run(&table, DUE).await;
        assert_eq!(
            summary.shards_merged, merged,
            "{lower} + {upper} writes of {kb} KB more"
        );
        if merged == 0 {
            let looked = shards(&table, &key).await;
            for shard in &looked {
                let look = shard.scaling.sample.unwrap();
                // One that rests waits for the other.
                let rests = [lower, upper][usize::try_from(shard.key.shard).unwrap()] == 0;
                let due = DUE.plus(if rests {
                    REST_INTERVAL
                } else {
                    REVIEW_INTERVAL
                });
                assert_eq!(
                    (look.at, look.write_seq, shard.due_at),
                    (DUE, shard.write_seq, Some(due))
                );
            }
            assert_eq!(
                run(&table, DUE).await.buckets_seen,
                0,
                "no merge is in the way of others"
            );
            // Nothing was written since.
            assert_eq!(
                run(&table, DUE.plus(REVIEW_INTERVAL)).await.shards_merged,
                1
            );
        }
    }
}

#[tokio::test]
async fn a_bucket_keeps_the_shards_that_an_operator_asked_for() {
    for (asked, left) in [(2, 2), (4, 4), (8, 8), (3, 4)] {
        let dynamo = Dynamo::new().await;
        let table = dynamo.table().await;
        let key = sharded(&table, 8).await;
        change(&table, &key, 5, |shard| shard.scaling.min_shards = asked).await;
        run(&table, DUE).await;
        let shards = shards(&table, &key).await;
        // Only the half that knows of it keeps it.
        let counts: Vec<_> = shards
            .iter()
            .map(|shard| (shard.key.shard, shard.shard_count))
            .collect();
        let of_five = counts
            .iter()
            .find(|(index, count)| 5 % count == *index)
            .unwrap();
        assert_eq!(of_five.1, left, "{counts:?}");
        assert!(is_complete(&table, &key).await);
    }
}

#[tokio::test]
async fn an_idle_split_bucket_is_left_alone_and_works_again_when_used() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let key = sharded(&table, 2).await;
    for shard in [0, 1] {
        change(&table, &key, shard, |shard| shard.scaling.min_shards = 2).await;
    }
    let mut written = vec![];
    for minute in 0..4 {
        let _ = dynamo.take_operations();
        run(&table, later(DUE, minute * 60_000)).await;
        let operations = dynamo.take_operations();
        written.push(operations.get("UpdateItem").copied().unwrap_or_default());
    }
    assert_eq!(
        written,
        [2, 2, 0, 0],
        "a look, another that finds it at rest, and nothing more for a day"
    );
    // A caller holds a lease in it, which ends; and the operator asks for it no more.
    let at = later(DUE, 240_000);
    lease(&table, &key, 1, "a", later(at, 1_000), at).await;
    assert_eq!(run(&table, later(at, 60_000)).await.leases_restored, 1);
    for shard in shards(&table, &key).await {
        let kept = update_min_shards(&shard, 0, later(at, 60_000));
        assert!(matches!(
            table.update(&kept, ReturnValues::None).await.unwrap(),
            WriteOutcome::Applied(_)
        ));
    }
    assert_eq!(run(&table, later(at, 120_000)).await.shards_merged, 1);
}

const LIVE: EpochMillis = EpochMillis(DUE.0 + 1_000);

#[tokio::test]
async fn leases_of_a_shard_that_goes_keep_it_and_those_of_the_one_that_stays_do_not() {
    for (shard, merged) in [(0, 1), (1, 0)] {
        let dynamo = Dynamo::new().await;
        let table = dynamo.table().await;
        let key = sharded(&table, 2).await;
        let held = holding(
            load(&table, &key.with_shard(shard)).await.unwrap(),
            "a",
            LIVE,
            &[("slots", 3), ("quota", 5)],
        );
        store(&table, &held).await;
        let summary = run(&table, DUE).await;
        assert_eq!(
            (summary.shards_merged, summary.leases_restored),
            (merged, 0)
        );
        assert_eq!(total(&table, &key, "slots", DUE).await, tokens(64));
        let keeper = load(&table, &key.with_shard(shard)).await.unwrap();
        assert_eq!(
            (keeper.leases, keeper.due_at),
            (held.leases, Some(LIVE)),
            "due for its lease"
        );
        // When it has expired, by the next review at the latest.
        for at in [later(DUE, 60_000), later(DUE, 120_000)] {
            run(&table, at).await;
        }
        let [whole] = &*shards(&table, &key).await else {
            panic!("one shard")
        };
        assert_eq!(
            (
                whole.limits["slots"].available,
                whole.limits["quota"].available
            ),
            (tokens(64), tokens(1_600))
        );
    }
}

#[tokio::test]
async fn i3_what_an_expired_lease_did_not_use_is_taken_off_the_usage_before_its_shard_goes() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let key = sharded(&table, 4).await;
    for shard in 0..4 {
        let bucket = load(&table, &key.with_shard(shard)).await.unwrap();
        store(
            &table,
            &holding(bucket, "a", later(DUE, -5), &[("slots", 1), ("quota", 2)]),
        )
        .await;
    }
    let summary = run(&table, DUE).await;
    assert_eq!((summary.leases_restored, summary.shards_merged), (4, 0));
    assert_eq!(summary.tokens_restored[&limit("quota")], tokens(8));
    for shard in shards(&table, &key).await {
        assert_eq!(
            (shard.limits["quota"].consumed, shard.due_at),
            (tokens(0).into(), Some(DUE.plus(REVIEW_INTERVAL))),
            "in an image of its own"
        );
    }
    assert_eq!(
        run(&table, DUE.plus(REVIEW_INTERVAL)).await.shards_merged,
        3
    );
}

#[tokio::test]
async fn a_shard_marked_for_a_split_is_not_merged_until_the_mark_ends() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let key = sharded(&table, 4).await;
    change(&table, &key, 3, |shard| shard.scaling.is_hot = true).await;
    assert_eq!(run(&table, DUE).await.shards_merged, 1, "the other two");
    assert_eq!(counts(&table, &key).await, [(0, 2), (1, 4), (3, 4)]);
    assert!(
        shards(&table, &key)
            .await
            .iter()
            .all(|shard| !shard.scaling.is_hot)
    );
    assert_eq!(
        run(&table, DUE.plus(REVIEW_INTERVAL)).await.shards_merged,
        2
    );
    assert_eq!(counts(&table, &key).await, [(0, 1)]);
}

#[tokio::test]
async fn shards_that_were_looked_at_less_than_a_review_ago_stay() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let key = sharded(&table, 2).await;
    // One half was split a second ago; the other one is due.
    let upper = load(&table, &key.with_shard(1)).await.unwrap();
    sharded::split_one(&table, &upper, later(DUE, -1_000)).await;
    assert_eq!(run(&table, DUE).await.shards_merged, 0);
    assert_eq!(counts(&table, &key).await, [(0, 2), (1, 4), (3, 4)]);
    // The others come into step, so that they are cold together.
    assert_eq!(run(&table, later(DUE, 59_000)).await.shards_merged, 1);
    assert_eq!(counts(&table, &key).await, [(0, 2), (1, 2)]);
    let before = counts(&table, &key).await;
    run(&table, later(DUE, 60_000)).await;
    assert_eq!(counts(&table, &key).await, before, "looked at a second ago");
    run(&table, later(DUE, 120_000)).await;
    assert_eq!(counts(&table, &key).await, [(0, 1)]);
}

#[tokio::test]
async fn shards_that_would_be_too_large_together_are_not_merged() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let mut bucket = full("e-1", &limits());
    for id in 0..25 {
        bucket = holding(
            bucket,
            &format!("lease{id:08}"),
            later(DUE, 3_600_000),
            &[("slots", 1)],
        );
    }
    store(&table, &bucket).await;
    let key = key("e-1");
    split_to(&table, &key, 2, NOW).await;
    assert_eq!(
        run(&table, DUE).await.shards_merged,
        0,
        "it would be split again at once"
    );
    change(&table, &key, 0, |shard| {
        shard.leases = Some(Default::default())
    })
    .await;
    assert_eq!(
        run(&table, DUE.plus(REVIEW_INTERVAL)).await.shards_merged,
        1
    );
}

#[tokio::test]
async fn a_bucket_is_reviewed_once_however_many_of_its_shards_are_due() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let key = sharded(&table, 16).await;
    for shard in 0..16 {
        change(&table, &key, shard, |shard| shard.write_seq += 1_000_000).await;
    }
    let _ = dynamo.take_operations();
    let summary = run(&table, DUE).await;
    assert_eq!((summary.lost_races, summary.left_over), (0, 0));
    let operations = dynamo.take_operations();
    assert_eq!(operations["UpdateItem"], 16, "one look each");
    assert!(
        operations["BatchGetItem"] <= 1 + 16 && !operations.contains_key("TransactWriteItems"),
        "{operations:?}"
    );
}

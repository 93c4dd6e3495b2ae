//! Manually deleted shards: the bucket becomes complete again, and the repair creates no slot.

use crate::fixtures::sharded::with_shards;
use std::collections::BTreeMap;
use weirgate_tests::assert_has;

use crate::fixtures::sharded::{
    DUE, both, by_another, change, counts, is_complete, later, lease, limits, new_id, run, shards,
    split_one, take_one, total, transact,
};
use serde_json::{Value, json};
use weirgate_reconciler::{Depth, review};
use weirgate_shared::write::{REVIEW_INTERVAL, Take};
use weirgate_shared::{
    Asks, BucketKey, Effect, EpochMillis, Limit, LimitName, MAX_PERIOD_MS, MilliTokens, Shard,
    switches_key,
};
use weirgate_store::{ReturnValues, Table, TransactOutcome, WriteOutcome};
use weirgate_testkit::Dynamo;
use weirgate_testkit::leased::{NOW, load, tokens};

fn delete(dynamo: &Dynamo, key: &BucketKey, shard: u32) {
    let key = key.with_shard(shard).item_key();
    dynamo.delete(&key.pk, &key.sk);
}

/// Reviews until nothing changes any more, a run a minute.
async fn run_until_still(table: &Table, key: &BucketKey, from: EpochMillis) -> EpochMillis {
    let mut at = from;
    for _ in 0..12 {
        run(table, at).await;
        at = at.plus(REVIEW_INTERVAL);
        assert!(total(table, key, "slots", at).await <= tokens(64), "a slot was made");
    }
    at
}

#[tokio::test]
async fn a_missing_shard_is_made_again_with_the_slots_that_are_missing() {
    for (count, gone) in [
        (2, vec![1]),
        (2, vec![0]),
        (4, vec![0]),
        (4, vec![1]),
        (4, vec![3]),
        (4, vec![1, 3]),
        (8, vec![2, 5, 7]),
    ] {
        let (dynamo, table, key) = with_shards(count).await;
        // Warm, so that nothing is merged yet.
        for shard in 0..count {
            change(&table, &key, shard, |shard| shard.write_seq += 1_000_000).await;
        }
        let before: BTreeMap<_, _> = shards(&table, &key)
            .await
            .iter()
            .map(|shard| (shard.key.shard, shard.write_seq))
            .collect();
        for shard in &gone {
            delete(&dynamo, &key, *shard);
        }
        let rates = total(&table, &key, "quota", DUE).await;
        let summary = run(&table, DUE).await;
        assert_eq!(summary.lost_races + summary.left_over, 0, "{gone:?}");
        // Of a half that is missing whole, one shard is made.
        let expected = if gone == [1, 3] { 1 } else { gone.len() };
        assert_has!(summary, shards_repaired: u64::try_from(expected).unwrap(); "{count} {gone:?}");
        assert!(is_complete(&table, &key).await, "{:?}", counts(&table, &key).await);
        assert_eq!(total(&table, &key, "slots", DUE).await, tokens(64), "{count} {gone:?}");
        assert_eq!(total(&table, &key, "quota", DUE).await, rates, "its tokens are unknown");
        for shard in shards(&table, &key).await {
            assert_eq!(shard.limits["slots"].available.0 % 1000, 0, "whole slots");
            assert!(shard.due_at.is_some());
            if gone.contains(&shard.key.shard) {
                assert!(
                    shard.birth_seq > before[&shard.key.shard],
                    "a new life, above the former one"
                );
            }
        }
        run_until_still(&table, &key, DUE.plus(REVIEW_INTERVAL)).await;
        assert_eq!(counts(&table, &key).await, [(0, 1)], "{count} {gone:?}");
        assert_eq!(total(&table, &key, "slots", DUE).await, tokens(64));
    }
}

#[tokio::test]
async fn a_shard_made_again_beside_older_limits_makes_no_slot_when_they_change() {
    for (old, new) in [(64, 128), (64, 16)] {
        let (dynamo, table, key) = with_shards(4).await;
        assert_eq!(limits()[1].rule().capacity, tokens(old));
        let quota = Limit::custom("quota", 1_600, 1, MAX_PERIOD_MS).unwrap();
        let limits = [quota, Limit::concurrent("slots", new).unwrap()];
        let learn = async |shard: u32, at: EpochMillis| {
            let key = key.with_shard(shard);
            let view = load(&table, &key).await.unwrap();
            let amounts = [(LimitName::new("quota").unwrap(), MilliTokens(0))];
            let take = Take {
                asks: Asks::of(Effect::Enforce, amounts),
                acquires: 1,
                ..Take::nothing(&key, &limits, new_id(), at)
            };
            let done = table.update(&take.plan(&view, at), ReturnValues::None).await.unwrap();
            assert_eq!(done, WriteOutcome::Applied(None));
        };
        learn(3, NOW).await;
        delete(&dynamo, &key, 1);
        run(&table, DUE).await;
        for shard in 0..4 {
            if load(&table, &key.with_shard(shard)).await.is_some() {
                learn(shard, later(DUE, 1)).await;
            }
        }
        assert_eq!(total(&table, &key, "slots", DUE).await, tokens(new), "from {old}");
    }
}

/// What a client does that knows nothing of other shards and finds no shard 0.
async fn create(table: &Table, key: &BucketKey, at: EpochMillis) {
    let (limits, needs) = (limits(), [(LimitName::new("quota").unwrap(), tokens(1))]);
    let take = Take {
        asks: Asks::of(Effect::Enforce, needs),
        acquires: 1,
        ..Take::nothing(key, &limits, new_id(), at)
    };
    assert_eq!(
        table.update(&take.create(at), ReturnValues::None).await.unwrap(),
        WriteOutcome::Applied(None)
    );
}

#[tokio::test]
async fn a_recreated_shard_zero_replaces_the_whole_bucket() {
    let (dynamo, table, key) = with_shards(8).await;
    let end = later(DUE, 90_000);
    lease(&table, &key, 5, "live", end, NOW).await;
    delete(&dynamo, &key, 0);
    create(&table, &key, later(NOW, 5)).await;
    let summary = run(&table, DUE).await;
    assert_has!(summary, shards_repaired: 6, lost_races: 0; "all but the one that holds a lease");
    assert_eq!(counts(&table, &key).await, [(0, 1), (5, 8)]);
    assert_has!(
        load(&table, &key.with_shard(5)).await.unwrap(), due_at: Some(DUE.plus(REVIEW_INTERVAL));
        "not in the way of others"
    );
    // The lease can still be given back; when it has ended, its shard goes too.
    run(&table, DUE.plus(REVIEW_INTERVAL)).await;
    assert_eq!(counts(&table, &key).await, [(0, 1), (5, 8)]);
    for at in [end, end.plus(REVIEW_INTERVAL)] {
        run(&table, at).await;
    }
    let [whole] = &*shards(&table, &key).await else { panic!("one shard") };
    assert_eq!(whole.shard_count, 1);
    assert_eq!(whole.limits["slots"].available, tokens(64));
    assert_eq!(whole.limits["quota"].available, tokens(1_599));
    assert_eq!(run(&table, later(end, 3_600_000)).await.buckets_seen, 0);
}

/// Writes by processes with views of the old shards continue; that does not keep the shards.
#[tokio::test]
async fn shards_that_a_new_first_one_covers_are_removed_while_they_are_in_use() {
    let (dynamo, table, key) = with_shards(2).await;
    delete(&dynamo, &key, 0);
    create(&table, &key, later(NOW, 5)).await;
    let (other, busy) = (dynamo.clone(), key.with_shard(1));
    dynamo.fail_transactions(move |_| {
        by_another(&other, &busy, take_one);
        None
    });
    let summary = run(&table, DUE).await;
    assert_has!(summary, shards_repaired: 1, lost_races: 0);
    assert_eq!(counts(&table, &key).await, [(0, 1)]);
}

/// What a review of `seen` would do, done now: how many of its transactions were applied.
async fn apply(table: &Table, seen: &[Shard], at: EpochMillis) -> (usize, usize) {
    let planned = review(seen, true, Depth::All, at, new_id);
    let (mut sent, mut applied) = (0, 0);
    let repairs = planned.fill.iter().chain(&planned.repairs);
    for change in repairs.chain(&planned.merges) {
        sent += 1;
        applied += usize::from(transact(table, &change.actions).await == TransactOutcome::Applied);
    }
    (sent, applied)
}

#[tokio::test]
async fn what_seems_broken_as_it_was_read_in_two_moments_stays_as_it_is() {
    // Before and after one change by others; each shard is seen as it was at one of the two
    // moments.
    for is_merge in [false, true] {
        let (dynamo, table, key) = with_shards(4).await;
        let before = shards(&table, &key).await;
        if is_merge {
            run(&table, DUE).await;
            assert_eq!(counts(&table, &key).await, [(0, 1)]);
        } else {
            split_one(&table, &before[1], DUE).await;
        }
        let after = shards(&table, &key).await;
        let items = dynamo.items();
        let mut is_tried = 0;
        for torn in 1..31_u32 {
            let seen: Vec<_> = (0..8)
                .filter_map(|shard| {
                    let moment = if torn >> shard & 1 == 1 { &after } else { &before };
                    moment.iter().find(|bucket| bucket.key.shard == shard).cloned()
                })
                .collect();
            if seen == after || seen == before {
                continue;
            }
            // What is cold may be merged: those of a moment that has passed are not what they were.
            let (sent, applied) = apply(&table, &seen, DUE).await;
            is_tried += sent;
            if is_merge {
                assert_eq!(applied, 0, "{torn:b}");
                assert_eq!(dynamo.items(), items, "{torn:b}");
            } else {
                assert!(is_complete(&table, &key).await, "{torn:b}");
                assert_eq!(both(&table, &key, DUE).await, (1_600, 64), "{torn:b}");
            }
        }
        assert!(is_tried > 5, "some of them did seem broken");
    }
}

#[tokio::test]
async fn a_bucket_broken_in_any_way_becomes_whole_and_has_no_slot_too_many() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (dynamo, table, key) = with_shards(1).await;
        for id in 0..random.u32(0..20) {
            lease(&table, &key, 0, &format!("l{id}"), later(NOW, random.i64(10_000..200_000)), NOW)
                .await;
        }
        for _ in 0..random.u32(1..9) {
            let shards = shards(&table, &key).await;
            let shard = &shards[random.usize(..shards.len())];
            if shard.shard_count < 64 {
                split_one(&table, shard, NOW).await;
            }
        }
        for shard in shards(&table, &key).await {
            if random.u8(..3) == 0 {
                delete(&dynamo, &key, shard.key.shard);
            }
        }
        let is_made_anew = load(&table, &key).await.is_none() && random.bool();
        if is_made_anew {
            create(&table, &key, later(NOW, 1)).await;
        }
        let left = shards(&table, &key).await;
        let mut at = DUE;
        for _ in 0..10 {
            run(&table, at).await;
            at = at.plus(REVIEW_INTERVAL);
            if !is_made_anew {
                assert!(total(&table, &key, "slots", at).await <= tokens(64), "seed {seed}");
            }
        }
        if left.is_empty() {
            continue;
        }
        assert_eq!(counts(&table, &key).await, [(0, 1)], "seed {seed}");
        assert_eq!(total(&table, &key, "slots", at).await, tokens(64), "seed {seed}");
        assert!(total(&table, &key, "quota", at).await <= tokens(1_600), "seed {seed}");
    }
}

/// Nothing is granted while everything is stopped, and a purge deletes shard by shard.
#[tokio::test]
async fn a_namespace_gets_nothing_back_while_everything_is_stopped() {
    let exempt = json!({"system": {"S": "stopped"}, "resource#gpt-4": {"S": "exempt"}});
    let started = json!({"resource#gpt-4": {"S": "stopped"}});
    let cases = [vec![0], vec![1], vec![0, 2], vec![0, 2, 3]].map(|gone| (gone, &started));
    for (gone, next) in cases.into_iter().chain([(vec![1], &exempt)]) {
        let (dynamo, table, key) = with_shards(4).await;
        lease(&table, &key, 1, "live", later(DUE, 600_000), NOW).await;
        for shard in 0..4 {
            // Warm, so that nothing is merged.
            change(&table, &key, shard, |shard| shard.write_seq += 1_000_000_000).await;
        }
        for shard in &gone {
            delete(&dynamo, &key, *shard);
        }
        let switches = switches_key(&key.namespace);
        let with = |levels: Value| {
            dynamo.put(&json!({
                "PK": {"S": switches.pk}, "SK": {"S": switches.sk}, "switches": {"M": levels},
            }));
        };
        with(json!({"system": {"S": "stopped"}, "resource#gpt-4": {"S": "stopped"}}));
        let seen = dynamo.items();
        let preview = weirgate_reconciler::preview(&table, DUE, 9).await.unwrap();
        let works = preview.due.iter().filter_map(|due| due.work.as_ref().ok());
        assert_eq!(works.map(|work| work.reshaped.repaired).sum::<usize>(), 0);
        assert_eq!(dynamo.items().len(), seen.len());
        let mut at = DUE;
        for _ in 0..3 {
            assert_has!(run(&table, at).await, shards_repaired: 0, left_over: 0; "{gone:?}");
            at = at.plus(REVIEW_INTERVAL);
        }
        let left = counts(&table, &key).await;
        let is_back = left.iter().any(|(number, _)| gone.contains(number));
        assert!(!is_back, "{gone:?}: {left:?}");
        // Due as a shard in use is.
        change(&table, &key, left[0].0, |shard| shard.due_at = Some(at)).await;
        with(next.clone());
        assert!(run(&table, at).await.shards_repaired > 0, "{gone:?} {next}");
        assert!(is_complete(&table, &key).await, "{gone:?}");
    }
}

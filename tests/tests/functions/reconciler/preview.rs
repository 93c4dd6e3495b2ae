//! What a run would do is what the next run does, and asking writes nothing.

use serde_json::json;
use weirgate_reconciler::{Preview, preview};
use weirgate_shared::EpochMillis;
use weirgate_store::Table;
use weirgate_testkit::Dynamo;
use weirgate_testkit::leased::{NOW, full, holding, key, store, tokens};
use weirgate_tests::fresh;

use crate::fixtures::sharded::{DUE, change, hold, later, lease, limits, run, sharded};

fn count(number: usize) -> u64 {
    number.try_into().expect("it is small")
}

/// Shows what a run at `now` would do, runs, and holds one against the other.
async fn shown_and_done(dynamo: &Dynamo, table: &Table, now: EpochMillis) -> Preview {
    let before = dynamo.items();
    let shown = preview(table, now, 1000).await.expect("DynamoDB works");
    assert_eq!(dynamo.items(), before, "a preview writes nothing");
    let done = run(table, now).await;

    let work: Vec<_> = shown.due.iter().flat_map(|due| &due.work).collect();
    let leases: usize = work.iter().map(|work| work.released.leases).sum();
    let merged: usize = work.iter().map(|work| work.reshaped.merged).sum();
    let repaired: usize = work.iter().map(|work| work.reshaped.repaired).sum();
    assert_eq!(count(leases), done.leases_restored);
    assert_eq!(count(merged), done.shards_merged);
    assert_eq!(count(repaired), done.shards_repaired);
    assert_eq!(count(shown.due.len() - work.len()), done.undecodable);
    // The review of one shard can end the others' being due before the run comes to them.
    assert!(count(shown.due.len()) >= done.buckets_seen);
    for (limit, restored) in &done.tokens_restored {
        let returned = work.iter().flat_map(|work| work.released.tokens.get(limit));
        assert_eq!(returned.copied().sum::<weirgate_shared::MilliTokens>(), *restored, "{limit}");
    }
    let again = preview(table, now, 1000).await.expect("DynamoDB works");
    assert_eq!(again.due, [], "the run has done it all");
    shown
}

#[tokio::test]
async fn expired_leases_are_shown_longest_due_first_with_what_they_return() {
    let (dynamo, table) = fresh().await;
    for (entity, age) in [("young", 1_000), ("old", 9_000), ("middle", 5_000)] {
        let expired = later(NOW, -age);
        let bucket = holding(full(entity, &limits()), "a", expired, &[("quota", 5), ("slots", 1)]);
        store(&table, &holding(bucket, "b", later(NOW, 60_000), &[("slots", 2)])).await;
    }
    let shown = shown_and_done(&dynamo, &table, NOW).await;
    let entities: Vec<_> =
        shown.due.iter().map(|due| due.shard.as_ref().unwrap().entity.as_str()).collect();
    assert_eq!(entities, ["old", "middle", "young"]);
    let [oldest, ..] = &*shown.due else { panic!("three") };
    assert_eq!(oldest.due_at, later(NOW, -9_000));
    let released = &oldest.work.as_ref().unwrap().released;
    assert_eq!((released.leases, released.tokens["slots"]), (1, tokens(1)));
}

#[tokio::test]
async fn only_the_longest_due_are_shown_if_there_are_more() {
    let (dynamo, table) = fresh().await;
    for number in 0..20 {
        let bucket = full(&format!("e-{number}"), &limits());
        store(&table, &holding(bucket, "a", later(NOW, -number), &[("slots", 1)])).await;
    }
    let _ = dynamo.take_operations();
    let shown = preview(&table, NOW, 3).await.expect("DynamoDB works");
    let due: Vec<_> = shown.due.iter().map(|due| due.due_at).collect();
    assert_eq!(due, [later(NOW, -19), later(NOW, -18), later(NOW, -17)]);
    assert!(shown.has_more);
    let operations = dynamo.take_operations();
    assert_eq!(operations["Query"], 16, "{operations:?}");
    assert_eq!(operations["BatchGetItem"], 1, "{operations:?}");
    assert!(!preview(&table, NOW, 20).await.expect("DynamoDB works").has_more);
}

#[tokio::test]
async fn a_cold_bucket_is_shown_with_the_shards_that_would_be_merged_once() {
    let (dynamo, table) = fresh().await;
    sharded(&table, 8).await;
    let shown = shown_and_done(&dynamo, &table, DUE).await;
    let merged = shown.due.iter().map(|due| due.work.as_ref().unwrap().reshaped.merged);
    let merged: Vec<_> = merged.filter(|merged| *merged > 0).collect();
    assert_eq!((merged, shown.due.len()), (vec![7], 8));
}

#[tokio::test]
async fn a_missing_shard_is_shown_as_one_to_repair_and_expired_leases_beside_it() {
    let (dynamo, table) = fresh().await;
    let bucket = sharded(&table, 4).await;
    for shard in 0..4 {
        change(&table, &bucket, shard, |shard| shard.write_seq += 1_000_000).await;
    }
    lease(&table, &bucket, 1, "a", later(NOW, 1_000), NOW).await;
    let gone = bucket.with_shard(3).item_key();
    dynamo.delete(&gone.pk, &gone.sk);
    let shown = shown_and_done(&dynamo, &table, DUE).await;
    let work = shown.due.iter().map(|due| due.work.as_ref().unwrap());
    let repaired: usize = work.map(|work| work.reshaped.repaired).sum();
    assert_eq!(repaired, 1);
}

#[tokio::test]
async fn an_item_that_a_run_would_postpone_is_shown_with_the_reason() {
    let (dynamo, table) = fresh().await;
    hold(&table, "text", later(NOW, -1)).await;
    let mut item = dynamo.item(&key("text").item_key().pk, "#STATE");
    item["b_slots_cp"] = json!({"S": "many"});
    dynamo.put(&item);
    dynamo.put(&json!({"PK": {"S": "default/ENTITY#e"}, "SK": {"S": "#META"}, "due": {"N": "5"}, "due_shard": {"S": "DUE#03"}}));
    let shown = shown_and_done(&dynamo, &table, NOW).await;
    let reasons: Vec<_> = shown.due.iter().map(|due| due.work.as_ref().unwrap_err()).collect();
    assert_eq!(reasons[0], "the key is no bucket's");
    assert!(reasons[1].contains("b_slots_cp") && reasons[1].contains("many"), "{reasons:?}");
}

//! The reconciler serves all tenants of a table at once: what one of them writes reaches no item of
//! another, and keeps no other from its turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weirgate_tests::{assert_has, fresh, slow};

use crate::fixtures::sharded::{run, run_for};
use serde_json::{Value, json};
use tokio::time::Instant;
use weirgate_shared::write::REVIEW_INTERVAL;
use weirgate_shared::{ActivitySample, BucketKey, EpochMillis, Limit, Millis, Shard, due_shards};
use weirgate_testkit::leased::{NOW, full, holding, item, load, store};
use weirgate_testkit::{Dynamo, Fault, import};

fn key_of(pk: &str) -> BucketKey {
    BucketKey::parse(pk).expect("it is a bucket's")
}

fn of(pk: &str, bucket: Shard) -> Shard {
    Shard { key: key_of(pk), ..bucket }
}

fn limits() -> [Limit; 2] {
    [Limit::per_minute("rpm", 10).unwrap(), Limit::concurrent("slots", 4).unwrap()]
}

/// All tenants share the partitions of the index. An entry leads to its own item, and nowhere else.
#[tokio::test]
async fn a_due_item_restores_itself_whatever_it_says_of_its_indexes() {
    let (dynamo, table) = fresh().await;
    let expired =
        holding(full("e", &limits()), "a1", EpochMillis(NOW.0 - 1), &[("rpm", 3), ("slots", 1)]);
    for pk in ["b/BUCKET#e#gpt-4#0", "a-b/BUCKET#e#gpt-4#0"] {
        // Expired too, and not due: no function may read them.
        store(&table, &Shard { due_at: None, ..of(pk, expired.clone()) }).await;
    }
    store(&table, &of("a/BUCKET#e#gpt-4#0", expired)).await;
    let theirs = dynamo.item("b/BUCKET#e#gpt-4#0", "#STATE");
    let mut ours = dynamo.item("a/BUCKET#e#gpt-4#0", "#STATE");
    for (name, text) in [
        ("due_shard", key_of("b/BUCKET#e#gpt-4#0").due_shard().as_str()),
        ("GSI2PK", "b/RESOURCE#gpt-4"),
        ("GSI3PK", "b/ENTITY#e"),
    ] {
        ours[name] = json!({"S": text});
    }
    dynamo.put(&ours);
    // Items that are due and no buckets, and say that they are those of others.
    for (pk, sk) in
        [("a/BUCKET#e#gpt-4#1", "#STATE2"), ("a/x", "#STATE"), ("a/b/BUCKET#e#gpt-4#0", "#STATE")]
    {
        let mut item = ours.clone();
        (item["PK"], item["SK"]) = (json!({"S": pk}), json!({"S": sk}));
        dynamo.put(&item);
    }
    let before = dynamo.items_of_others("a");
    let summary = run(&table, NOW).await;
    assert_has!(summary, buckets_seen: 4, leases_restored: 1);
    assert_eq!(dynamo.items_of_others("a"), before);
    assert_eq!(dynamo.item("b/BUCKET#e#gpt-4#0", "#STATE"), theirs);
    let after = dynamo.item("a/BUCKET#e#gpt-4#0", "#STATE");
    assert_eq!(&after["h"], &json!({"M": {}}));
    assert_eq!(&after["GSI2PK"], &ours["GSI2PK"]);
}

/// Two shards of one bucket become one; those of the same names elsewhere are none of theirs.
#[tokio::test]
async fn a_merge_joins_shards_of_one_namespace_only() {
    let (dynamo, table) = fresh().await;
    let shard = |pk: &str| {
        let mut bucket =
            Shard { shard_count: 2, due_at: Some(NOW), ..of(pk, full("e", &limits())) };
        bucket.scaling.sample = Some(ActivitySample {
            at: EpochMillis(NOW.0 - REVIEW_INTERVAL.0),
            write_seq: bucket.write_seq,
        });
        bucket
    };
    // Ours has one half; the other halves are others', and not due.
    store(&table, &shard("a/BUCKET#e#gpt-4#0")).await;
    for pk in [
        "a-b/BUCKET#e#gpt-4#1",
        "b/BUCKET#e#gpt-4#1",
        "A/BUCKET#e#gpt-4#1",
        "a/BUCKET#e#gpt-4x#1",
        "a/BUCKET#ex#gpt-4#1",
    ] {
        store(&table, &Shard { due_at: None, ..shard(pk) }).await;
    }
    let kept = |dynamo: &Dynamo| {
        dynamo.items().into_iter().filter(|item| item["PK"]["S"] != "a/BUCKET#e#gpt-4#0")
    };
    let before: Vec<_> = kept(&dynamo).collect();
    let summary = run(&table, NOW).await;
    // The missing half is created again.
    assert_eq!(summary.shards_merged, 0);
    let after: Vec<_> =
        kept(&dynamo).filter(|item| item["PK"]["S"] != "a/BUCKET#e#gpt-4#1").collect();
    assert_eq!(after, before);

    // And with its own half it is merged.
    store(&table, &shard("a/BUCKET#e2#gpt-4#0")).await;
    store(&table, &shard("a/BUCKET#e2#gpt-4#1")).await;
    let before = dynamo.items_of_others("a");
    assert_eq!(run(&table, NOW).await.shards_merged, 1);
    assert_eq!(dynamo.items_of_others("a"), before);
}

/// The bucket of an honest tenant in partition `DUE#00`, with an expired lease.
fn honest() -> Shard {
    honest_in("DUE#00")
}

fn honest_in(due_shard: &str) -> Shard {
    let mut names = (0..).map(|at| format!("good/BUCKET#e-{at}#gpt-4#0"));
    let pk = names.find(|pk| key_of(pk).due_shard() == due_shard).expect("a hash has each value");
    let expired = holding(full("e", &limits()), "a1", EpochMillis(NOW.0 - 1), &[("slots", 1)]);
    of(&pk, expired)
}

/// An entry of a hostile tenant in the index, due since 1970: no bucket, but with the key of one.
fn hostile(at: usize, due_shard: &str) -> Value {
    json!({
        "PK": {"S": format!("evil/BUCKET#e-{at}#r#0")},
        "SK": {"S": "#STATE"},
        "due_shard": {"S": due_shard},
        "due": {"N": "0"},
    })
}

/// Counts the requests until the honest bucket is written to. Writes to others meet `fault`.
fn until_written(dynamo: &Dynamo, fault: Option<Fault>) -> Arc<OnceLock<u64>> {
    let (written, requests) = (Arc::new(OnceLock::new()), Arc::new(AtomicU64::new(0)));
    let (seen, counted) = (written.clone(), requests.clone());
    dynamo.fail_reads(move |_, _| {
        requests.fetch_add(1, Ordering::Relaxed);
        None
    });
    dynamo.fail_when(move |write| {
        let request = counted.fetch_add(1, Ordering::Relaxed);
        let is_honest = write["Key"]["PK"]["S"].as_str().is_some_and(|pk| pk.starts_with("good/"));
        if is_honest {
            let _ = seen.set(request);
        }
        fault.filter(|_| !is_honest)
    });
    written
}

/// Entries cannot be passed over but one after the other. Those of a tenant that has had its share
/// are passed over by a thousand, and where even they are too many, the partition is read from its
/// other end.
#[tokio::test(start_paused = true)]
async fn entries_without_number_keep_no_other_tenant_from_its_turn() {
    for (entries, most) in [(2_000, 400), (40_000, 500)] {
        let dynamo = Dynamo::new().await;
        let table = slow(&dynamo, 5).await;
        import(&dynamo, (0..entries).map(|at| hostile(at, "DUE#00")));
        let bucket = honest();
        store(&table, &bucket).await;
        let written = until_written(&dynamo, None);
        // Four seconds of them are for what is under way at the end.
        let summary = run_for(&table, NOW, 100, Duration::from_secs(6)).await;
        let summary = summary.unwrap();
        let requests = *written.get().expect("the honest bucket is written");
        assert!(requests <= most, "{entries}: {requests} requests");
        assert_eq!(summary.leases_restored, 1, "{summary:?}");
        assert!(summary.postponed > 256, "{summary:?}");
        assert!(load(&table, &bucket.key).await.unwrap().due_at.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_comes_back_after_an_hour() {
    let (dynamo, table) = fresh().await;
    import(&dynamo, (0..2_000).map(|at| hostile(at, "DUE#00")));
    assert_eq!(run(&table, NOW).await.postponed, 2_000);
    assert_eq!(run(&table, NOW).await.buckets_seen, 0);
    let hour = NOW.plus(Millis(3_600_000));
    assert_eq!(run(&table, EpochMillis(hour.0 - 1)).await.buckets_seen, 0);
    assert_eq!(run(&table, hour).await.undecodable, 2_000);
}

/// A shard number that no bucket has, another sort key, and an item that has no room for a later
/// `due`.
#[tokio::test(start_paused = true)]
async fn what_is_no_bucket_is_not_read_and_leaves_the_index() {
    let (dynamo, table) = fresh().await;
    let keys = [
        ("evil/BUCKET#e#r#64", "#STATE"),
        ("evil/BUCKET#e#r#4294967295", "#STATE"),
        ("evil/BUCKET#e#r#0", "#X"),
    ];
    for (pk, sk) in keys {
        let mut item = item(&of(
            "evil/BUCKET#e#r#0",
            holding(full("e", &limits()), "a1", NOW, &[("slots", 1)]),
        ));
        (item["PK"], item["SK"]) = (json!({"S": pk}), json!({"S": sk}));
        dynamo.put(&item);
    }
    let mut full = hostile(0, "DUE#00");
    // The numbers are of one byte and a length, and the attributes of the keys take the rest.
    let rest =
        400 * 1024 - "padPKSKdue_shardduee-0".len() - "evil/BUCKET##r#0#STATEDUE#00".len() - 1;
    full["pad"] = json!({"S": "x".repeat(rest)});
    dynamo.put(&full);
    let _ = dynamo.take_operations();
    let summary = run(&table, NOW).await;
    assert_has!(summary, undecodable: 4, postponed: 4, left_over: 0; "{summary:?}");
    let operations = dynamo.take_operations();
    assert!(operations["BatchGetItem"] <= 2, "only the full one is read: {operations:?}");
    for (pk, sk) in keys {
        assert_eq!(dynamo.item(pk, sk)["due"]["N"], (NOW.0 + 3_600_000).to_string(), "{pk} {sk}");
    }
    assert!(
        dynamo.item("evil/BUCKET#e-0#r#0", "#STATE").get("due").is_none(),
        "there is no room for 13 digits"
    );
}

/// The entries stay where they are: nothing can be written to their items.
#[tokio::test(start_paused = true)]
async fn entries_that_stay_keep_no_other_tenant_from_its_turn() {
    let dynamo = Dynamo::new().await;
    let table = slow(&dynamo, 5).await;
    import(&dynamo, (0..2_000).map(|at| hostile(at, "DUE#00")));
    store(&table, &honest()).await;
    let written = until_written(&dynamo, Some(Fault::Throttle { key_range: true }));
    let summary = run(&table, NOW).await;
    assert!(written.get().is_some());
    assert_eq!(summary.leases_restored, 1, "{summary:?}");
    assert!(dynamo.items().iter().filter(|item| item["due"]["N"] == "0").count() == 2_000);
}

/// A look at one shard reads the places of all 64, so it counts as much.
#[tokio::test(start_paused = true)]
async fn looks_at_sharded_buckets_count_towards_the_same_share() {
    let dynamo = Dynamo::new().await;
    let table = slow(&dynamo, 5).await;
    let sharded = (0..300).map(|at| {
        let bucket = of(&format!("evil/BUCKET#e-{at}#r#0"), full("e", &limits()));
        let mut item = item(&Shard { shard_count: 64, due_at: Some(EpochMillis(0)), ..bucket });
        item["due_shard"] = json!({"S": "DUE#00"});
        item
    });
    import(&dynamo, sharded);
    store(&table, &honest()).await;
    let written = until_written(&dynamo, None);
    let summary = run(&table, NOW).await;
    let requests = *written.get().expect("the honest bucket is written");
    assert!(requests < 100, "{requests} requests");
    assert_eq!(summary.leases_restored, 1, "{summary:?}");
}

/// In every partition, as many entries as it takes to use up more than a share.
/// One run passes over 32,000 entries from each end at a time.
#[tokio::test(start_paused = true)]
async fn i8_entries_at_both_ends_of_a_partition_keep_none_between_from_its_turn() {
    let (dynamo, table) = fresh().await;
    let entry = |at: usize| {
        let mut item = hostile(at, "DUE#00");
        item["due"]["N"] = (if at.is_multiple_of(2) { 0 } else { NOW.0 - 1 }).to_string().into();
        item
    };
    import(&dynamo, (0..66_000).map(entry));
    let honest = honest();
    store(&table, &Shard { due_at: Some(EpochMillis(NOW.0 - 2)), ..honest }).await;
    let written = until_written(&dynamo, Some(Fault::Throttle { key_range: true }));
    let _ = run(&table, NOW).await;
    let requests = *written.get().expect("the lease is returned");
    assert!(requests < 10_000, "{requests} requests before");
}

#[tokio::test(start_paused = true)]
async fn in_the_end_everything_has_its_turn() {
    let (dynamo, table) = fresh().await;
    let shards: Vec<_> = due_shards().collect();
    import(&dynamo, (0..8_000).map(|at| hostile(at, &shards[at % 16])));
    let summary = run(&table, NOW).await;
    assert_has!(summary, postponed: 8_000, buckets_seen: 8_000, partitions_unfinished: 0);
}

/// Set `ENTRIES` to 300000 for what a tenant can write for a few cents, and to more than one run
/// can postpone.
#[tokio::test(start_paused = true)]
async fn entries_in_all_partitions_make_no_lease_of_another_tenant_late() {
    let entries =
        std::env::var("ENTRIES").map_or(16_000, |entries| entries.parse().expect("a number"));
    let dynamo = Dynamo::new().await;
    let table = slow(&dynamo, 5).await;
    let shards: Vec<_> = due_shards().collect();
    import(&dynamo, (0..entries).map(|at| hostile(at, &shards[at % 16])));
    for due_shard in &shards {
        store(&table, &honest_in(due_shard)).await;
    }
    let began = Instant::now();
    let summary = run(&table, NOW).await;
    println!("{entries} entries: {summary:?} in {:?}", began.elapsed());
    assert_eq!(summary.leases_restored, 16, "{summary:?}");
}

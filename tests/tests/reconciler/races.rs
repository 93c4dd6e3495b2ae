//! The reconciler beside callers of the same bucket, and answers that are lost: every lease ends
//! once (I4).

use std::collections::BTreeMap;
use std::time::Duration;

use weirgate_reconciler::{Config, Deadline, Summary, reconcile};
use weirgate_shared::write::Update;
use weirgate_shared::{EpochMillis, Millis};
use weirgate_store::{ReturnValues, Table, WriteOutcome};
use weirgate_testkit::leased::{
    NOW, assert_sound, end, full, holding, id, key, limit, limits, load, store, take, tokens,
};
use weirgate_testkit::{Dynamo, Fault};

const PAST: EpochMillis = EpochMillis(NOW.0 - 1_000);
const LATER: EpochMillis = EpochMillis(NOW.0 + 60_000);
const STEP: Duration = Duration::from_millis(10);

async fn run(table: &Table) -> Summary {
    let config = Config {
        table_name: "weirgate".to_owned(),
        page: 100,
    };
    reconcile(
        table,
        &config,
        &|| NOW,
        Deadline::after(Duration::from_secs(50)),
    )
    .await
    .expect("DynamoDB works")
}

/// Half an hour's tokens and two slots, expired; with a live slot beside it.
async fn expired(table: &Table) {
    let bucket = holding(
        full("e-1", &limits()),
        "a",
        PAST,
        &[("quota", 10), ("slots", 2)],
    );
    store(table, &holding(bucket, "b", LATER, &[("slots", 1)])).await;
}

/// The run queries, reads and writes, one [`STEP`] each; `meanwhile` arrives between its read and
/// its write.
async fn run_with(dynamo: &Dynamo, meanwhile: Vec<Update>) -> Summary {
    let table = dynamo.clone().with_latency(STEP).table().await;
    let others = async {
        tokio::time::sleep(STEP * 3 / 2).await;
        for update in meanwhile {
            let done = table.update(&update, ReturnValues::None).await.unwrap();
            assert_eq!(done, WriteOutcome::Applied(None));
        }
    };
    let (summary, ()) = tokio::join!(run(&table), others);
    summary
}

#[tokio::test(start_paused = true)]
async fn i4_a_release_that_comes_first_is_the_only_one() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    expired(&table).await;
    let release = end(&full("e-1", &limits()), &id("a"), None, 2);
    let summary = run_with(&dynamo, vec![release.clone()]).await;
    assert_eq!(
        (summary.leases_restored, summary.lost_races),
        (0, 0),
        "the release gave it back"
    );
    assert!(summary.tokens_restored.is_empty());
    let after = load(&table, &key("e-1")).await.unwrap();
    assert_sound(&after);
    assert_eq!(
        (
            after.limits["slots"].available,
            after.limits["quota"].consumed
        ),
        (tokens(5), tokens(10).into())
    );
    assert_eq!(
        after.due_at,
        Some(LATER),
        "planned again from the old image, in the same run"
    );
    // And one that comes after the expiry can give nothing back.
    let again = table
        .update(&end(&after, &id("a"), None, 2), ReturnValues::None)
        .await
        .unwrap();
    assert!(
        matches!(again, WriteOutcome::ConditionFailed(_)),
        "{again:?}"
    );
    assert_eq!(load(&table, &key("e-1")).await.unwrap(), after);
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_between_read_and_write_is_kept_and_bounds_due() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    expired(&table).await;
    let soon = NOW.plus(Millis(5));
    let bucket = full("e-1", &limits());
    let summary = run_with(
        &dynamo,
        vec![take(&bucket, &id("new"), soon, 1, 1, &bucket, NOW)],
    )
    .await;
    assert_eq!((summary.leases_restored, summary.lost_races), (1, 0));
    let after = load(&table, &key("e-1")).await.unwrap();
    assert_sound(&after);
    assert_eq!(
        after.due_at,
        Some(soon),
        "not the expiry that was first when the bucket was read"
    );
    assert_eq!(
        summary.tokens_restored,
        BTreeMap::from([(limit("quota"), tokens(10)), (limit("slots"), tokens(2))])
    );
}

#[tokio::test]
async fn a_bucket_that_is_written_all_the_time_is_tried_four_times_and_left_due() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    expired(&table).await;
    store(
        &table,
        &holding(full("e-2", &limits()), "a", PAST, &[("slots", 1)]),
    )
    .await;
    let (busy, db) = (key("e-1").item_key(), dynamo.clone());
    dynamo.fail_when(move |write| {
        if write["Key"]["PK"]["S"] == busy.pk.as_str() {
            let mut item = db.item(&busy.pk, &busy.sk);
            let v: i64 = item["v"]["N"].as_str().unwrap().parse().unwrap();
            item["v"]["N"] = (v + 1).to_string().into();
            db.put(&item);
        }
        None
    });
    let _ = dynamo.take_operations();
    let summary = run(&table).await;
    assert_eq!(dynamo.take_operations()["UpdateItem"], 4 + 1);
    assert_eq!(
        (
            summary.lost_races,
            summary.left_over,
            summary.leases_restored
        ),
        (1, 0, 1)
    );
    let left = load(&table, &key("e-1")).await.unwrap();
    assert_eq!((left.due_at, left.leases.unwrap().len()), (Some(PAST), 2));
}

#[tokio::test]
async fn a_lost_answer_is_counted_once_and_written_once() {
    for fault in [
        Fault::LoseAnswer,
        Fault::ServerErrorApplied,
        Fault::LoseRequest,
        Fault::ServerError,
    ] {
        let dynamo = Dynamo::new().await;
        let table = dynamo.table().await;
        expired(&table).await;
        let _ = dynamo.take_operations();
        dynamo.fail_next([Some(fault)]);
        let summary = run(&table).await;
        let writes = dynamo.take_operations()["UpdateItem"];
        let was_applied = matches!(fault, Fault::LoseAnswer | Fault::ServerErrorApplied);
        assert_eq!(
            writes,
            if was_applied { 1 } else { 2 },
            "{fault:?}: the item says whether it happened"
        );
        assert_eq!(
            (
                summary.leases_restored,
                summary.left_over,
                summary.lost_races
            ),
            (1, 0, 0),
            "{fault:?}"
        );
        assert_eq!(
            summary.tokens_restored[&limit("quota")],
            tokens(10),
            "{fault:?}"
        );
        let after = load(&table, &key("e-1")).await.unwrap();
        assert_sound(&after);
        assert_eq!(after.due_at, Some(LATER));
    }
}

#[tokio::test]
async fn a_lost_answer_is_recognised_behind_later_writes_of_callers() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    expired(&table).await;
    // After the write, before it is looked for: a caller takes another lease.
    let db = dynamo.clone();
    dynamo.fail_next([Some(Fault::LoseAnswer)]);
    let mut reads = 0;
    dynamo.fail_reads(move |operation, _| {
        reads += u32::from(operation == "BatchGetItem");
        if operation == "BatchGetItem" && reads == 2 {
            let key = key("e-1").item_key();
            let mut item = db.item(&key.pk, &key.sk);
            let v: i64 = item["v"]["N"].as_str().unwrap().parse().unwrap();
            item["v"]["N"] = (v + 1).to_string().into();
            item["op"] = serde_json::json!({"S": "caller"});
            db.put(&item);
        }
        None
    });
    let summary = run(&table).await;
    assert_eq!(
        (
            summary.leases_restored,
            summary.lost_races,
            summary.left_over
        ),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn what_a_caller_reclaimed_after_a_lost_request_is_not_reported() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    expired(&table).await;
    // The write never arrived; then the caller's tokens ran out, and it took the expired lease back
    // itself.
    let db = dynamo.clone();
    dynamo.fail_next([Some(Fault::LoseRequest)]);
    let mut reads = 0;
    dynamo.fail_reads(move |operation, _| {
        reads += u32::from(operation == "BatchGetItem");
        if operation == "BatchGetItem" && reads == 2 {
            let key = key("e-1").item_key();
            let mut item = db.item(&key.pk, &key.sk);
            let v: i64 = item["v"]["N"].as_str().unwrap().parse().unwrap();
            item["v"]["N"] = (v + 1).to_string().into();
            item["h"]["M"].as_object_mut().unwrap().remove("a");
            db.put(&item);
        }
        None
    });
    let summary = run(&table).await;
    assert_eq!((summary.leases_restored, summary.left_over), (0, 0));
    assert_eq!(
        load(&table, &key("e-1")).await.unwrap().due_at,
        Some(LATER),
        "due was still to be moved"
    );
}

#[tokio::test]
async fn a_write_that_no_try_got_an_answer_for_is_left_over_and_named() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    expired(&table).await;
    dynamo.fail_when(|_| Some(Fault::LoseRequest));
    let summary = run(&table).await;
    assert_eq!(
        (
            summary.left_over,
            summary.leases_restored,
            summary.errors.len()
        ),
        (1, 0, 1)
    );
    assert!(
        summary.errors[0].contains("e-1") && summary.errors[0].contains("no answer"),
        "{:?}",
        summary.errors
    );
    // The last of them arrived after all: the item says so.
    let mut sent = 0;
    dynamo.fail_when(move |_| {
        sent += 1;
        Some(if sent < 4 {
            Fault::LoseRequest
        } else {
            Fault::LoseAnswer
        })
    });
    let summary = run(&table).await;
    assert_eq!((summary.left_over, summary.leases_restored), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn runs_side_by_side_restore_and_report_once() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.clone().with_latency(STEP).table().await;
    expired(&table).await;
    let (one, two) = tokio::join!(run(&table), run(&table));
    assert_eq!(one.leases_restored + two.leases_restored, 1);
    assert_eq!(
        (
            one.left_over + two.left_over,
            one.lost_races + two.lost_races
        ),
        (0, 0)
    );
    assert_sound(&load(&table, &key("e-1")).await.unwrap());
}

//! A replay of the failure bucket makes the copies of usage that the aggregator could not make (I3,
//! I7).

use crate::fixtures::aggregator;
use weirgate_tests::{assert_has, fresh};

use crate::fixtures::aggregator::usage::{assert_exact, hourly, of, read, snapshots, streamed};
use crate::fixtures::aggregator::{HOUR, bucket, deliver, later, take, take_at, take_in};
use crate::fixtures::discarded::{
    COPIES, Run, lasting, lives, run, run_on, run_with, try_run_on, used, wrapped,
};
use serde_json::json;
use weirgate_aggregator::replay::Options;
use weirgate_shared::{Limit, MilliTokens, Millis, Window};
use weirgate_testkit::{Dynamo, Fault, Temporary};

/// As Lambda left it: written once, whatever this repository changes.
const SAMPLE: &str = include_str!("../../../../events/failure-object.json");

#[tokio::test]
async fn the_sample_is_copied_once() {
    let dynamo = Dynamo::new().await;
    for expected in [[4, 0], [0, 4]] {
        let run = run(&dynamo, SAMPLE).await;
        assert_eq!(run.copies(), expected, "{}", run.out);
    }
    let hour = dynamo.item("default/ENTITY#user-123", "#USAGE#gpt-4#hourly#2026-11-20T17:00:00Z");
    assert_eq!(&hour["rpm#0"]["N"], &json!("2"));
    assert_eq!(&hour["tpm#0"]["N"], &json!("1749.5"));
    assert_eq!(&hour["#0"]["N"], &json!("2"));
    assert_eq!(&hour["final"]["NS"], &json!(["0"]));
    let gone = dynamo.item("default/ENTITY#user-456", "#USAGE#gpt-4#daily#2026-11-20T00:00:00Z");
    assert_eq!(&gone["tpm#0"]["N"], &json!("320"));
    assert_eq!(&gone["final"]["NS"], &json!(["0"]));
}

#[tokio::test]
async fn only_usage_is_copied_nothing_is_refilled_or_split() {
    let (dynamo, table) = fresh().await;
    take(&table, &bucket("a", 0), 1_500).await;
    take_in(&table, &bucket("a", 0), 1_500, 1).await;
    take(&table, &bucket("hot", 0), 1_500).await;
    aggregator::take_hot(&table, &bucket("hot", 0)).await;
    let limits = [Limit::per_second("rps", 100).unwrap()];
    let needs = [(aggregator::name("rps"), MilliTokens::from_tokens(90))].into();
    take_at(&table, &bucket("dry", 0), &limits, needs, HOUR.plus(Millis(-10_000))).await;
    let records = aggregator::records(&dynamo);
    let states = |dynamo: &Dynamo| {
        ["a", "hot", "dry"]
            .map(|entity| dynamo.item(&format!("default/BUCKET#{entity}#gpt-4#0"), "#STATE"))
    };
    let before = states(&dynamo);
    let _ = dynamo.take_operations();
    let run = run(&dynamo, &wrapped(&records)).await;
    assert_eq!(run.copies(), [4, 0], "{}", run.out);
    let operations = dynamo.take_operations();
    assert_eq!(operations.get("TransactWriteItems"), None);
    assert_eq!(operations.get("UpdateItem"), Some(&4));
    assert_eq!(states(&dynamo), before);
    // The aggregator does both, as these records show a hot shard and one that runs dry.
    let summary = deliver(&table, &records).await.summary;
    assert_has!(summary, copied: 0, superseded: 4, splits: 1, refilled: 1);
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_copied_and_writes_nothing() {
    let (dynamo, records) = used().await;
    let before = dynamo.items();
    let dry =
        run_with(&dynamo, &wrapped(&records), Options { dry_run: true, ..Options::default() })
            .await;
    assert_eq!(dynamo.items(), before);
    assert_has!(dry.sum, planned: COPIES; "{}", dry.out);
    assert_eq!(dry.copies(), [0, 0], "{}", dry.out);
    assert!(dry.out.ends_with("16 copies planned; nothing was written\n"), "{}", dry.out);
    let wet = run(&dynamo, &wrapped(&records)).await;
    assert_has!(wet.sum, planned: 0; "{}", wet.out);
    assert_eq!(wet.copies(), [COPIES, 0], "{}", wet.out);
    // The amounts that it says are those that the snapshots got.
    let hour = &snapshots(&dynamo)[&hourly(&bucket("b", 0), HOUR)].shards[&1];
    let tokens: Vec<_> =
        hour.usage.tokens.iter().map(|(limit, amount)| format!(", {limit} {amount}")).collect();
    let line = format!(
        "planned: final copy to default/ENTITY#b #USAGE#gpt-4#hourly#2026-11-20T18:00:00Z of shard 1 at {}{}, {} acquires\n",
        hour.write_seq,
        tokens.concat(),
        hour.usage.acquires,
    );
    assert!(dry.out.contains(&line), "{line}{}", dry.out);
}

#[tokio::test]
async fn records_of_another_table_are_refused_by_name_unless_they_are_asked_for() {
    let (dynamo, records) = used().await;
    let object = wrapped(&records).replace(":table/weirgate/", ":table/old/");
    let refused = run(&dynamo, &object).await;
    assert!(!refused.sum.is_complete() && refused.out.contains("\"old\""), "{}", refused.out);
    assert!(
        refused.out.contains("\"weirgate\"") && refused.out.contains("--from-table old"),
        "{}",
        refused.out
    );
    assert!(snapshots(&dynamo).is_empty());
    assert_eq!(
        run_with(
            &dynamo,
            &object,
            Options { from_table: Some("old".to_owned()), ..Options::default() }
        )
        .await
        .copies(),
        [COPIES, 0]
    );
    assert_exact(&dynamo, &records);
    let own = run_with(
        &dynamo,
        &wrapped(&records),
        Options { from_table: Some("old".to_owned()), ..Options::default() },
    )
    .await;
    assert!(!own.sum.is_complete(), "{}", own.out);
}

/// A table of the same name in another region or account is another table.
#[tokio::test]
async fn records_of_a_namesake_are_refused_with_both_and_what_to_do() {
    let (dynamo, records) = used().await;
    let object = wrapped(&records[..6]);
    let elsewhere = wrapped(&records[6..]).replace("us-east-1", "eu-west-1");
    let refused = run(&dynamo, &elsewhere).await;
    assert!(!refused.sum.is_complete() && snapshots(&dynamo).is_empty(), "{}", refused.out);
    for part in [
        "arn:aws:dynamodb:eu-west-1:123456789012:table/weirgate",
        "in us-east-1",
        "AWS_REGION=eu-west-1",
    ] {
        assert!(refused.out.contains(part), "{}", refused.out);
    }
    let (own, other) =
        ("us-east-1:123456789012:table/weirgate", "us-east-1:012345678901:table/weirgate");
    let namesake = wrapped(&records[6..]).replace(own, other);
    // In one object, and in two.
    let mixed = wrapped(&records).replacen(own, other, 3);
    // One that is left says nothing of those behind it.
    let first = [&mixed, "\n", &object].concat();
    for (input, objects) in [([&object, "\n", &namesake].concat(), 2), (first, 2), (mixed, 1)] {
        let Run { sum, out } = run(&dynamo, &input).await;
        assert_has!(sum, objects: objects, incomplete: 1; "{out}");
        for part in [own, other, "a run of its own"] {
            assert!(out.contains(part), "{out}");
        }
    }
    assert_ne!(read(&dynamo, Window::Hourly), streamed(&records, Window::Hourly));
    run(&dynamo, &wrapped(&records[6..])).await.copies();
    assert_exact(&dynamo, &records);
}

/// A copy would make the snapshot again, with the numbers of one shard and without those of the
/// others.
#[tokio::test]
async fn a_window_whose_snapshot_may_be_deleted_is_left() {
    let dynamo = Dynamo::new().await;
    let (table, key, long_ago) = (dynamo.table().await, bucket("a", 0), -400 * 24);
    for hour in [long_ago, 0, 1] {
        take_in(&table, &key, 1_500, hour).await;
    }
    let records = aggregator::records(&dynamo);
    let left = run(&dynamo, &wrapped(&records)).await;
    assert_has!(left.sum, copied: 2, incomplete: 1; "{}", left.out);
    for part in [
        "hourly#2025-10-16T18:00:00Z",
        "daily#2025-10-16T00:00:00Z",
        "ended 90 days ago",
        "set --ttl-days",
    ] {
        assert!(left.out.contains(part), "{}", left.out);
    }
    let windows = Window::ALL.map(|window| of(&key, window, window.start(later(long_ago))));
    assert!(windows.iter().all(|key| !snapshots(&dynamo).contains_key(key)));
    assert_eq!(
        run_with(&dynamo, &wrapped(&records), Options { ttl_days: 3650, ..Options::default() })
            .await
            .copies(),
        [2, 2]
    );
    assert_exact(&dynamo, &records);
}

/// U6: however long it lasts.
#[tokio::test]
async fn a_window_whose_snapshot_may_be_deleted_by_its_turn_is_left() {
    let (dynamo, records) = used().await;
    let object = wrapped(&records);
    let input = [&*object, &object, &object].join("\n");
    let each = Millis(60 * 86_400_000);
    let paths = ["-".into()];
    let lasted = lasting(&dynamo, &paths, &input, Options::default(), each).await;
    let Run { sum, out } = lasted.expect("the table is there");
    assert_has!(sum, objects: 3, copied: COPIES, superseded: COPIES, incomplete: 1; "{out}");
    assert!(out.contains("ended 90 days ago"), "{out}");
}

#[tokio::test]
async fn what_cannot_be_read_is_left_and_the_rest_is_copied() {
    let (dynamo, records) = used().await;
    let input = [
        include_str!("../../../../events/aggregator-undecodable.json"),
        "{}",
        &wrapped(&records),
        "{\"payload\":",
    ]
    .join("\n");
    let Run { sum, out } = run(&dynamo, &input).await;
    assert_has!(sum, objects: 4, incomplete: 3, copied: COPIES; "{out}");
    for why in ["OldImage is missing", "neither that nor Records", "it is no JSON", "object 4"] {
        assert!(out.contains(why), "{out}");
    }
    assert_exact(&dynamo, &records);
}

#[tokio::test(start_paused = true)]
async fn i7_a_lost_answer_is_told_as_a_copy_that_is_there_and_a_failure_named() {
    for fault in [
        Fault::LoseAnswer,
        Fault::ServerErrorApplied,
        Fault::Repeat,
        Fault::LoseRequest,
        Fault::Conflict,
    ] {
        let (dynamo, records) = used().await;
        dynamo.fail_next([Some(fault)]);
        let copies = run(&dynamo, &wrapped(&records)).await.copies();
        let there = usize::from(!matches!(fault, Fault::LoseRequest | Fault::Conflict));
        assert_eq!(copies, [COPIES - there, there], "{fault:?}");
        assert_exact(&dynamo, &records);
    }
    let (dynamo, records) = used().await;
    let throttled = |request: &serde_json::Value| request["Key"]["PK"]["S"] == "default/ENTITY#b";
    dynamo.fail_when(move |request| {
        throttled(request).then_some(Fault::Throttle { key_range: false })
    });
    let failed = run(&dynamo, &wrapped(&records)).await;
    assert_has!(failed.sum, copied: COPIES / 2, incomplete: 1; "{}", failed.out);
    let is_named = |line: &str| {
        line.contains("default/ENTITY#b #USAGE#gpt-4#daily") && line.ends_with("run this again")
    };
    assert!(failed.out.lines().any(is_named), "{}", failed.out);
    dynamo.fail_when(|_| None);
    assert_eq!(run(&dynamo, &wrapped(&records)).await.copies(), [COPIES / 2; 2]);
    assert_exact(&dynamo, &records);
}

/// The later life's copy would hide the earlier one's.
#[tokio::test]
async fn i3_a_later_life_waits_for_the_copy_of_an_earlier_one() {
    let (dynamo, lives) = lives(3).await;
    let records = lives.concat();
    dynamo.fail_next([Some(Fault::Forbidden)]);
    let Run { sum, out } =
        run_with(&dynamo, &wrapped(&records), Options { concurrency: 1, ..Options::default() })
            .await;
    assert_has!(sum, copied: 0, incomplete: 1; "{out}");
    assert_eq!(out.matches("the copy before it was not made; run this again").count(), 5, "{out}");
    assert_eq!(run(&dynamo, &wrapped(&records)).await.copies(), [6, 0]);
    assert_exact(&dynamo, &records);
}

/// As `aws s3 sync` brings them: folders in folders, one object in each file, named by the time.
#[tokio::test]
async fn i3_a_folder_is_replayed_in_the_order_of_its_names() {
    let (dynamo, lives) = lives(9).await;
    let folder = Temporary::folder();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for (at, records) in lives.iter().enumerate().rev() {
        write(
            &format!("shard-{}/2026/11/20/2026-11-20T18.{at:02}.00.json", at / 3),
            &wrapped(records),
        );
    }
    write("shard-0/nothing/.keep", "");
    // Two objects of one shard by themselves, and once more with all of them.
    let early = ["shard-0/2026", "shard-1/2026/11/20/2026-11-20T18.03.00.json", ""];
    let Run { sum, out } = run_on(&dynamo, &early.map(|path| folder.join(path))).await;
    assert_has!(sum, objects: 3 + 1 + 10, records: 2 * (3 + 1 + 9), incomplete: 1; "{out}");
    assert_has!(sum, copied: 2 * 9, superseded: 2 * 4; "{out}");
    assert!(out.contains(".keep: 0 records") && out.contains("it is empty"), "{out}");
    assert_exact(&dynamo, &lives.concat());
    let error = try_run_on(&dynamo, &[folder.join("shard-1"), folder.join("gone")])
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("gone") && error.contains("cannot be read"), "{error}");
}

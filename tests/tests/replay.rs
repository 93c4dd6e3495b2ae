//! What is replayed from the failure bucket counts what was not counted, once (I3, I7).

mod aggregator;
mod discarded;

use std::path::PathBuf;

use aggregator::{HOUR, assert_exact, bucket, consumed, counted, deliver, moved, snapshots, take, take_at};
use discarded::{Run, run, run_on, try_run_on, used, wrapped};
use serde_json::{Value, json};
use weirgate_replay::Tally;
use weirgate_shared::{Limit, MilliTokens, Millis, Window};
use weirgate_tests::{Dynamo, Fault};

/// As Lambda left it: written once, whatever this repository changes.
const SAMPLE: &str = include_str!("../../events/failure-object.json");

const fn all(counted: usize, before: usize) -> Tally {
    Tally { counted, before, now_or_before: 0 }
}

#[tokio::test]
async fn the_sample_is_counted_once() {
    let dynamo = Dynamo::new().await;
    for expected in [all(3, 0), all(0, 3)] {
        let run = run(&dynamo, SAMPLE, &[]).await;
        assert!(run.sum.is_complete(), "{}", run.out);
        assert_eq!(run.sum.windows.into_values().collect::<Vec<_>>(), [expected; 3], "{}", run.out);
    }
    let hour = dynamo.item("default/ENTITY#user-123", "#USAGE#gpt-4#hourly#2026-11-20T17:00:00Z");
    assert_eq!((&hour["rpm"]["N"], &hour["tpm"]["N"]), (&"2".into(), &"1749.5".into()));
    assert_eq!(hour["total_events"]["N"], "2");
}

#[tokio::test]
async fn only_usage_is_counted_nothing_is_refilled_or_split() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    take(&table, &bucket("a", 0), 1_500).await;
    aggregator::take_hot(&table, &bucket("a", 0)).await;
    let limits = [Limit::per_second("rps", 100).unwrap()];
    let needs = [(aggregator::name("rps"), MilliTokens::from_tokens(90))].into();
    take_at(&table, &bucket("dry", 0), &limits, needs, HOUR.after(Millis(-10_000))).await;
    let records = aggregator::records(&dynamo);
    let states =
        |dynamo: &Dynamo| ["a", "dry"].map(|entity| dynamo.item(&format!("default/BUCKET#{entity}#gpt-4#0"), "#STATE"));
    let before = states(&dynamo);
    let _ = dynamo.take_operations();
    let run = run(&dynamo, &wrapped(&records), &[]).await;
    assert!(run.sum.is_complete(), "{}", run.out);
    assert_eq!(dynamo.take_operations().get("TransactWriteItems"), None);
    assert_eq!(states(&dynamo), before);
    // The aggregator does both, as these records show a hot shard and one that runs dry.
    let summary = deliver(&table, &records).await.summary;
    assert_eq!((summary.counted, summary.splits, summary.refilled), (0, 1, 1));
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_counted_and_writes_nothing() {
    let (dynamo, records) = used().await;
    deliver(&dynamo.table().await, &records[..4]).await;
    let before = dynamo.items();
    // Twice the same: the second time it would have been counted.
    let twice = wrapped(&records).repeat(2);
    let dry = run(&dynamo, &twice, &["--dry-run"]).await;
    assert_eq!(dynamo.items(), before);
    assert!(
        dry.out.contains("nothing was written") && dry.out.contains("would add to: default/ENTITY#a"),
        "{}",
        dry.out
    );
    let wet = run(&dynamo, &twice, &[]).await;
    assert_eq!(dry.sum, wet.sum);
    assert_exact(&dynamo);
    // The amounts it says are those that the snapshots got.
    let tpm = |items: &[Value]| {
        let of = |item: &&Value| item["PK"]["S"] == "default/ENTITY#b" && item["window"]["S"] == "daily";
        aggregator::milli(items.iter().find(of).unwrap()["tpm"]["N"].as_str().unwrap())
    };
    let line = dry.out.lines().find(|line| line.contains("ENTITY#b #USAGE#gpt-4#daily")).unwrap();
    let said = line.split("tpm ").nth(1).unwrap().split(',').next().unwrap();
    assert_eq!(aggregator::milli(said), tpm(&dynamo.items()) - tpm(&before), "{line}");
}

#[tokio::test]
async fn records_of_another_table_are_refused_by_name_unless_they_are_asked_for() {
    let (dynamo, records) = used().await;
    let object = wrapped(&records).replace(":table/weirgate/", ":table/old/");
    let refused = run(&dynamo, &object, &[]).await;
    assert!(!refused.sum.is_complete() && refused.out.contains("\"old\""), "{}", refused.out);
    assert!(refused.out.contains("\"weirgate\"") && refused.out.contains("--from-table old"), "{}", refused.out);
    assert_eq!(snapshots(&dynamo, Window::Daily).len(), 0);
    assert!(run(&dynamo, &object, &["--from-table", "old"]).await.sum.is_complete());
    assert_exact(&dynamo);
    let own = run(&dynamo, &wrapped(&records), &["--from-table", "old"]).await;
    assert!(!own.sum.is_complete(), "{}", own.out);
}

/// A table of the same name in another region or account is another table.
#[tokio::test]
async fn records_of_a_namesake_are_refused_with_both_and_what_to_do() {
    let (dynamo, records) = used().await;
    let object = wrapped(&records[..6]);
    let elsewhere = wrapped(&records[6..]).replace("us-east-1", "eu-west-1");
    let refused = run(&dynamo, &elsewhere, &[]).await;
    assert!(!refused.sum.is_complete() && snapshots(&dynamo, Window::Daily).is_empty(), "{}", refused.out);
    for part in ["arn:aws:dynamodb:eu-west-1:123456789012:table/weirgate", "in us-east-1", "AWS_REGION=eu-west-1"] {
        assert!(refused.out.contains(part), "{}", refused.out);
    }
    let (own, other) = ("us-east-1:123456789012:table/weirgate", "us-east-1:012345678901:table/weirgate");
    let namesake = wrapped(&records[6..]).replace(own, other);
    // In one object, and in two.
    let mixed = wrapped(&records).replacen(own, other, 3);
    // One that is left says nothing of those behind it.
    let first = [&mixed, "\n", &object].concat();
    for (input, objects) in [([&object, "\n", &namesake].concat(), 2), (first, 2), (mixed, 1)] {
        let Run { sum, out } = run(&dynamo, &input, &[]).await;
        assert_eq!((sum.objects, sum.incomplete), (objects, 1), "{out}");
        for part in [own, other, "a run of its own"] {
            assert!(out.contains(part), "{out}");
        }
    }
    assert!(run(&dynamo, &wrapped(&records[6..]), &[]).await.sum.is_complete());
    assert_exact(&dynamo);
}

#[tokio::test]
async fn a_snapshot_that_may_have_expired_is_left() {
    let (dynamo, records) = used().await;
    // The clock of the machine is long past the sample's year only if the sample is moved back.
    let old = |record: Value| moved(record, HOUR.after(Millis(-400 * 86_400_000)));
    let records: Vec<_> = records.into_iter().map(old).collect();
    let left = run(&dynamo, &wrapped(&records), &[]).await;
    assert!(!left.sum.is_complete() && left.out.contains("may be gone"), "{}", left.out);
    assert!(snapshots(&dynamo, Window::Daily).is_empty());
    assert!(run(&dynamo, &wrapped(&records), &["--ttl-days", "3650"]).await.sum.is_complete());
}

#[tokio::test]
async fn other_settings_do_not_shorten_the_life_of_a_snapshot() {
    let (dynamo, records) = used().await;
    deliver(&dynamo.table().await, &records[..4]).await;
    let ttl = |dynamo: &Dynamo| snapshots(dynamo, Window::Daily)[0]["ttl"]["N"].clone();
    let before = ttl(&dynamo);
    assert!(run(&dynamo, &wrapped(&records), &["--ttl-days", "3000"]).await.sum.is_complete());
    assert_eq!(ttl(&dynamo), before);
}

#[tokio::test]
async fn a_window_that_was_not_named_is_counted_by_a_later_run() {
    let (dynamo, records) = used().await;
    assert!(run(&dynamo, &wrapped(&records), &["--windows", "hourly"]).await.sum.is_complete());
    assert_eq!(counted(&dynamo, Window::Hourly), consumed(&dynamo));
    assert!(counted(&dynamo, Window::Daily).is_empty());
    assert!(run(&dynamo, &wrapped(&records), &[]).await.sum.is_complete());
    assert_exact(&dynamo);
}

#[tokio::test]
async fn what_cannot_be_counted_once_is_left_unless_it_is_asked_for() {
    let zae = include_str!("../../events/aggregator-zae.json");
    let dynamo = Dynamo::new().await;
    let left = run(&dynamo, zae, &[]).await;
    assert!(!left.sum.is_complete() && left.out.contains("--without-v"), "{}", left.out);
    assert!(snapshots(&dynamo, Window::Daily).is_empty());
    for times in ["500", "1000"] {
        assert!(run(&dynamo, zae, &["--without-v"]).await.sum.is_complete());
        assert_eq!(snapshots(&dynamo, Window::Daily)[0]["tpm"]["N"], times);
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_left_and_the_rest_is_counted() {
    let (dynamo, records) = used().await;
    let input = [include_str!("../../events/aggregator-undecodable.json"), "{}", &wrapped(&records), "{\"payload\":"]
        .join("\n");
    let Run { sum, out } = run(&dynamo, &input, &[]).await;
    assert_eq!((sum.objects, sum.incomplete), (4, 3), "{out}");
    for why in ["OldImage is missing", "neither that nor Records", "it is no JSON", "object 4"] {
        assert!(out.contains(why), "{out}");
    }
    assert_exact(&dynamo);
}

#[tokio::test(start_paused = true)]
async fn i7_a_lost_answer_counts_once_and_what_fails_is_named_and_counted_by_the_next_run() {
    for fault in [Fault::LoseAnswer, Fault::ServerErrorApplied, Fault::Repeat, Fault::LoseRequest, Fault::Conflict] {
        let (dynamo, records) = used().await;
        let mut seen = std::collections::HashSet::new();
        dynamo.fail_when(move |request| seen.insert(request["Key"].to_string()).then_some(fault));
        let run = run(&dynamo, &wrapped(&records), &[]).await;
        assert!(run.sum.is_complete(), "{fault:?}: {}", run.out);
        assert_exact(&dynamo);
        // The next answer tells that they are counted, and not by which write: nobody had counted them, and nothing
        // says so. A second shard is counted in the same snapshot, by a write that meets no fault.
        let (sound, met) = (4, records.len() - 4);
        let expected = match fault {
            Fault::LoseAnswer | Fault::ServerErrorApplied => Tally { now_or_before: met, ..all(sound, 0) },
            // A network that sends a request twice leaves no trace of the first.
            Fault::Repeat => all(sound, met),
            _ => all(records.len(), 0),
        };
        assert_eq!(run.sum.windows.values().collect::<Vec<_>>(), [&expected; 3], "{fault:?}: {}", run.out);
        assert_eq!(run.out.contains("now or before (an answer was lost)"), expected.now_or_before > 0, "{}", run.out);
    }
    let (dynamo, records) = used().await;
    dynamo.fail_when(|request| {
        (request["Key"]["PK"]["S"] == "default/ENTITY#b").then_some(Fault::Throttle { key_range: false })
    });
    let failed = run(&dynamo, &wrapped(&records), &[]).await;
    assert!(!failed.sum.is_complete(), "{}", failed.out);
    assert!(
        failed.out.contains("default/ENTITY#b #USAGE#gpt-4#daily") && failed.out.contains("run this again"),
        "{}",
        failed.out
    );
    dynamo.fail_when(|_| None);
    assert!(run(&dynamo, &wrapped(&records), &[]).await.sum.is_complete());
    assert_exact(&dynamo);
}

#[tokio::test]
async fn without_a_table_nothing_is_read() {
    let dynamo = Dynamo::empty();
    let error = discarded::try_run(&dynamo, SAMPLE, &[]).await.unwrap_err().to_string();
    assert!(error.contains("no such table"), "{error}");
}

/// In the order of the writes one long range is counted off from its front, however many objects it is in. In any other
/// order it would be cut into more ranges than a snapshot keeps, and the oldest would be lost.
async fn outage() -> (Dynamo, Vec<String>) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let key = bucket("a", 0);
    let mut records = vec![];
    for at in 0..200 {
        take(&table, &key, 1_000 + at).await;
        records.extend(dynamo.stream().into_iter().map(|record| moved(record, HOUR.after(Millis(at * 1_000)))));
    }
    // Counted are the first and the last; between them every object of two records was discarded.
    deliver(&table, &records[..2]).await;
    deliver(&table, &records[198..]).await;
    let objects: Vec<_> = records[2..198].chunks(2).map(wrapped).collect();
    // As far from the order as can be: every other one forwards, then the rest backwards.
    let (even, odd): (Vec<_>, Vec<_>) = objects.iter().enumerate().partition(|(at, _)| at % 2 == 0);
    let shuffled: Vec<_> = even.into_iter().chain(odd.into_iter().rev()).map(|(_, object)| object.as_str()).collect();
    (dynamo, shuffled.into_iter().map(str::to_owned).collect())
}

#[tokio::test]
async fn i3_many_objects_of_one_outage_are_counted_in_the_order_of_their_writes() {
    let (dynamo, shuffled) = outage().await;
    let run = run(&dynamo, &shuffled.join("\n"), &[]).await;
    assert!(run.sum.is_complete(), "{}", run.out);
    assert_exact(&dynamo);
}

/// As `aws s3 sync` brings them: folders in folders, one object in each file, under names that say nothing of the order.
#[tokio::test]
async fn i3_a_folder_of_objects_is_counted_in_the_order_of_their_writes_and_each_file_once() {
    let (dynamo, shuffled) = outage().await;
    let folder = Folder::new();
    for (at, object) in shuffled.iter().enumerate() {
        folder.write(&format!("shard-{}/2026/11/{at:03}.json", at % 3), object);
    }
    folder.write("shard-0/nothing/.keep", "");
    let records = 2 * shuffled.len();
    // The same files by other ways too: one of them by itself, below a folder that is given, and past a detour.
    let paths = ["", "shard-1", "shard-0/2026/11/000.json", "shard-2/../shard-1/2026/11/001.json"];
    let Run { sum, out } = run_on(&dynamo, &paths.map(|path| folder.0.join(path))).await;
    assert_eq!((sum.objects, sum.records, sum.incomplete), (shuffled.len() + 1, records, 1), "{out}");
    assert!(out.contains(".keep: 0 records") && out.contains("it is empty"), "{out}");
    assert_eq!(sum.windows[&Window::Daily], all(records, 0), "{out}");
    assert_exact(&dynamo);
    let error = try_run_on(&dynamo, &[folder.0.join("shard-1"), folder.0.join("gone")]).await.unwrap_err().to_string();
    assert!(error.contains("gone") && error.contains("cannot be read"), "{error}");
}

/// A folder that is there as long as the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("weirgate-replay-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Self(folder)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// More missing ranges than a snapshot keeps: what was given up is not called counted.
#[tokio::test]
async fn what_a_snapshot_has_given_up_is_left_and_said() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for _ in 0..60 {
        take(&table, &bucket("a", 0), 1_000).await;
    }
    let records = aggregator::records(&dynamo);
    let (kept, lost): (Vec<_>, Vec<_>) = records.iter().cloned().enumerate().partition(|(at, _)| at % 2 == 0);
    for (_, record) in kept {
        deliver(&table, &[record]).await;
    }
    let lost: Vec<_> = lost.into_iter().map(|(_, record)| record).collect();
    let Run { sum, out } = run(&dynamo, &wrapped(&lost), &[]).await;
    assert!(
        !sum.is_complete() && out.contains("13 records") && out.contains("given up its oldest missing ranges"),
        "{out}"
    );
    assert_eq!(sum.windows[&Window::Daily], all(17, 0), "{out}");
    // Also once there is room again.
    let again = run(&dynamo, &wrapped(&lost), &["--dry-run"]).await;
    assert!(again.out.contains("30 records") && !again.sum.is_complete(), "{}", again.out);
}

/// A run that writes nothing supposes snapshots that give up ranges as the real ones do.
#[tokio::test]
async fn a_dry_run_gives_up_what_a_run_would() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for _ in 0..60 {
        take(&table, &bucket("a", 0), 1_000).await;
    }
    let records = aggregator::records(&dynamo);
    let every_other = |from: usize| wrapped(&records.iter().skip(from).step_by(2).cloned().collect::<Vec<_>>());
    let input = [every_other(0), every_other(1)].join("\n");
    let dry = run(&dynamo, &input, &["--dry-run"]).await;
    assert!(dry.out.contains("given up its oldest missing ranges"), "{}", dry.out);
    assert_eq!(run(&dynamo, &input, &[]).await.sum, dry.sum, "{}", dry.out);
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_read_is_named() {
    let (dynamo, records) = used().await;
    deliver(&dynamo.table().await, &records[..8]).await;
    let mut snapshot = dynamo.item("default/ENTITY#a", "#USAGE#gpt-4#daily#2026-11-20T00:00:00Z");
    snapshot["q0"] = json!({"S": "far"});
    dynamo.put(&snapshot);
    for flags in [&["--dry-run"][..], &[]] {
        let left = run(&dynamo, &wrapped(&records), flags).await;
        assert!(!left.sum.is_complete(), "{}", left.out);
        assert!(
            left.out.contains("#USAGE#gpt-4#daily#2026-11-20T00:00:00Z cannot be read: attribute q0"),
            "{}",
            left.out
        );
    }
}

//! The tables of `docs/scaling.md` and `docs/guide/cost-by-volume.md` are computed, from facts that are
//! those of the code and of `template.yaml`. `WRITTEN=1 cargo test --workspace --test scaling` writes
//! them.

use std::path::Path;

use weirgate_tests as fixtures;

use crate::fixtures::aggregator;
use crate::fixtures::aggregator::{bucket, deliver_text, event, later, take_in};
use weirgate_aggregator::plan::INTERIM;
use weirgate_shared::Window;
use weirgate_testkit::emf::points;
use weirgate_testkit::template::{default_resources, properties, resources, template};
use weirgate_testkit::{Dynamo, Lines, Process};
use weirgate_tests::number::{self, Grouped};
use weirgate_tests::page::with_part;
use weirgate_tests::scaling::{
    a_million_at_one_a_second, facts, idle, keys, months, snapshot_units,
};

#[test]
fn the_tables_are_what_is_computed() {
    for (page, name, text) in
        [("scaling.md", "keys", keys()), ("guide/cost-by-volume.md", "months", months())]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
        let page = std::fs::read_to_string(&path).unwrap();
        let written = with_part(&page, name, &text).unwrap();
        if std::env::var_os("WRITTEN").is_some() {
            std::fs::write(&path, &written).unwrap();
            continue;
        }
        let path = path.display();
        assert!(written == page, "{path} is not current: run this with WRITTEN=1");
    }
}

#[test]
fn the_page_has_what_few_acquires_cost_by_window() {
    let page = include_str!("../../docs/scaling.md");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let [default, short, long] =
        [facts::BATCH_WINDOW_SECONDS, 5, 60].map(a_million_at_one_a_second);
    let sentence = format!(
        "a million acquires cost {default}. With `StreamBatchWindowSeconds=5` they cost {short}, with 60 {long}."
    );
    assert!(words.contains(&sentence), "{sentence}");
}

/// How many shards are on a partition is binomial, and a full one admits what it takes.
#[test]
fn shards_that_share_partitions_admit_what_the_page_says() {
    let acquires = 10_000.0;
    for (shards, percent) in [(16, "92 %"), (64, "100 %")] {
        let takes = number::count(facts::PARTITION_WRITE_UNITS) * f64::from(shards) / acquires;
        let (partitions, here) = (40.0_f64, 1.0 / 40.0);
        let mut likely = (1.0_f64 - here).powi(shards);
        let mut taken = 0.0;
        for held in 0..=shards {
            taken += likely * takes.min(f64::from(held));
            likely *= f64::from(shards - held) / f64::from(held + 1) * here / (1.0 - here);
        }
        let admitted = taken * partitions / f64::from(shards);
        assert_eq!(format!("{:.0} %", admitted * 100.0), percent, "{shards}");
        assert!(
            include_str!("../../docs/scaling.md").contains(&format!("{percent} with {shards}"))
        );
    }
}

#[test]
fn the_facts_about_the_stack_are_those_of_the_template() {
    let template = template();
    let default = |name: &str| &template["Parameters"][name]["Default"];
    for (name, fact) in [
        ("StreamBatchWindowSeconds", facts::BATCH_WINDOW_SECONDS),
        ("AggregatorMemoryMb", facts::MEMORY_MB),
        ("ReconcilerMemoryMb", facts::MEMORY_MB),
    ] {
        assert_eq!(default(name).as_i64(), Some(i64::try_from(fact).unwrap()), "{name}");
    }
    let stream = &properties("Aggregator")["Events"]["Stream"]["Properties"];
    assert_eq!(stream["BatchSize"], facts::BATCH_RECORDS);
    assert_eq!(facts::WINDOWS, u64::try_from(Window::ALL.len()).unwrap());
    assert_eq!(facts::INTERIM_WRITES, u64::try_from(INTERIM).unwrap());
    assert_eq!(facts::REFILL_WRITES, u64::try_from(weirgate_aggregator::REFILL_WRITES).unwrap());
    assert_eq!(
        default("Architecture").as_str(),
        Some("arm64"),
        "the price of a GB-second is that of arm64"
    );
}

#[test]
fn the_alarms_and_metrics_that_are_paid_for_are_those_of_the_template() {
    let (resources, made) = (resources(), default_resources());
    let of_type = |wanted| {
        let by_default = made.iter().map(|name| &resources[name]);
        by_default.filter(move |resource| resource["Type"] == wanted)
    };
    // One of metric math is paid for each metric that it reads.
    let metrics = |alarm: &serde_json::Value| match alarm["Properties"]["Metrics"].as_array() {
        Some(metrics) => metrics.len() - 1,
        None => 1,
    };
    let watched: usize = of_type("AWS::CloudWatch::Alarm").map(metrics).sum();
    assert_eq!(u64::try_from(watched).unwrap(), facts::ALARM_METRICS);
    assert_eq!(of_type("AWS::Logs::MetricFilter").count(), 0);
    let idle = idle().0 * 730;
    assert!(
        (2_500_000_000_000..3_500_000_000_000).contains(&idle),
        "docs/deployment.md says three dollars: {idle}"
    );
}

/// More than its quota no table takes, warm or not.
#[test]
fn the_advised_warm_throughput_is_one_that_a_table_may_have() {
    let (factor, quota) = (facts::WARM_FACTOR, facts::TABLE_QUOTA);
    assert!(factor * facts::WARMED_PEAK <= quota);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let scaling = words(include_str!("../../docs/scaling.md"));
    let peak = format!("a known peak of up to {} writes a second", Grouped(facts::WARMED_PEAK));
    assert!(scaling.contains(&peak), "{peak}");
    // Whatever else is advised names the quota to raise first.
    let raised = format!("raise the table's quota of {} first", Grouped(quota));
    assert!(scaling.contains(&raised), "{raised}");
    let placed = format!(
        "{} acquires a second on {} partitions",
        Grouped(facts::WARMED_PEAK),
        facts::WARMED_PEAK * factor / facts::PARTITION_WRITE_UNITS
    );
    assert!(scaling.contains(&placed), "{placed}");
    let template = template()["Parameters"]["WarmThroughput"]["Description"].take();
    for (name, text) in [
        ("scaling.md", scaling.as_str()),
        ("deployment.md", &words(include_str!("../../docs/deployment.md"))),
        ("guide/shards.md", &words(include_str!("../../docs/guide/shards.md"))),
        ("template.yaml", &words(template.as_str().expect("a text"))),
    ] {
        for said in ["four times", "share partitions", &Grouped(quota).to_string()] {
            assert!(text.contains(said), "{name} lacks {said}");
        }
    }
    assert_eq!(factor, 4, "four times");
}

/// The line of a batch that copies, and of a run that finds nothing. A start adds one metric.
#[tokio::test]
async fn a_call_logs_one_line_of_the_size_and_with_the_metrics_that_are_paid_for() {
    let lines = Lines::default();
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for hours in [0, 1] {
        take_in(&table, &bucket("openai", 0), 1_250_000, hours).await;
    }
    let batch = event(&aggregator::records(&dynamo));
    let request = "7d8c1f6e-2f4a-4c55-9a63-0b8e5f1d2c3a";
    let trace = Some("Root=1-6560a5c4-3f2b1c0d9e8f7a6b5c4d3e2f;Parent=53995c3f42cd8ad8;Sampled=1");
    let aggregator = Process::start(weirgate_aggregator::function, table.clone(), &lines);
    let reconciler = Process::start(weirgate_reconciler::function, table, &lines);
    for _ in 0..2 {
        aggregator.invoke(&batch, request, trace).await.unwrap();
        reconciler.invoke("{}", request, trace).await.unwrap();
    }
    let text = lines.text();
    assert_eq!(text.lines().count(), 4);
    let metrics = |line: &str| {
        let points = points(&serde_json::from_str(line).unwrap()).into_iter();
        points.filter(|point| point.name != "cold_start").count()
    };
    let [batch, run, later @ ..] = &text.lines().collect::<Vec<_>>()[..] else {
        panic!("four lines");
    };
    for (line, paid) in [(batch, facts::BUSY_METRICS), (run, facts::IDLE_METRICS)] {
        assert_eq!(u64::try_from(metrics(line)).unwrap(), paid, "{line}");
    }
    let bytes = |line: &str| u64::try_from(line.len()).unwrap() + 1 + 26;
    for line in later {
        let (bytes, most) = (bytes(line), facts::LOG_BYTES);
        assert!(bytes <= most && bytes * 5 >= most * 4, "{bytes}: {line}");
    }
}

/// All shards are in the snapshots of the day and of the first hour when the last one of them ends
/// that hour.
#[tokio::test]
async fn a_copy_costs_what_the_aggregator_is_billed() {
    let mut shards = 1_u32;
    while u64::from(shards) <= facts::MAX_SHARDS {
        let dynamo = Dynamo::new().await;
        let (table, meter) = dynamo.metered().await;
        // The second hour begins a day.
        for hours in [0, 6] {
            for shard in 0..shards {
                take_in(&table, &bucket("openai", shard), 1_234_567, hours).await;
            }
        }
        let (mut ends, mut spent) =
            (aggregator::records(&dynamo).split_off(usize::try_from(shards).unwrap()), 0.0);
        let last = ends.pop().unwrap();
        for records in [ends, vec![last]] {
            let _ = meter.take();
            deliver_text(&table, &event(&records), later(6)).await;
            spent = meter.take().total;
        }
        // Its last copies for the hour and the day, and the first one for the new day.
        let model = (facts::WINDOWS + 1) * snapshot_units(u64::from(shards));
        assert_eq!(spent, f64::from(u32::try_from(model).unwrap()), "{shards} shards");
        shards *= 2;
    }
}

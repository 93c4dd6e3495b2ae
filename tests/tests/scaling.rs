//! `docs/scaling.md`: its numbers are the program's, and the program's are those of the code and of
//! `template.yaml`.

use weirgate_tests as fixtures;

use crate::fixtures::aggregator;
use crate::fixtures::aggregator::{bucket, deliver_text, event, later, take, take_in};
use weirgate_aggregator::plan::INTERIM;
use weirgate_shared::Window;
use weirgate_testkit::emf::points;
use weirgate_testkit::template::{default_resources, properties, resources, template};
use weirgate_testkit::{Dynamo, Lines, Process};
use weirgate_tools::scaling::{
    Numbers, PicoDollars, Scenario, call_ms, day_end_units, facts, function_records, idle, page,
    picture, readable_records, volume,
};

/// One to a million and beyond, about 70 of each power of ten.
fn rates() -> Vec<u64> {
    std::iter::successors(Some(1_u64), |rate| Some(rate + (rate / 30).max(1)))
        .take_while(|rate| *rate < 3_000_000)
        .collect()
}

#[test]
fn the_page_and_the_picture_are_what_the_program_writes() {
    let page = include_str!("../../docs/scaling.md");
    assert!(
        page::written(page).unwrap() == page,
        "docs/scaling.md is out of date: run `make scaling`"
    );
    let picture = include_str!("../../docs/scaling.svg");
    assert!(
        picture::drawn() == picture,
        "docs/scaling.svg is out of date: run `make scaling`"
    );
}

#[test]
fn the_months_of_the_guide_are_what_the_program_writes() {
    let guide = include_str!("../../docs/guide/cost-by-volume.md");
    assert!(
        weirgate_tools::page::with_parts(guide, &volume::parts()).unwrap() == guide,
        "docs/guide/cost-by-volume.md is out of date: run `make scaling`"
    );
    // A million lone acquires are their write units, the calls of the aggregator, and the idle stack.
    let month = volume::PROFILES[0].month(1_000_000);
    let calls = month.aggregator.0 / 1_001_000;
    assert_eq!(
        month.writes,
        PicoDollars(1_001_000 * facts::WRITE_UNIT_PRICE)
    );
    assert_eq!(month.idle, PicoDollars(idle().0 * 730));
    assert!(
        (200_000..1_000_000).contains(&calls),
        "{calls} picodollars a call"
    );
    for profile in volume::PROFILES {
        let months: Vec<_> = volume::VOLUMES
            .map(|volume| profile.month(volume).total())
            .into();
        assert!(months.is_sorted(), "{profile:?}: {months:?}");
    }
}

#[test]
fn the_refills_that_are_counted_are_those_of_the_code() {
    assert_eq!(
        facts::REFILL_WRITES,
        u64::try_from(weirgate_aggregator::REFILL_WRITES).unwrap()
    );
}

#[test]
fn a_page_without_a_mark_is_refused() {
    let page = include_str!("../../docs/scaling.md").replace("<!-- end: limits -->", "");
    assert_eq!(
        page::written(&page).unwrap_err(),
        "the page has no line \"<!-- end: limits -->\""
    );
}

#[test]
fn ten_thousand_acquires_of_callers_alone_take_sixteen_shards() {
    let Numbers {
        keys,
        shards,
        writes,
        ..
    } = Scenario::alone(10_000).numbers();
    assert_eq!((keys, shards, writes), (1, 16, 10_000));
    let shards = |scenario: Scenario| (scenario.numbers().keys, scenario.numbers().shards);
    assert_eq!(shards(Scenario::shared(10_000)), (1, 1));
    assert_eq!(shards(Scenario::shared(100_000)), (1, 8));
    assert_eq!(shards(Scenario::shared(1_000_000)), (1, 64));
    let beyond = Scenario::alone(100_000).numbers();
    assert!(!beyond.fits_one_key());
    assert_eq!(
        (beyond.shards_of_one_key, beyond.keys, beyond.shards),
        (128, 2, 64)
    );
}

#[test]
fn shards_are_a_power_of_two_that_is_enough_and_never_above_the_cap() {
    let cap = facts::MAX_SHARDS;
    assert!(
        cap.is_power_of_two()
            && cap <= facts::TRANSACTION_ITEMS
            && 2 * cap > facts::TRANSACTION_ITEMS
    );
    for numbers in rates()
        .into_iter()
        .flat_map(|rate| [Scenario::alone(rate), Scenario::shared(rate)])
    {
        let numbers = numbers.numbers();
        let Numbers {
            keys,
            shards,
            writes,
            shards_of_one_key,
            ..
        } = numbers;
        assert!(shards.is_power_of_two() && shards <= cap, "{numbers:?}");
        assert!(writes <= keys * shards * facts::SHARD_WRITES, "{numbers:?}");
        assert_eq!(shards_of_one_key <= cap, keys == 1, "{numbers:?}");
        assert!(
            shards == 1 || writes.div_ceil(keys) > shards / 2 * facts::SHARD_WRITES,
            "no shard too many: {numbers:?}"
        );
    }
}

#[test]
fn more_acquires_cost_more_and_more_sharing_costs_less() {
    let mut last = PicoDollars(0);
    for rate in rates() {
        let hour = |acquires_per_write| {
            Scenario {
                acquires: rate,
                acquires_per_write,
            }
            .numbers()
            .hour
            .total()
        };
        assert!(hour(1) >= last, "{rate} acquires a second");
        last = hour(1);
        let sharing: Vec<_> = (1..40).map(hour).collect();
        assert!(
            sharing.is_sorted_by(|few, many| few >= many),
            "{rate} acquires a second: {sharing:?}"
        );
    }
}

#[test]
fn an_acquire_costs_its_write_unit_and_little_more() {
    for rate in rates().into_iter().filter(|rate| *rate >= 1_000) {
        let Numbers {
            hour, peer_hour, ..
        } = Scenario::alone(rate).numbers();
        let (writes, all) = (hour.acquires, hour.total());
        assert!(
            writes < all && all.0 < writes.0 / 100 * 104,
            "{rate} acquires a second: {writes} of {all}"
        );
        assert!(
            peer_hour.0 > 9 * all.0,
            "{rate} acquires a second: {all}, and {peer_hour}"
        );
    }
}

#[test]
fn the_stream_the_function_and_the_usage_keep_up_with_a_full_shard() {
    for numbers in rates()
        .into_iter()
        .map(|rate| Scenario::alone(rate).numbers())
    {
        let of_a_shard = numbers.records.div_ceil(numbers.all_shards());
        assert!(of_a_shard <= readable_records(), "{numbers:?}");
        assert!(
            of_a_shard <= facts::BATCH_RECORDS,
            "a batch holds what a second brings: {numbers:?}"
        );
        assert!(
            numbers.call_ms < 1_000 * facts::BATCH_WINDOW_SECONDS,
            "{numbers:?}"
        );
        assert!(
            numbers.usage_units_of_a_key.div_ceil(3_600) <= 100,
            "{numbers:?}"
        );
        assert!(
            numbers.running_milli() <= 1_000 * numbers.calls_at_once(),
            "{numbers:?}"
        );
    }
    const { assert!(facts::BATCH_RECORDS * facts::EVENT_BYTES <= facts::PAYLOAD_BYTES) };
    assert!(call_ms(function_records()) >= 1_000);
}

#[test]
fn the_facts_about_the_stack_are_those_of_the_template() {
    let template = template();
    let default = |name: &str| &template["Parameters"][name]["Default"];
    for (name, fact) in [
        ("StreamBatchWindowSeconds", facts::BATCH_WINDOW_SECONDS),
        ("StreamParallelizationFactor", facts::PARALLELIZATION),
        ("AggregatorMemoryMb", facts::MEMORY_MB),
        ("ReconcilerMemoryMb", facts::MEMORY_MB),
    ] {
        assert_eq!(
            default(name).as_i64(),
            Some(i64::try_from(fact).unwrap()),
            "{name}"
        );
    }
    let stream = &properties("Aggregator")["Events"]["Stream"]["Properties"];
    assert_eq!(stream["BatchSize"], facts::BATCH_RECORDS);
    assert_eq!(facts::WINDOWS, u64::try_from(Window::ALL.len()).unwrap());
    assert_eq!(facts::INTERIM_WRITES, u64::try_from(INTERIM).unwrap());
    assert!(
        day_end_units(facts::MAX_SHARDS) <= 600,
        "in any second after the end of a day"
    );
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
    let (batch_metrics, run_metrics) = (metrics(batch), metrics(run));
    assert_eq!(u64::try_from(run_metrics).unwrap(), facts::IDLE_METRICS);
    let busy = batch_metrics + run_metrics;
    assert_eq!(u64::try_from(busy).unwrap(), facts::BUSY_METRICS);
    let bytes = |line: &str| u64::try_from(line.len()).unwrap() + 1 + 26;
    for line in later {
        let (bytes, most) = (bytes(line), facts::LOG_BYTES);
        assert!(bytes <= most && bytes * 5 >= most * 4, "{bytes}: {line}");
    }
}

#[tokio::test]
async fn a_record_is_as_large_as_an_acquire_makes_it() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for _ in 0..10 {
        take(&table, &bucket("openai", 0), 1_250_000).await;
    }
    let record = dynamo.stream().pop().unwrap();
    let about = |bytes: u64, fact: u64| {
        assert!(
            bytes <= fact && bytes * 5 >= fact * 4,
            "{bytes} bytes, not {fact}"
        )
    };
    about(
        record["dynamodb"]["SizeBytes"].as_u64().unwrap(),
        facts::RECORD_BYTES,
    );
    // Lambda adds the stream's name to each record.
    let arn = ",\"eventSourceARN\":\"arn:aws:dynamodb:us-east-1:123456789012:table/weirgate-Table-1ABCDEFGHIJKL/stream/2026-11-20T18:00:00.000\"";
    about(
        u64::try_from(record.to_string().len() + arn.len()).unwrap(),
        facts::EVENT_BYTES,
    );
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
        let (mut ends, mut spent) = (
            aggregator::records(&dynamo).split_off(usize::try_from(shards).unwrap()),
            0.0,
        );
        let last = ends.pop().unwrap();
        for records in [ends, vec![last]] {
            let _ = meter.take();
            deliver_text(&table, &event(&records), later(6)).await;
            spent = meter.take().total;
        }
        let model = day_end_units(u64::from(shards)) / u64::from(shards);
        assert_eq!(
            spent,
            f64::from(u32::try_from(model).unwrap()),
            "{shards} shards"
        );
        shards *= 2;
    }
}

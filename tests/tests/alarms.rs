//! The alarms of `template.yaml`, each evaluated over the minutes of a trouble: it rings, and it is
//! quiet when the trouble is over. `testkit/src/alarm.rs` has the rules of CloudWatch.

use serde_json::{Value, json};
use weirgate_testkit::alarm::{periods, rings, rings_by};
use weirgate_testkit::template::{properties, read, resources, template};

/// An alarm, its metric in health, and its metric in trouble.
type Case<'a> = (&'a str, Option<i64>, &'a [Option<i64>]);

/// `MaxHourlyWriteUnits` of a deployment: about $5 an hour.
const PLANNED_UNITS: i64 = 8_000_000;

/// The properties of an alarm in a deployment.
fn deployed(name: &str) -> Value {
    let mut alarm = properties(name);
    if alarm["Threshold"] == json!({"Ref": "MaxHourlyWriteUnits"}) {
        alarm["Threshold"] = PLANNED_UNITS.into();
    }
    alarm
}

/// Minutes of health, of trouble, and of health.
fn through(name: &str, healthy: Option<i64>, trouble: &[Option<i64>]) {
    let (alarm, mut series) = (deployed(name), vec![healthy; 20]);
    assert!(!rings_by(&alarm, &series), "{name} rings without any reason");
    series.extend(trouble);
    assert!(rings_by(&alarm, &series), "{name} does not ring at {trouble:?}");
    series.extend(vec![healthy; 20]);
    assert!(!rings_by(&alarm, &series), "{name} does not end");
}

#[test]
fn every_alarm_hears_of_its_trouble_and_ends_with_it() {
    let none = [None];
    let cases: [Case<'_>; 17] = [
        // A sum of metrics that are 0 where they are missing: FILL.
        ("TableThrottledAlarm", Some(0), &[Some(9); 5]),
        ("HourlyWritesAlarm", Some(PLANNED_UNITS), &[Some(PLANNED_UNITS + 1)]),
        ("StreamUnreadAlarm", Some(5), &[None; 3]),
        // One stuck shard, tried again every four minutes, among healthy ones.
        ("AggregatorLagAlarm", Some(900), &stuck(70_000)),
        ("AggregatorErrorsAlarm", Some(0), &stuck(1)),
        ("AggregatorThrottledAlarm", None, &stuck(1)),
        ("ReconcilerThrottledAlarm", Some(0), &[Some(1); 2]),
        ("AggregatorSlowAlarm", Some(300), &stuck(59_000)),
        ("ReconcilerSlowAlarm", Some(800), &[Some(48_000)]),
        ("DiscardedRecordsAlarm", None, &[Some(1_000)]),
        ("DroppedRecordsAlarm", None, &[Some(1)]),
        ("UndecodableRecordsAlarm", None, &[Some(1)]),
        ("UndecodableBucketsAlarm", None, &[Some(1)]),
        ("RefusedWritesAlarm", None, &[Some(1)]),
        ("OverdueLeasesAlarm", Some(59_000), &[Some(901_000)]),
        ("ReconcilerAbsentAlarm", Some(1), &none.repeat(5)),
        ("DeadLettersAlarm", Some(0), &[Some(1)]),
    ];
    for (name, healthy, trouble) in cases {
        through(name, healthy, trouble);
    }
    let mut named: Vec<_> = cases.iter().map(|(name, ..)| (*name).to_owned()).collect();
    named.sort();
    let all = resources()
        .into_iter()
        .filter(|(_, resource)| resource["Type"] == "AWS::CloudWatch::Alarm");
    let mut all: Vec<_> = all.map(|(name, _)| name).collect();
    all.sort();
    assert_eq!(named, all);
}

/// A minute in four has `value`, the others are missing.
fn stuck(value: i64) -> [Option<i64>; 9] {
    std::array::from_fn(|minute| (minute % 4 == 0).then_some(value))
}

/// A record that comes alone waits through the whole window, and then the next one may come.
#[test]
fn a_batch_window_is_no_lag_and_a_minute_beyond_it_is() {
    let alarm = properties("AggregatorLagAlarm");
    let without_window = json!({"Fn::Sub": "age - 1000 * ${StreamBatchWindowSeconds}"});
    assert_eq!(alarm["Metrics"][0]["Expression"], without_window);
    let parameter = template()["Parameters"]["StreamBatchWindowSeconds"].take();
    let [least, most] = ["MinValue", "MaxValue"].map(|bound| parameter[bound].as_i64().unwrap());
    for window in least..=most {
        let minutes = usize::try_from(window / 60).unwrap().max(1);
        let rings = |age: i64| {
            let late = age - 1000 * window;
            let ages: Vec<_> =
                (0..60).map(|minute| (minute % minutes == 0).then_some(late)).collect();
            rings_by(&alarm, &ages)
        };
        assert!(!rings((window + 1) * 1000), "{window}");
        assert!(rings((window + 61) * 1000), "{window}");
    }
}

/// An idle stream is polled too: an empty poll is a value of 0, and counts as a sample.
#[test]
fn an_idle_stream_is_no_alarm_and_one_that_is_not_read_is() {
    let alarm = properties("StreamUnreadAlarm");
    assert_eq!(
        (&alarm["Statistic"], &alarm["MetricName"]),
        (&"SampleCount".into(), &"PolledEventCount".into())
    );
    // SAM names a mapping after its function and event.
    assert_eq!(alarm["Dimensions"][0]["Value"]["Ref"], "AggregatorStream");
    let mapping = &properties("Aggregator")["Events"]["Stream"]["Properties"];
    assert_eq!(mapping["MetricsConfig"]["Metrics"][0], "EventCount", "or there is no such metric");
    assert!(rings("StreamUnreadAlarm", &[]), "a mapping that was never enabled");
    // A day at which usage is lost is far away.
    let (least, period) = (periods(&alarm).0, alarm["Period"].as_u64().unwrap());
    assert_eq!(u64::try_from(least).unwrap() * period, 900);
}

#[test]
fn slow_is_nine_tenths_of_the_timeout() {
    for function in ["Aggregator", "Reconciler"] {
        let timeout = properties(function)["Timeout"].as_i64().unwrap();
        let alarm = properties(&format!("{function}SlowAlarm"));
        assert_eq!(alarm["Threshold"].as_i64(), Some(timeout * 900), "{function}");
    }
}

/// At the slowest schedule every bucket may be due for as long as it takes until the next run.
#[test]
fn leases_are_overdue_after_more_than_the_slowest_schedule() {
    let rate = template()["Parameters"]["ReconcileRate"]["ConstraintDescription"].take();
    let slowest: i64 = rate
        .as_str()
        .unwrap()
        .split("to rate(")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let alarm = properties("OverdueLeasesAlarm");
    assert!(alarm["Threshold"].as_i64().unwrap() > slowest * 60_000);
    assert!(alarm["Period"].as_i64().unwrap() >= slowest * 60);
}

/// Minutes between two runs of the reconciler that `ReconcileRate` allows, each with the minutes
/// that the first run can have.
fn allowed_rates() -> impl Iterator<Item = (usize, usize)> {
    let pattern = template()["Parameters"]["ReconcileRate"]["AllowedPattern"].take();
    assert_eq!(pattern, r"^rate\((1 minute|([2-9]|10) minutes)\)$");
    (1..=10).flat_map(|rate| (0..rate).map(move |first| (rate, first)))
}

/// Two hours of minutes, of which one of each `rate`, from minute `first` on, has `value`.
fn minutes(value: i64, rate: usize, first: usize) -> Vec<Option<i64>> {
    let minutes = 0..120;
    minutes.map(|minute| (minute % rate == first % rate).then_some(value)).collect()
}

/// The values of an alarm's periods.
fn periods_of(alarm: &Value, minutes: &[Option<i64>]) -> Vec<Option<i64>> {
    let period = usize::try_from(alarm["Period"].as_u64().unwrap() / 60).unwrap();
    let values = minutes.chunks(period).map(|of| {
        let of = of.iter().copied().flatten();
        match alarm["Statistic"].as_str().unwrap() {
            "Sum" => of.reduce(|sum, next| sum + next),
            "Minimum" => of.min(),
            "Maximum" => of.max(),
            "SampleCount" => i64::try_from(of.count()).ok().filter(|count| *count > 0),
            other => panic!("{alarm} has {other}"),
        }
    });
    values.collect()
}

/// One value a run, whatever Lambda tries again.
#[test]
fn alarms_of_the_reconciler_hear_of_every_run_at_every_allowed_schedule() {
    for (name, healthy, trouble) in [
        ("ReconcilerThrottledAlarm", 0, 1),
        ("ReconcilerSlowAlarm", 800, 46_000),
        ("OverdueLeasesAlarm", 59_000, 901_000),
        ("DeadLettersAlarm", 0, 1),
        ("UndecodableBucketsAlarm", 0, 1),
    ] {
        let alarm = properties(name);
        for (rate, first) in allowed_rates() {
            let healthy = periods_of(&alarm, &minutes(healthy, rate, first));
            assert!(!rings_by(&alarm, &healthy), "{name} every {rate} minutes");
            let trouble = periods_of(&alarm, &minutes(trouble, rate, first));
            let mut ends = 1..=trouble.len();
            let is_heard = ends.any(|end| rings_by(&alarm, &trouble[..end]));
            assert!(is_heard, "{name} every {rate} minutes");
            let over = [trouble, healthy].concat();
            assert!(!rings_by(&alarm, &over), "{name} every {rate} minutes does not end");
        }
    }
}

/// All tries of a run may meet one trouble of the table. Those of the next one are a minute late at most.
#[test]
fn a_reconciler_is_absent_once_two_runs_in_a_row_are_missing_and_not_before() {
    let absent = properties("ReconcilerAbsentAlarm");
    for (rate, first) in allowed_rates() {
        for missing in 0..=2 {
            let mut minutes = minutes(1, rate, first);
            minutes[60..60 + missing * rate].fill(None);
            if let Some(next) = minutes[60..].iter().position(Option::is_some) {
                minutes.swap(60 + next, 61 + next);
            }
            let runs = periods_of(&absent, &minutes);
            let mut ends = periods(&absent).1..=runs.len();
            let is_heard = ends.any(|end| rings_by(&absent, &runs[..end]));
            assert!(missing == 2 || !is_heard, "{missing} every {rate} minutes");
            assert!(missing < 2 || rate < 10 || is_heard, "every {rate} minutes");
        }
    }
    let span = absent["Period"].as_u64().unwrap() * absent["EvaluationPeriods"].as_u64().unwrap();
    let text = absent["AlarmDescription"]["Fn::Sub"].as_str().unwrap();
    let span = format!("for {} minutes", span / 60);
    assert!(text.contains(&span), "{text}");
    assert!(
        include_str!("../../docs/operations.md")
            .contains(&format!("`ReconcilerAbsentAlarm`: {span}"))
    );
}

/// What CloudWatch has of runs that fail: Lambda starts them, and they write no metric.
#[test]
fn an_essential_alarm_hears_of_a_reconciler_whose_runs_all_fail() {
    let series = |alarm: &Value| (alarm["Namespace"] == "AWS/Lambda").then_some(1);
    let is_of_reconciler = |alarm: &Value| {
        let dimensions = alarm["Dimensions"].to_string();
        dimensions.contains("Reconciler") || dimensions.contains("\"reconciler\"")
    };
    let alarms = resources().into_iter().filter(|(_, alarm)| {
        alarm["Type"] == "AWS::CloudWatch::Alarm" && alarm["Condition"] == "HasAlarms"
    });
    let rung = alarms.filter(|(_, alarm)| {
        let alarm = &alarm["Properties"];
        is_of_reconciler(alarm) && rings_by(alarm, &[series(alarm); 20])
    });
    let rung: Vec<_> = rung.map(|(name, _)| name).collect();
    assert_eq!(rung, ["ReconcilerAbsentAlarm"]);
    // One that runs, and cannot read the index, does not write this one either (`metrics/line.rs`).
    assert_eq!(
        properties("ReconcilerAbsentAlarm")["MetricName"],
        properties("OverdueLeasesAlarm")["MetricName"]
    );
}

/// Those that are left out say earlier, or more exactly, what one of the others says.
#[test]
fn essential_alarms_are_of_wrong_denials_and_of_lost_usage() {
    let template = template();
    let alarms = resources()
        .into_iter()
        .filter(|(_, resource)| resource["Type"] == "AWS::CloudWatch::Alarm");
    let left_out = alarms.filter(|(_, alarm)| alarm["Condition"] == "HasAllAlarms");
    let mut left_out: Vec<_> = left_out.map(|(name, _)| name).collect();
    left_out.sort();
    assert_eq!(
        left_out,
        [
            "AggregatorErrorsAlarm",
            "AggregatorSlowAlarm",
            "AggregatorThrottledAlarm",
            "DeadLettersAlarm",
            "ReconcilerSlowAlarm",
            "ReconcilerThrottledAlarm"
        ]
    );
    let condition = |name: &str| template["Conditions"][name].clone();
    let alarms = json!({"Ref": "Alarms"});
    let none = json!({"Fn::Not": [{"Fn::Equals": [alarms, "false"]}]});
    assert_eq!(condition("HasAlarms"), none);
    let all = json!({"Fn::Equals": [alarms, "true"]});
    assert_eq!(condition("HasAllAlarms"), all);
    // Each has one metric, and a metric of an alarm is 10 cents a month.
    let page = include_str!("../../docs/deployment.md");
    let saved =
        format!("saves ${:.2} a month", 0.1 * f64::from(u8::try_from(left_out.len()).unwrap()));
    assert!(page.contains(&saved), "{saved}");
}

/// The table's metrics are missing when nothing is throttled, and CloudWatch ignores that: an alarm
/// would never end.
#[test]
fn throttling_that_is_over_counts_as_zero() {
    let metrics = properties("TableThrottledAlarm")["Metrics"].take();
    let (sum, of) = metrics.as_array().unwrap().split_first().unwrap();
    let filled = of.iter().map(|metric| format!("FILL({}, 0)", metric["Id"].as_str().unwrap()));
    assert_eq!(sum["Expression"], filled.collect::<Vec<_>>().join(" + "));
    let named: Vec<_> = of
        .iter()
        .map(|metric| metric["MetricStat"]["Metric"]["MetricName"].as_str().unwrap())
        .collect();
    assert_eq!(
        named,
        ["ThrottledRequests", "ThrottledRequests", "WriteThrottleEvents", "ReadThrottleEvents"]
    );
    assert!(
        of.iter().all(
            |metric| metric["MetricStat"]["Metric"]["Dimensions"][0]["Value"]["Ref"] == "Table"
        )
    );
    let operations: Vec<_> = of
        .iter()
        .filter_map(|metric| metric["MetricStat"]["Metric"]["Dimensions"][1]["Value"].as_str())
        .collect();
    assert_eq!(operations, ["UpdateItem", "TransactWriteItems"]);
}

/// A write of an item is one of its indexes too, and each is billed. As the dashboard's dollars, whose
/// ids are the same.
#[test]
fn the_units_of_an_hour_are_those_of_the_table_and_all_its_indexes() {
    let alarm = properties("HourlyWritesAlarm");
    let [sum, units @ ..] = alarm["Metrics"].as_array().expect("metrics").as_slice() else {
        panic!("{alarm}")
    };
    let filled = (0..units.len()).map(|of| format!("FILL(w{of}, 0)"));
    let filled = filled.collect::<Vec<_>>().join(" + ");
    assert_eq!(*sum, json!({"Id": "sum", "Expression": filled}));
    let table = json!({"Name": "TableName", "Value": {"Ref": "Table"}});
    let indexes = properties("Table")["GlobalSecondaryIndexes"].take();
    let indexes = indexes.as_array().expect("indexes").iter();
    let indexes = indexes.map(|index| {
        let index = json!({"Name": "GlobalSecondaryIndexName", "Value": index["IndexName"]});
        json!([table, index])
    });
    let all: Vec<_> = [json!([table])].into_iter().chain(indexes).collect();
    assert_eq!(units.len(), all.len());
    let dashboard = properties("OnCall")["DashboardBody"].to_string();
    for (at, (metric, dimensions)) in units.iter().zip(all).enumerate() {
        let id = format!("w{at}");
        let of = json!({
            "Namespace": "AWS/DynamoDB",
            "MetricName": "ConsumedWriteCapacityUnits",
            "Dimensions": dimensions,
        });
        let stat = json!({"Metric": of, "Period": 3600, "Stat": "Sum"});
        let expected = json!({"Id": id, "ReturnData": false, "MetricStat": stat});
        assert_eq!(*metric, expected);
        assert!(dashboard.contains(&format!("FILL({id}, 0)")), "{id}");
    }
    assert!(!dashboard.contains(&format!("FILL(w{}, 0)", units.len())));
}

/// It costs five metrics, and rings at an expected peak too, so only a number of the deployer makes
/// it. Without alarms that number would have no effect, and is refused.
#[test]
fn the_alarm_on_the_units_of_an_hour_is_there_for_a_number_alone() {
    let template = read(include_str!("../../template.yaml"));
    let parameter = &template["Parameters"]["MaxHourlyWriteUnits"];
    assert_eq!((&parameter["Default"], &parameter["MinValue"]), (&json!(0), &json!(0)));
    let is = |value| json!({"Fn::Equals": [{"Ref": "MaxHourlyWriteUnits"}, value]});
    let condition = resources()["HourlyWritesAlarm"]["Condition"].take();
    let condition = condition.as_str().expect("a condition");
    let some = json!({"Fn::Not": [is(json!(0))]});
    assert_eq!(template["Conditions"][condition], some);
    let asserted = &template["Rules"]["NoAlarms"]["Assertions"];
    let asserted = asserted.as_array().expect("assertions");
    let none = |each: &Value| each["Assert"] == is(json!("0"));
    assert!(asserted.iter().any(none), "{asserted:?}");
    // A metric of an alarm is 10 cents a month, and a million units are 62.5.
    let page = include_str!("../../docs/platform.md");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let dollars = PLANNED_UNITS * 625 / 1_000_000_000;
    assert!(words.contains(&format!("8,000,000 are ${dollars}")), "{dollars}");
    let metrics = properties("HourlyWritesAlarm")["Metrics"].as_array().map(Vec::len);
    let cost =
        format!("${:.2} a month", 0.1 * f64::from(u8::try_from(metrics.unwrap() - 1).unwrap()));
    assert!(words.contains(&cost), "{cost}");
}

/// Only by a choice of the deployer is there none.
#[test]
fn every_alarm_is_on_by_default_and_tells_when_it_begins_and_ends() {
    let template = template();
    assert_eq!(template["Parameters"]["Alarms"]["Default"], "true");
    let nothing = json!({"Ref": "AWS::NoValue"});
    let actions = json!([
        {"Fn::If": ["HasAlarmTopic", {"Ref": "AlarmTopicArn"}, nothing]},
        {"Fn::If": ["HasAlarmEmail", {"Ref": "AlarmTopic"}, nothing]},
    ]);
    for (name, resource) in resources() {
        if resource["Type"] != "AWS::CloudWatch::Alarm" {
            continue;
        }
        let condition = resource["Condition"].as_str().unwrap();
        let conditions: &[_] = match name.as_str() {
            "HourlyWritesAlarm" => &["WatchesWrites"],
            _ => &["HasAlarms", "HasAllAlarms"],
        };
        assert!(conditions.contains(&condition), "{name}");
        for on in ["AlarmActions", "OKActions"] {
            assert_eq!(resource["Properties"][on], actions, "{name} {on}");
        }
    }
}

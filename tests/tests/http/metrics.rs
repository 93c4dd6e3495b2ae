//! What operators see: metrics through the facade, few of them however many callers there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::fixtures::fleet::{Fleet, ask, denied, granted, millis, pass, runtime, secs};
use crate::fixtures::recorder::Recorded;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use weirgate::{CircuitBreakerConfig, Limit, OnUnavailable, Prefetch, VendorCount, VendorReport};
use weirgate_testkit::Fault;

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 60).unwrap()]
}

/// Every metric that was told, with its labels: the sum of a counter, the number of values of a
/// histogram.
fn told(work: impl AsyncFnOnce(&Fleet)) -> BTreeMap<String, u64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            work(&fleet).await;
        });
    });
    let read = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let labels: Vec<_> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let count = match value {
            DebugValue::Counter(sum) => sum,
            DebugValue::Histogram(values) => {
                assert!(
                    values.iter().all(|seconds| (0.0..10.0).contains(&seconds.into_inner())),
                    "seconds"
                );
                u64::try_from(values.len()).unwrap()
            }
            // Neither breaker nor pool is left when the limiters are gone.
            DebugValue::Gauge(value) => {
                assert_eq!(value.into_inner(), 0.0, "{}", key.key().name());
                0
            }
        };
        (format!("{}{{{}}}", key.key().name(), labels.join(",")), count)
    };
    snapshotter.snapshot().into_vec().into_iter().map(read).collect()
}

#[test]
fn every_decision_is_told_by_its_outcome() {
    let metrics = told(async |fleet| {
        let limiter = fleet.limiter().await;
        let _ = granted(&limiter, &rpm(), &[("rpm", 60)]).await;
        for _ in 0..4 {
            pass(millis(1)).await;
            denied(&limiter, &rpm(), &[("rpm", 1)]).await;
        }
        let _ = ask(&limiter, &rpm(), &[("rpm", 61)]).send().await.unwrap();
        let _ = ask(&limiter, &rpm(), &[("rpm", -1)]).send().await.expect_err("nothing is asked");
        let shadow = fleet.limiter_with(|builder| builder.shadow(true)).await;
        let _ = granted(&shadow, &rpm(), &[("rpm", 1)]).await;
        let breaker =
            CircuitBreakerConfig { failure_threshold: 2, ..CircuitBreakerConfig::default() };
        let away = fleet
            .limiter_with(|builder| builder.timeout(millis(50)).circuit_breaker(breaker))
            .await;
        fleet.fail_reads(Fault::LoseRequest);
        let _ = ask(&away, &rpm(), &[("rpm", 1)])
            .on_unavailable(OnUnavailable::Allow)
            .send()
            .await
            .unwrap();
        let _ = ask(&away, &rpm(), &[("rpm", 1)])
            .on_unavailable(OnUnavailable::Deny)
            .send()
            .await
            .unwrap();
    });
    let outcomes = [
        ("granted", 1),
        ("denied", 4),
        ("never_fits", 1),
        ("error", 1),
        ("granted_shadow", 1),
        ("granted_degraded", 1),
        ("denied_degraded", 1),
    ];
    for (outcome, times) in outcomes {
        let name = format!("weirgate_decision_seconds{{outcome={outcome}}}");
        assert_eq!(metrics.get(&name), Some(&times), "{name} of {metrics:?}");
    }
    let counters = [
        ("granted", 3),
        ("denied", 5),
        ("local_denied", 4),
        ("shadow_denied", 1),
        ("degraded", 2),
        ("breaker_opened", 1),
    ];
    for (name, times) in counters {
        let name = format!("weirgate_{name}_total{{}}");
        assert_eq!(metrics.get(&name), Some(&times), "{name} of {metrics:?}");
    }
    let at_least = |name: &str, times| metrics[&format!("weirgate_{name}_total{{}}")] >= times;
    assert!(at_least("reads", 3) && at_least("writes", 1) && at_least("refused", 1), "{metrics:?}");
}

#[test]
fn metrics_do_not_grow_with_callers_unless_they_are_asked_to() {
    let busy = |callers: u32, by_resource: bool| {
        told(async move |fleet: &Fleet| {
            let limiter =
                fleet.limiter_with(|builder| builder.metrics_by_resource(by_resource)).await;
            for n in 0..callers {
                let (entity, resource) = (format!("e-{n}"), format!("r-{n}"));
                let request = limiter.acquire(&entity, &resource).limits(&rpm()).take("rpm", 1);
                assert!(request.send().await.unwrap().is_granted());
                pass(secs(1)).await;
            }
        })
    };
    assert!(busy(1, false).keys().eq(busy(20, false).keys()));
    let by_resource = busy(20, true);
    assert_eq!(by_resource["weirgate_decision_seconds{outcome=granted,resource=r-7}"], 1);
    assert!(by_resource.keys().all(|name| !name.contains("e-7")), "never by entity");
}

/// What the page lists: kind, labels and description of each metric.
fn listed() -> BTreeMap<String, (String, Vec<String>, String)> {
    // An item continues in indented lines.
    let page = include_str!("../../../docs/guide/metrics.md").replace("\n  ", " ");
    let (mut kind, mut listed) = ("", BTreeMap::new());
    for line in page.lines() {
        match line {
            "Counters:" => kind = "counter",
            "Gauges:" => kind = "gauge",
            "Histogram:" => kind = "histogram",
            _ => {}
        }
        let item = line.strip_prefix("- `weirgate_");
        let Some((head, what)) = item.and_then(|item| item.split_once(": ")) else {
            continue;
        };
        let mut words = head.split('`').step_by(2).map(str::to_owned);
        let name = format!("weirgate_{}", words.next().unwrap_or_default());
        let labels = words.collect();
        listed.insert(name, (kind.to_owned(), labels, what.to_owned()));
    }
    listed
}

/// Every name of a metric in the client's sources.
fn named(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.extend(named(&path));
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let quoted = text.split('"').filter(|text| text.starts_with("weirgate_"));
        names.extend(quoted.map(str::to_owned));
    }
    names
}

#[test]
fn the_page_lists_every_metric_and_no_other() {
    let recorded = Recorded::default();
    metrics::with_local_recorder(&recorded, || {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let builder = fleet.builder().await.metrics_by_resource(true);
            let builder = builder.follow_vendor(VendorCount::Requests, "rpm");
            let prefetch = builder.prefetch("gpt-4", Prefetch::default());
            let limiter = prefetch.build().await.unwrap();
            let limits = [Limit::per_minute("rpm", 600_000).unwrap()];
            for _ in 0..3_000 {
                let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
                pass(millis(1)).await;
            }
            assert!(limiter.stats().prefetch_hits > 0, "something is prefetched");
            let report = VendorReport::read(200, [("x-ratelimit-limit-requests", "5")]);
            limiter.report_vendor("e-1", "gpt-4", &report).await.unwrap();
            assert!(limiter.vendor_advice()[0].configured.is_some());
        });
    });
    let listed = listed();
    let described = recorded.described();
    let of_page: BTreeMap<_, _> = listed
        .iter()
        .map(|(name, (kind, _, what))| (name.clone(), (kind.as_str(), what.clone())))
        .collect();
    assert_eq!(of_page, described, "the page, and what the code describes");
    let names: BTreeSet<_> = listed.keys().cloned().collect();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/src");
    assert_eq!(named(&client), names, "the names in the code, and the page");
    for (series, kind) in recorded.series() {
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap();
        let (of_page, allowed, _) = &listed[name];
        assert_eq!(kind, of_page, "{series}");
        let labels = labels.split(',').filter_map(|label| label.split_once('='));
        let labels: Vec<_> = labels.map(|(label, _)| label.to_owned()).collect();
        assert_eq!(labels, *allowed, "{series}");
    }
}

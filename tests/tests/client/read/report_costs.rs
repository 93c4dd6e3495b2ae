//! What usage reports cost, in read units: the table of `docs/guide/usage.md`.

use weirgate::{EpochMillis, Granularity, Limit, RateLimiter, UsageScope};
use weirgate_store::CapacityMeter;
use weirgate_testkit::batches;

use proptest::prelude::*;
use weirgate_tests::aggregator::{deliver_text, event};
use weirgate_tests::fleet::{Fleet, START, config, pass, runtime, secs, tokens};

fn limits() -> [Limit; 2] {
    [("rpm", 1_000), ("tpm", 1_000_000)].map(|(name, most)| Limit::per_hour(name, most).unwrap())
}

async fn take(limiter: &RateLimiter, entity: &str) {
    let limits = limits();
    let acquire = limiter.acquire(entity, "gpt-4").limits(&limits);
    let decision = acquire.take("rpm", 1).take("tpm", 1_234).send().await;
    assert!(decision.unwrap().is_granted());
}

async fn deliver(fleet: &Fleet) {
    let records = batches::stream(&fleet.dynamo, fleet.now());
    let table = fleet.dynamo.table().await;
    let handled = deliver_text(&table, &event(&records), fleet.now()).await;
    assert!(handled.response.unwrap().batch_item_failures.is_empty());
}

/// Checks what the page says in a row of its table.
fn assert_row(report: &str, units: &str) {
    let page = include_str!("../../../../docs/guide/usage.md");
    let row = format!("| {report} | {units} |");
    assert!(page.lines().any(|line| line == row), "docs/guide/usage.md lacks: {row}");
}

/// Reads the whole report. Returns its acquires, and the read units.
async fn read(
    (limiter, meter): &(RateLimiter, CapacityMeter),
    scope: UsageScope,
    granularity: Granularity,
    range: std::ops::Range<EpochMillis>,
) -> (i128, f64) {
    let _ = meter.take();
    let report = limiter.admin().usage_report(scope, granularity, range).unwrap();
    let total = report.total().await.unwrap();
    assert_eq!(total.usage.tokens["rpm"], tokens(i64::try_from(total.usage.acquires).unwrap()));
    (total.usage.acquires, meter.take().read)
}

#[tokio::test(start_paused = true)]
async fn thirty_days_of_a_bucket_cost_the_units_of_the_page() {
    let (fleet, [limiter]) = Fleet::of().await;
    pass(secs(60)).await;
    for _ in 0..30 * 24 {
        take(&limiter, "user-1").await;
        pass(secs(3_600)).await;
        deliver(&fleet).await;
    }
    let (reader, range) = (fleet.metered().await, START..fleet.now());
    let scope = || UsageScope::Bucket("user-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
    let _ = fleet.dynamo.take_operations();
    let (acquires, by_day) = read(&reader, scope(), Granularity::Daily, range.clone()).await;
    let requests = fleet.dynamo.take_operations();
    assert_eq!(acquires, 720);
    assert_eq!((requests["Query"], requests["BatchGetItem"]), (1, 1));
    let (acquires, by_hour) = read(&reader, scope(), Granularity::Hourly, range).await;
    assert_eq!(acquires, 720);
    assert_row("a bucket, 30 days by day", &by_day.to_string());
    assert_row("a bucket, 30 days by hour", &by_hour.to_string());
}

#[tokio::test(start_paused = true)]
async fn a_day_of_a_resource_costs_the_units_of_the_page_for_each_entity() {
    const ENTITIES: i128 = 500;
    let (fleet, [limiter]) = Fleet::of().await;
    pass(secs(60)).await;
    let day = |now: EpochMillis| {
        let start = Granularity::Daily.start(now);
        start..Granularity::Daily.end(start)
    };
    let first = day(fleet.now());
    let take_all = async || {
        for user in 0..ENTITIES {
            take(&limiter, &format!("user-{user:04}")).await;
        }
        deliver(&fleet).await;
    };
    take_all().await;
    pass(secs(6 * 3_600)).await;
    take_all().await;
    pass(secs(3_600)).await;
    take_all().await;
    let (reader, second) = (fleet.metered().await, day(fleet.now()));
    assert!(first.end == second.start);
    let scope = || UsageScope::Resource("gpt-4".try_into().unwrap());
    let (acquires, ended) = read(&reader, scope(), Granularity::Daily, first).await;
    assert_eq!(acquires, ENTITIES);
    let (acquires, current) = read(&reader, scope(), Granularity::Daily, second).await;
    assert_eq!(acquires, 2 * ENTITIES);
    assert_eq!(fleet.dynamo.take_operations().get("Scan"), None);
    let [ended, current] = [ended, current].map(|units| units / 500.0);
    let each = |units: f64| format!("{units:.2} for each entity");
    assert_row("a resource, today", &each(current));
    assert_row("a resource, a day that has ended", &each(ended));
}

proptest! {
    #![proptest_config(config(32))]

    /// Hours that have not begun, or that no table can have, are no request.
    #[test]
    fn a_report_costs_what_can_exist_whatever_its_range_is(
        start in instant(), end in instant(), granularity in 0..3_usize, scope in 0..3_usize,
    ) {
        runtime().block_on(async {
            let (fleet, [limiter]) = Fleet::of().await;
            pass(secs(60)).await;
            take(&limiter, "user-1").await;
            let (entity, resource) = ("user-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
            let granularity = [Granularity::Hourly, Granularity::Daily, Granularity::Monthly][granularity];
            let scope = match scope {
                0 => UsageScope::Bucket(entity, resource),
                1 => UsageScope::Entity(entity),
                _ => UsageScope::Resource(resource),
            };
            let now = fleet.now();
            let Ok(report) = limiter.admin().usage_report(scope, granularity, start..end) else {
                let kept = EpochMillis(now.0 - 91 * 86_400_000);
                prop_assert!(start >= end || granularity.start(start) < kept, "{:?} to {:?} is refused", start, end);
                return Ok(());
            };
            let _ = fleet.dynamo.take_requests();
            let total = report.total().await.unwrap();
            let requests = fleet.dynamo.take_requests();
            // The 90 days of a retention are four pages of hours.
            prop_assert!(requests <= 40, "{} requests for {:?} to {:?}", requests, start, end);
            if granularity.start(start) > now {
                prop_assert_eq!((requests, total.usage.acquires), (0, 0));
            }
            prop_assert!(start > START || end <= now || total.usage.acquires == 1);
            Ok(())
        })?;
    }
}

/// An instant near now, within the retention, before 1970, far ahead, or at an end of the type.
fn instant() -> impl Strategy<Value = EpochMillis> {
    const DAY_MS: i64 = 86_400_000;
    prop_oneof![
        4 => -2 * DAY_MS..2 * DAY_MS,
        3 => -90 * DAY_MS..400 * DAY_MS,
        2 => 0..75 * 366 * DAY_MS,
        1 => prop::sample::select(vec![i64::MIN, i64::MIN / 2, -START.0, -START.0 - 1, i64::MAX / 2, i64::MAX]),
    ]
    .prop_map(|from_start| EpochMillis(START.0.saturating_add(from_start)))
}

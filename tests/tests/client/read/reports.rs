//! Usage reports have what was consumed (I3): of a bucket, an entity, a resource; by hour, day and
//! month; over any number of pages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use weirgate::{
    EpochMillis, Error, Granularity, Limit, PageToken, RateLimiter, Usage, UsageReport, UsageRow,
    UsageScope, UsageState, Window,
};
use weirgate_shared::{BUCKET_SK, BucketKey, DELIVERY, Millis, is_kept, parse_iso8601};
use weirgate_store::Table;
use weirgate_testkit::{Fault, batches};

use weirgate_tests::aggregator::usage::snapshots;
use weirgate_tests::aggregator::{self, deliver_by, deliver_text, event};
use weirgate_tests::fleet::{Fleet, START, config, pass, runtime, secs, tokens};

const ENTITIES: [&str; 3] = ["a", "a-b", "b"];
const RESOURCES: [&str; 2] = ["api/search", "gpt-4"];
const GRANULARITIES: [Granularity; 3] =
    [Granularity::Hourly, Granularity::Daily, Granularity::Monthly];
const HOUR: u64 = 3_600;

/// From when on usage up to `end` may be final.
fn final_from(end: EpochMillis) -> EpochMillis {
    let day = Granularity::Daily.start(EpochMillis(end.0 - 1));
    Granularity::Daily.end(day).plus(DELIVERY)
}

fn limits() -> [Limit; 1] {
    [Limit::per_hour("rpm", 1_000_000).unwrap()]
}

/// A step of a history. Numbers choose from [`ENTITIES`] and [`RESOURCES`].
#[derive(Debug, Clone)]
enum Step {
    Take(usize, usize, i64),
    Pass(u64),
    /// The aggregator gets the records so far.
    Deliver,
    /// An operator deletes the bucket, and the aggregator gets the record.
    Delete(usize, usize),
    Reshard(usize, usize, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let (entity, resource) = (0..ENTITIES.len(), 0..RESOURCES.len());
    prop_oneof![
        6 => (entity.clone(), resource.clone(), 1..50_i64).prop_map(|(e, r, n)| Step::Take(e, r, n)),
        4 => (1..24_u64).prop_map(Step::Pass),
        2 => Just(Step::Deliver),
        1 => (entity.clone(), resource.clone()).prop_map(|(e, r)| Step::Delete(e, r)),
        1 => (entity, resource, 0..3_u32).prop_map(|(e, r, k)| Step::Reshard(e, r, 1 << k)),
    ]
}

/// Tokens and acquires by entity, resource, and start of the interval.
type Ledger = BTreeMap<(String, String, EpochMillis), (i128, i128)>;

struct History {
    fleet: Fleet,
    limiter: RateLimiter,
    table: Table,
    hourly: Ledger,
    delivered_at: EpochMillis,
    finals: Vec<FinalTotal>,
}

/// A total that was read as final.
struct FinalTotal {
    scope: UsageScope,
    range: Range<EpochMillis>,
    usage: Usage,
}

impl History {
    async fn new() -> Self {
        let fleet = Fleet::new().await;
        // Every step is far from a full hour, when two hours may be in use.
        pass(secs(60)).await;
        Self {
            limiter: fleet.limiter().await,
            table: fleet.dynamo.table().await,
            delivered_at: fleet.now(),
            fleet,
            hourly: Ledger::new(),
            finals: vec![],
        }
    }

    /// Records the totals of each hour that are final, and requires that those of before are still so.
    async fn check_finals(&mut self) {
        let total = async |scope: &UsageScope, range: &Range<EpochMillis>| {
            let admin = self.limiter.admin();
            let report = admin.usage_report(scope.clone(), Granularity::Hourly, range.clone());
            report.unwrap().total().await.unwrap()
        };
        let mut finals = vec![];
        for known in &self.finals {
            let now = total(&known.scope, &known.range).await;
            assert_eq!(
                (now.state, &now.usage),
                (UsageState::Final, &known.usage),
                "{:?} {:?}",
                known.scope,
                known.range
            );
        }
        for hour in self.hourly.keys().map(|(_, _, hour)| *hour).chain([START]) {
            let range = hour..Granularity::Hourly.end(hour);
            for scope in scopes() {
                let read = total(&scope, &range).await;
                if read.state == UsageState::Final {
                    finals.push(FinalTotal { scope, range: range.clone(), usage: read.usage });
                }
            }
        }
        self.finals = finals;
    }

    async fn take(&mut self, entity: &str, resource: &str, amount: i64) {
        let limits = limits();
        let acquire = self.limiter.acquire(entity, resource).limits(&limits);
        let decision = acquire.take("rpm", amount).send().await.unwrap();
        assert!(decision.is_granted());
        let hour = Granularity::Hourly.start(self.fleet.now());
        let key = (entity.to_owned(), resource.to_owned(), hour);
        let (taken, acquires) = self.hourly.entry(key).or_default();
        *taken += i128::from(amount);
        *acquires += 1;
    }

    async fn deliver(&mut self) {
        self.delivered_at = self.fleet.now();
        let records = batches::stream(&self.fleet.dynamo, self.fleet.now());
        let handled = deliver_text(&self.table, &event(&records), self.fleet.now()).await;
        assert!(handled.response.unwrap().batch_item_failures.is_empty());
    }

    async fn run(&mut self, step: Step) {
        match step {
            Step::Take(e, r, amount) => self.take(ENTITIES[e], RESOURCES[r], amount).await,
            Step::Pass(hours) => {
                // A stream keeps its records for a day.
                let age = self.fleet.now().0 - self.delivered_at.0;
                if age / 3_600_000 + i64::try_from(hours).unwrap() >= 24 {
                    self.deliver().await;
                }
                pass(secs(hours * HOUR)).await;
            }
            Step::Deliver => self.deliver().await,
            Step::Delete(e, r) => {
                for shard in 0..4 {
                    let pk = format!("default/BUCKET#{}#{}#{shard}", ENTITIES[e], RESOURCES[r]);
                    self.fleet.dynamo.delete(&pk, "#STATE");
                }
                self.deliver().await;
                // A later life begins later.
                pass(secs(1)).await;
                // The process that knew the shards forgets them.
                self.limiter = self.fleet.limiter().await;
            }
            Step::Reshard(e, r, shards) => {
                let (entity, resource) = (ENTITIES[e], RESOURCES[r]);
                let limits = limits();
                let done = self.limiter.admin().set_shards(entity, resource, &limits, shards);
                assert_eq!(done.await.unwrap(), shards);
            }
        }
    }

    /// Returns the entities and resources that have an item.
    fn buckets(&self) -> BTreeSet<(String, String)> {
        let items = self.fleet.dynamo.items().into_iter();
        let items = items.filter(|item| item["SK"]["S"] == BUCKET_SK);
        let keys = items.filter_map(|item| BucketKey::parse(item["PK"]["S"].as_str()?));
        keys.map(|key| (key.entity.to_string(), key.resource.to_string())).collect()
    }

    fn range(&self) -> Range<EpochMillis> {
        START..self.fleet.now()
    }

    fn report(&self, scope: UsageScope, granularity: Granularity) -> UsageReport<'_> {
        self.limiter.admin().usage_report(scope, granularity, self.range()).unwrap()
    }

    /// What was taken in intervals of this length, by the test's own record.
    fn expected(&self, granularity: Granularity, scope: &UsageScope) -> Ledger {
        let mut expected = Ledger::new();
        for ((entity, resource, hour), (taken, acquires)) in &self.hourly {
            let is_within = match scope {
                UsageScope::Bucket(e, r) => e.as_str() == entity && r.as_str() == resource,
                UsageScope::Entity(e) => e.as_str() == entity,
                UsageScope::Resource(r) => r.as_str() == resource,
                UsageScope::Plan(..) => unreachable!("no entity has a plan"),
            };
            if is_within {
                let key = (entity.clone(), resource.clone(), granularity.start(*hour));
                let sum = expected.entry(key).or_default();
                *sum = (sum.0 + taken, sum.1 + acquires);
            }
        }
        expected
    }
}

/// Reads all pages; each token goes through its text, as another process would use it.
async fn rows(report: &UsageReport<'_>) -> Vec<UsageRow> {
    let (mut rows, mut after) = (vec![], None::<PageToken>);
    loop {
        let page = report.page(after.as_ref()).await.unwrap();
        rows.extend(page.items);
        let Some(next) = page.next else { return rows };
        after = Some(next.to_string().parse().unwrap());
        assert_eq!(after, Some(next));
    }
}

fn key(row: &UsageRow) -> (String, String, EpochMillis) {
    (row.entity.to_string(), row.resource.to_string(), row.start)
}

fn amounts(row: &UsageRow) -> (i128, i128) {
    let rpm = row.usage.tokens.get("rpm").copied().unwrap_or_default();
    assert_eq!(rpm.0 % 1_000, 0);
    (rpm.whole_tokens(), row.usage.acquires)
}

fn scopes() -> Vec<UsageScope> {
    let entity = |name: &str| name.try_into().unwrap();
    let resource = |name: &str| name.try_into().unwrap();
    let buckets = ENTITIES.iter().flat_map(|e| {
        let of = move |r: &&str| UsageScope::Bucket(entity(e), resource(r));
        RESOURCES.iter().map(of)
    });
    let entities = ENTITIES.iter().map(|e| UsageScope::Entity(entity(e)));
    let resources = RESOURCES.iter().map(|r| UsageScope::Resource(resource(r)));
    buckets.chain(entities).chain(resources).collect()
}

proptest! {
    #![proptest_config(config(12))]

    /// During a history, a row that is final, or in progress, has what was taken. After it, once
    /// the stream was delivered, all rows have, over pages that are read by their tokens.
    #[test]
    fn i3_a_report_has_what_was_taken(steps in prop::collection::vec(step(), 1..40)) {
        runtime().block_on(async {
            let mut history = History::new().await;
            let checked = steps.len() / 2;
            for (at, step) in steps.into_iter().enumerate() {
                history.run(step).await;
                if at == checked {
                    check_rows(&history).await;
                    history.check_finals().await;
                }
            }
            history.deliver().await;
            check_rows(&history).await;
            history.check_finals().await;
            // Buckets expire, and others are used again.
            for entity in 0..ENTITIES.len() {
                history.run(Step::Delete(entity, 0)).await;
            }
            history.take(ENTITIES[0], RESOURCES[1], 1).await;
            history.deliver().await;
            history.check_finals().await;
            // Every hour of a bucket is final within two days, whatever has happened to it.
            for _ in 0..5 {
                pass(secs(10 * HOUR)).await;
                history.deliver().await;
            }
            let all: Vec<_> = history.hourly.keys().cloned().collect();
            for (entity, resource, hour) in all {
                let scope = UsageScope::Bucket(entity.as_str().try_into().unwrap(), resource.as_str().try_into().unwrap());
                let range = hour..Granularity::Hourly.end(hour);
                let report = history.limiter.admin().usage_report(scope, Granularity::Hourly, range);
                let total = report.unwrap().total().await.unwrap();
                assert_eq!(total.state, UsageState::Final, "{entity} {resource} {hour:?}");
            }
            for scope in scopes() {
                // A resource's report has the entities with buckets.
                if matches!(scope, UsageScope::Resource(_)) {
                    continue;
                }
                for granularity in GRANULARITIES {
                    let report = history.report(scope.clone(), granularity);
                    let all: Ledger = rows(&report).await.iter()
                        .filter(|row| amounts(row) != (0, 0))
                        .map(|row| (key(row), amounts(row)))
                        .collect();
                    assert_eq!(all, history.expected(granularity, &scope), "{scope:?} {granularity:?}");
                }
            }
        });
    }
}

/// Requires of every row that it claims no more than it has.
async fn check_rows(history: &History) {
    let now = history.fleet.now();
    for scope in scopes() {
        for granularity in GRANULARITIES {
            let expected = history.expected(granularity, &scope);
            let report = history.report(scope.clone(), granularity);
            let (mut found, mut sum) = (Ledger::new(), (0, 0));
            for row in rows(&report).await {
                let has = expected.get(&key(&row)).copied().unwrap_or_default();
                if row.complete_until == row.end || row.complete_until == now {
                    assert_eq!(amounts(&row), has, "{scope:?} {row:?}");
                }
                assert!(amounts(&row) <= has, "{scope:?} {row:?}");
                assert!(row.complete_until <= now, "{row:?}");
                sum = (sum.0 + amounts(&row).0, sum.1 + amounts(&row).1);
                assert_eq!(found.insert(key(&row), amounts(&row)), None, "twice: {row:?}");
            }
            let total = report.total().await.unwrap();
            let rpm = total.usage.tokens.get("rpm").copied().unwrap_or_default();
            assert_eq!((rpm.whole_tokens(), total.usage.acquires), sum);
        }
    }
}

/// Two entities whose shards are on both sides of a page, in all 16 partitions of the index.
#[tokio::test(start_paused = true)]
async fn i3_a_resource_report_has_each_of_many_entities_once() {
    let mut history = History::new().await;
    for user in 0..300_i64 {
        history.take(&format!("user-{user}"), "gpt-4", 1 + user % 7).await;
    }
    for user in [5, 50, 250] {
        let name = format!("user-{user}");
        let limits = limits();
        let done = history.limiter.admin().set_shards(&name, "gpt-4", &limits, 64);
        assert_eq!(done.await.unwrap(), 64);
        history.take(&name, "gpt-4", 1_000 + user).await;
    }
    let scope = UsageScope::Resource("gpt-4".try_into().unwrap());
    let report = history.report(scope.clone(), Granularity::Daily);
    let all: Ledger = rows(&report).await.iter().map(|row| (key(row), amounts(row))).collect();
    assert_eq!(all, history.expected(Granularity::Daily, &scope));
    let top = report.top(&"rpm".try_into().unwrap(), 3).await.unwrap().items;
    let top: Vec<_> =
        top.iter().map(|user| (user.entity.as_str(), user.usage.tokens["rpm"].bounded())).collect();
    assert_eq!(
        top,
        [
            ("user-250", tokens(1_250 + 1 + 250 % 7)),
            ("user-50", tokens(1_050 + 1 + 50 % 7)),
            ("user-5", tokens(1_005 + 1 + 5)),
        ]
    );
    let top = report.top_by_acquires(4).await.unwrap().items;
    assert!(top[..3].iter().all(|user| user.usage.acquires == 2), "{top:?}");
    assert_eq!((top.len(), top[3].usage.acquires), (4, 1));
}

/// A bill for an hour can be sent two days later.
#[tokio::test(start_paused = true)]
async fn a_total_says_until_when_it_is_complete_and_whether_it_is_final() {
    let mut history = History::new().await;
    history.take("a", "gpt-4", 7).await;
    let scope = UsageScope::Bucket("a".try_into().unwrap(), "gpt-4".try_into().unwrap());
    let (start, next) = (START, Granularity::Hourly.end(START));
    let total = async |history: &History| {
        let report =
            history.limiter.admin().usage_report(scope.clone(), Granularity::Hourly, start..next);
        let total = report.unwrap().total().await.unwrap();
        let used = total.usage.tokens.get("rpm").copied();
        let used = used.unwrap_or_default().whole_tokens();
        (used, total.state, total.complete_until)
    };
    let interim = UsageState::Interim;
    let in_progress = (7, interim, history.fleet.now());
    assert_eq!(total(&history).await, in_progress);
    pass(secs(HOUR)).await;
    assert_eq!(total(&history).await, (7, interim, start), "in the item");
    history.take("a", "gpt-4", 1).await;
    assert_eq!(total(&history).await, (0, interim, start), "on its way");
    history.deliver().await;
    assert_eq!(total(&history).await, (7, interim, start), "in a copy");
    pass(secs(48 * HOUR)).await;
    assert_eq!(total(&history).await, (7, UsageState::Final, next));

    // Of what is not listed, nothing is final before it could be if it were; of what comes and goes,
    // nothing ever is.
    let of = async |scope, range| {
        let admin = history.limiter.admin();
        let report = admin.usage_report(scope, Granularity::Hourly, range);
        let total = report.unwrap().total().await.unwrap();
        (total.usage.acquires, total.state, total.complete_until)
    };
    let (resource, unused) = (
        UsageScope::Resource("gpt-4".try_into().unwrap()),
        UsageScope::Entity("b".try_into().unwrap()),
    );
    assert_eq!(of(resource, start..next).await, (1, interim, next));
    assert_eq!(of(unused.clone(), start..next).await, (0, UsageState::Final, next));
    let ago = |hours: i64| {
        EpochMillis(Granularity::Hourly.start(history.fleet.now()).0 - hours * 3_600_000)
    };
    assert_eq!(of(unused.clone(), ago(2)..ago(1)).await, (0, interim, ago(2)));
    assert_eq!(of(unused.clone(), ago(23)..ago(0)).await, (0, interim, ago(23)));
    let day = Granularity::Daily.start(history.fleet.now());
    let last = EpochMillis(day.0 - 3_600_000);
    assert_eq!(of(unused, last..day).await, (0, interim, last));
}

/// Requires that a report, and the usage of single windows, have what was taken of all that is kept,
/// and say of all before that it is unknown.
async fn check_kept(
    history: &History,
    (report, scope, granularity): &(UsageReport<'_>, UsageScope, Granularity),
    (kept, until): (Millis, EpochMillis),
) {
    let now = history.fleet.now();
    let (window, first) = (granularity.window(), granularity.start(START));
    let is_kept = |start| is_kept(window.end(start).plus(kept), now);
    let total = report.total().await.unwrap();
    let is_unknown = total.state == UsageState::Unknown;
    assert_eq!(is_unknown, !is_kept(first), "{scope:?} {total:?}");
    assert!(!is_unknown || total.complete_until <= first, "{scope:?} {total:?}");
    // Long after all windows, only a resource's report is not final: its buckets come and go.
    let is_listed = matches!(scope, UsageScope::Resource(_));
    let end = granularity.end(granularity.start(EpochMillis(until.0 - 1)));
    let is_final = is_kept(first) && now >= final_from(end) && !is_listed;
    assert_eq!(total.state == UsageState::Final, is_final, "{scope:?} {total:?}");
    assert!(!is_final || total.complete_until == end, "{scope:?} {total:?}");
    let (mut known, mut sum) = (Ledger::new(), (0, 0));
    for row in rows(report).await {
        sum = (sum.0 + amounts(&row).0, sum.1 + amounts(&row).1);
        let is_over = is_kept(row.start) && now >= final_from(row.end);
        assert_eq!(row.is_final(), is_over, "{row:?}");
        assert_eq!(row.state == UsageState::Unknown, !is_kept(row.start), "{row:?}");
        if is_kept(row.start) && amounts(&row) != (0, 0) {
            known.insert(key(&row), amounts(&row));
        } else if *granularity != Granularity::Monthly {
            assert_eq!(amounts(&row), (0, 0), "{row:?}");
        }
    }
    let rpm = total.usage.tokens.get("rpm").copied().unwrap_or_default();
    assert_eq!((rpm.whole_tokens(), total.usage.acquires), sum, "{scope:?} {total:?}");
    let mut expected = history.expected(*granularity, scope);
    expected.retain(|(_, _, start), _| is_kept(*start));
    if is_listed {
        let buckets = history.buckets();
        expected.retain(|(e, r, _), _| buckets.contains(&(e.clone(), r.clone())));
    }
    assert_eq!(known, expected, "{scope:?} {granularity:?}");
    if let UsageScope::Bucket(entity, resource) = scope {
        for start in history.hourly.keys().map(|(_, _, hour)| window.start(*hour)) {
            let usage = history.limiter.usage(entity.as_str(), resource.as_str(), window, start);
            let read = usage.await.unwrap();
            assert_eq!(read.state == UsageState::Unknown, !is_kept(start), "{start:?}");
            assert!(is_kept(start) || read.usage == Usage::default(), "{start:?}");
        }
    }
}

proptest! {
    #![proptest_config(config(8))]

    /// From an hour before the end of the retention on there are no copies, and from its end snapshots may
    /// be deleted, whether they are or not. A report may have been begun before.
    #[test]
    fn i3_usage_is_unknown_beyond_the_retention_and_known_within_it(
        steps in prop::collection::vec(step(), 1..12),
        days in 40..120_u64,
        reads in prop::collection::vec(
            // No index means the first window: once it is not kept, a total is unknown.
            (
                0..GRANULARITIES.len(),
                prop::option::of(any::<prop::sample::Index>()),
                -1..2_i64,
                any::<bool>(),
            ),
            1..4,
        ),
    ) {
        runtime().block_on(async {
            let mut history = History::new().await;
            for step in steps {
                history.run(step).await;
            }
            history.deliver().await;
            let kept = secs(days * 24 * HOUR);
            let builder = history.fleet.builder().await.usage_retention(kept);
            history.limiter = builder.build().await.unwrap();
            let (history, kept, range) = (&history, Millis::from(kept), history.range());
            // Around the instant from which a window is not kept.
            let mut reads: Vec<_> = reads.into_iter().map(|(granularity, which, off, expires)| {
                let granularity = GRANULARITIES[granularity];
                let window = granularity.window();
                let next = |start: &EpochMillis| Some(window.end(*start));
                let starts = std::iter::successors(Some(granularity.start(START)), next);
                let starts: Vec<_> = starts.take_while(|start| *start < range.end).collect();
                let which = which.map_or(0, |which| which.index(starts.len()));
                let from = window.end(starts[which]).plus(kept).plus(Millis(-3_600_000));
                let reports: Vec<_> = scopes().into_iter().map(|scope| {
                    let report = history.report(scope.clone(), granularity);
                    (report, scope, granularity)
                }).collect();
                (from.plus(Millis(off)), expires, reports)
            }).collect();
            reads.sort_by_key(|(at, ..)| *at);
            for (at, expires, reports) in reads {
                let span = u64::try_from(at.0 - history.fleet.now().0).unwrap();
                pass(Duration::from_millis(span)).await;
                let snapshots = snapshots(&history.fleet.dynamo).into_keys();
                for key in snapshots.filter(|key| expires && key.window.end(key.start).plus(kept) <= at) {
                    let key = key.item_key();
                    history.fleet.dynamo.delete(&key.pk, &key.sk);
                }
                for report in &reports {
                    check_kept(history, report, (kept, range.end)).await;
                }
            }
        });
    }
}

/// The last hour of a bucket that rested is copied, and then its day, while a report reads both.
#[tokio::test(start_paused = true)]
async fn i3_an_hour_is_final_with_a_day_that_was_read_before_it() {
    let fleet = Fleet::new().await;
    pass(secs(60)).await;
    let limiter = fleet.limiter().await;
    let level = weirgate::ConfigLevel::System;
    let config = weirgate::Config::of(limits());
    limiter.admin().set_config(&level, &config).await.unwrap();
    let take = async || {
        let taken = limiter.acquire("a", "gpt-4").take("rpm", 5).send().await;
        assert!(taken.unwrap().is_granted());
        batches::stream(&fleet.dynamo, fleet.now())
    };
    let table = fleet.dynamo.table().await;
    let begun = deliver_text(&table, &event(&take().await), fleet.now()).await;
    assert_eq!(begun.summary.failed, 0);
    let hour = Granularity::Hourly.start(fleet.now());
    pass(secs(20 * HOUR)).await;
    let rolled = event(&take().await);
    pass(secs(40 * HOUR)).await;
    // As the table is before the record is delivered, and after it.
    let before = snapshots(&fleet.dynamo).into_keys().map(|key| key.item_key());
    let before: Vec<_> = before.map(|key| fleet.dynamo.item(&key.pk, &key.sk)).collect();
    deliver_text(&table, &rolled, fleet.now()).await;
    let after = snapshots(&fleet.dynamo).into_keys().map(|key| key.item_key());
    let after: Vec<_> = after.map(|key| fleet.dynamo.item(&key.pk, &key.sk)).collect();
    let restore = |items: &[serde_json::Value]| {
        for key in snapshots(&fleet.dynamo).into_keys().map(|key| key.item_key()) {
            fleet.dynamo.delete(&key.pk, &key.sk);
        }
        items.iter().for_each(|item| fleet.dynamo.put(item));
    };
    let bucket = || UsageScope::Bucket("a".try_into().unwrap(), "gpt-4".try_into().unwrap());
    let range = hour..Granularity::Hourly.end(hour);
    let report = || {
        let report = limiter.admin().usage_report(bucket(), Granularity::Hourly, range.clone());
        report.unwrap()
    };
    for is_report in [false, true] {
        restore(&before);
        let (dynamo, after) = (fleet.dynamo.clone(), after.clone());
        let is_of = |body: &serde_json::Value, window| body.to_string().contains(window);
        let mut is_old = true;
        fleet.dynamo.fail_reads(move |operation, body| {
            let is_query = operation == "Query";
            // An eventually consistent answer may be older than another one that came before.
            let is_behind = is_query && is_of(body, "#hourly#") && body["ConsistentRead"] != true;
            if is_query && is_of(body, "#daily#") && std::mem::take(&mut is_old) {
                after.iter().for_each(|item| dynamo.put(item));
            }
            is_behind.then_some(Fault::Throttle { key_range: true })
        });
        let (usage, state) = match is_report {
            true => {
                let total = report().total().await.unwrap();
                (total.usage, total.state)
            }
            false => {
                let read = limiter.usage("a", "gpt-4", Window::Hourly, hour).await.unwrap();
                (read.usage, read.state)
            }
        };
        assert_eq!((usage.acquires, state), (1, UsageState::Final), "{is_report}");
        fleet.dynamo.fail_reads(|_, _| None);
    }
}

/// Of a bucket with limits of its own, which rests until its usage is about to be deleted.
#[tokio::test(start_paused = true)]
async fn i3_what_is_final_stays_so_when_a_bucket_is_used_again_at_the_end_of_the_retention() {
    const DAYS: u64 = 3;
    let mut finals = 0;
    for window in [Window::Hourly, Window::Daily] {
        for minutes in [-90, -61, -59, -30, -1, 1_i64] {
            let fleet = Fleet::new().await;
            pass(secs(60)).await;
            let builder = fleet.builder().await;
            let builder = builder.usage_retention(secs(DAYS * 24 * HOUR));
            let limiter = builder.build().await.unwrap();
            let level = weirgate::ConfigLevel::EntityResource(
                "a".try_into().unwrap(),
                "gpt-4".try_into().unwrap(),
            );
            let config = weirgate::Config::of(limits());
            limiter.admin().set_config(&level, &config).await.unwrap();
            let table = fleet.dynamo.table().await;
            let kept = weirgate_aggregator::Config {
                snapshot_ttl_days: i64::try_from(DAYS).unwrap(),
                ..aggregator::config()
            };
            let again = async |amount| {
                let taken = limiter.acquire("a", "gpt-4").take("rpm", amount).send().await;
                assert!(taken.unwrap().is_granted());
                let records = batches::stream(&fleet.dynamo, fleet.now());
                let (event, left) = (event(&records), secs(60));
                let handled = deliver_by(&table, &event, &kept, fleet.now(), left).await;
                assert_eq!(handled.summary.failed, 0);
            };
            again(5).await;
            let start = window.start(fleet.now());
            let span = Millis(i64::try_from(DAYS * 24 * HOUR).unwrap() * 1_000 + minutes * 60_000);
            let at = window.end(start).plus(span);
            pass(Duration::from_millis(u64::try_from(at.0 - fleet.now().0).unwrap())).await;
            let read = async || limiter.usage("a", "gpt-4", window, start).await.unwrap();
            let before = read().await;
            again(7).await;
            let what = format!("{window:?}, {minutes} minutes after the retention");
            assert_eq!(before.state, read().await.state, "{what}");
            assert_eq!(before, read().await, "{what}");
            finals += usize::from(before.is_final());
        }
    }
    assert_eq!(finals, 4);
}

/// And not before.
#[tokio::test(start_paused = true)]
async fn a_report_can_begin_where_a_refusal_advises() {
    for minutes in [0, 330, 7 * 24 * 60] {
        let (fleet, [limiter]) = Fleet::of().await;
        pass(Duration::from_secs(60 * minutes)).await;
        for granularity in GRANULARITIES {
            let refusal = |start: EpochMillis| {
                let scope = UsageScope::Entity("a".try_into().unwrap());
                let report = limiter.admin().usage_report(scope, granularity, start..fleet.now());
                report.map(drop).map_err(|error| error.to_string())
            };
            let text = refusal(EpochMillis(0)).unwrap_err();
            let (_, advised) = text.split_once("begin at ").expect(&text);
            let (advised, _) = advised.split_once(' ').expect(&text);
            let advised = parse_iso8601(advised).expect(&text);
            let what = format!("{granularity:?}, after {minutes} minutes: {text}");
            assert_eq!(refusal(advised), Ok(()), "{what}");
            assert!(refusal(EpochMillis(advised.0 - 1)).is_err(), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_that_cannot_be_is_refused_before_anything_is_read() {
    let history = History::new().await;
    let limiter = &history.limiter;
    let _ = history.fleet.dynamo.take_requests();
    let scope = UsageScope::Entity("a".try_into().unwrap());
    let refused = |range: Range<EpochMillis>, granularity, named: &str| {
        let error = limiter.admin().usage_report(scope.clone(), granularity, range).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(text) if text.contains(named)),
            "{error} must say {named:?}"
        );
    };
    let (day, now) = (86_400_000, history.fleet.now());
    let ago = |days: i64| EpochMillis(now.0 - days * day);
    refused(now..now, Granularity::Hourly, "swap them");
    refused(now..START, Granularity::Daily, "swap them");
    refused(ago(91)..now, Granularity::Hourly, "kept for 90 days");
    // The whole month is in question, not only its last day.
    refused(ago(89)..now, Granularity::Monthly, "begin at 2026-09-01");
    let month = limiter.admin().usage_report(scope.clone(), Granularity::Monthly, ago(60)..now);
    let page = month.unwrap().page(None).await.unwrap();
    assert!(page.items.is_empty() && page.next.is_none());

    let _ = history.fleet.dynamo.take_requests();
    let by_day = limiter.admin().usage_report(scope.clone(), Granularity::Daily, START..now);
    let other = limiter.admin().children(&"a".try_into().unwrap(), None).await.unwrap();
    assert!(other.next.is_none());
    let bad = "bm90IGEgdG9rZW4=".parse::<PageToken>().unwrap_err();
    assert!(bad.to_string().contains("not a page token"), "{bad}");
    let of_another = {
        let long = limiter.admin().usage_report(
            UsageScope::Bucket("a".try_into().unwrap(), "gpt-4".try_into().unwrap()),
            Granularity::Hourly,
            ago(40)..now,
        );
        long.unwrap().page(None).await.unwrap().next.expect("more than 744 hours")
    };
    let _ = history.fleet.dynamo.take_requests();
    let error = by_day.unwrap().page(Some(&of_another)).await.unwrap_err();
    assert!(error.to_string().contains("a page of the same list"), "{error}");
    assert_eq!(history.fleet.dynamo.take_requests(), 0);
}

//! Purging a namespace: complete, continued after an interruption, and no other namespace touched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weirgate_tests::stored::{delete_config, exempt, set_config, set_entity, start, stop};

use fastrand::Rng;
use serde_json::{Value, json};
use weirgate::{
    AuditChange, AuditSubject, ConfigLevel, Error, LiveLeases, OnUnavailable, PurgeReport,
    RateLimiter,
};

use weirgate_shared::BucketKey;
use weirgate_tests::fleet::{Fleet, leased, pass, secs, slots};
use weirgate_tests::sharded;
use weirgate_tests::stored::{child, entity, of_plan, rpm};

const LATENCY: Duration = Duration::from_millis(10);
/// Namespaces whose names look alike.
const NEIGHBOURS: [&str; 4] = ["s", "stage", "Staging", "staging2"];

async fn limiter(fleet: &Fleet, namespace: &str) -> RateLimiter {
    fleet.limiter_with(|builder| builder.namespace(namespace).principal("ops")).await
}

/// Writes items of every kind in a namespace.
async fn live(fleet: &Fleet, namespace: &str, snapshots: usize) {
    let limiter = limiter(fleet, namespace).await;
    let limits = weirgate::Config::of([rpm(600)]);
    for level in [
        ConfigLevel::System,
        ConfigLevel::Resource("gpt-4".try_into().unwrap()),
        ConfigLevel::Entity(entity("e-1")),
    ] {
        set_config(&limiter, &level, &limits).await;
    }
    delete_config(&limiter, &ConfigLevel::Entity(entity("e-1"))).await;
    set_entity(&limiter, &child("e-1", "team")).await;
    let taken = limiter.acquire("e-1", "gpt-4").take("rpm", 1).send().await;
    assert!(taken.unwrap().is_granted());
    for shards in [4, 2] {
        let done = limiter.admin().set_shards("e-1", "gpt-4", &limits.limits, shards);
        assert_eq!(done.await.unwrap(), shards);
    }
    let reset = limiter.admin().edit_balances("e-1", "gpt-4").reset("rpm");
    reset.idempotency_key("once").send().await.unwrap();
    for hour in 0..snapshots {
        fleet.dynamo.put(&json!({
            "PK": {"S": format!("{namespace}/ENTITY#e-1")},
            "SK": {"S": format!("#USAGE#gpt-4#hourly#{hour:04}")},
        }));
    }
    for (pk, sk) in
        [("BUCKET#e-1#gpt-4#0", "#SHORT"), ("BUCKET#broken#x#0", "#STATE"), ("else", "?")]
    {
        fleet.dynamo.put(&json!({"PK": {"S": format!("{namespace}/{pk}")}, "SK": {"S": sk}}));
    }
}

fn is_own(item: &Value) -> bool {
    item["PK"]["S"].as_str().unwrap().starts_with("staging/")
}

fn others(fleet: &Fleet) -> BTreeMap<String, Value> {
    let items = fleet.dynamo.items().into_iter();
    items
        .filter(|item| !is_own(item))
        .map(|item| (format!("{} {}", item["PK"]["S"], item["SK"]["S"]), item))
        .collect()
}

async fn purge(limiter: &RateLimiter, leases: LiveLeases) -> Result<PurgeReport, Error> {
    purge_of(limiter, "staging", leases).await
}

async fn purge_of(
    limiter: &RateLimiter,
    namespace: &str,
    leases: LiveLeases,
) -> Result<PurgeReport, Error> {
    let mut sum = PurgeReport::default();
    loop {
        let page = limiter.admin().purge_namespace(namespace).leases(leases);
        sum = sum.clone().plus(page.after(sum.next).send().await?);
        if sum.next.is_none() {
            return Ok(sum);
        }
    }
}

/// Checks that only the stop, the version of the system's limits and the events of purges are left.
async fn assert_purged(fleet: &Fleet, before: &BTreeMap<String, Value>) {
    assert!(others(fleet) == *before, "an item of another namespace changed");
    let is_tombstone = |item: &Value| {
        item["SK"]["S"] == "#STATE" && item["rf"].is_null() && !item["ttl"].is_null()
    };
    let left = fleet.dynamo.items().into_iter().filter(|item| is_own(item) && !is_tombstone(item));
    let left: Vec<_> = left.map(|item| item["SK"]["S"].as_str().unwrap().to_owned()).collect();
    let is_expected =
        |sk: &String| ["#SWITCHES", "#CONFIG"].contains(&sk.as_str()) || sk.starts_with("#AUDIT#");
    assert!(left.iter().all(is_expected), "{left:?}");
    let reader = limiter(fleet, "staging").await;
    let events = reader.admin().audit(&AuditSubject::System, None).await.unwrap().items;
    assert_eq!(events.len() + 2, left.len(), "{left:?}");
    assert_eq!(reader.admin().config(&ConfigLevel::System).await.unwrap(), None);
    for event in events {
        assert_eq!((event.change, event.principal.as_str()), (AuditChange::Purged, "ops"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_of_several_pages_is_purged_and_nothing_else_is() {
    let fleet = Fleet::new().await;
    for neighbour in NEIGHBOURS {
        live(&fleet, neighbour, 3).await;
    }
    // Written by other means: no name of a namespace has a slash.
    for pk in ["x/staging/ENTITY#e-1", "staging", "staging#/ENTITY#e-1"] {
        fleet.dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": "#USAGE#gpt-4"}}));
    }
    live(&fleet, "staging", 1200).await;
    let limiter = limiter(&fleet, "staging").await;
    let before = others(&fleet);

    let mut dry = PurgeReport::default();
    let all = fleet.dynamo.items();
    loop {
        let page = limiter.admin().purge_namespace("staging").dry_run().after(dry.next.clone());
        dry = dry.plus(page.send().await.unwrap());
        if dry.next.is_none() {
            break;
        }
    }
    assert!(fleet.dynamo.items() == all, "a dry run changes nothing");
    assert_eq!(dry.deleted(), all.iter().filter(|item| is_own(item)).count());

    stop(&limiter, &ConfigLevel::System).await;
    let count = fleet.dynamo.items().len();
    let report = purge(&limiter, LiveLeases::Refuse).await.unwrap();
    let expected = PurgeReport {
        // The event of this purge is read too, and the mark of the functions.
        scanned: count + 2,
        // The stop has an event, and an item that remembers it.
        audit_events: dry.audit_events + 1,
        others: dry.others + 1,
        ..dry
    };
    assert_eq!(report, expected);
    // Two shards, two that were merged away, one of the parent, and a broken one.
    assert_eq!((report.shards, report.configs, report.snapshots, report.leased), (6, 3, 1200, 0));
    assert_purged(&fleet, &before).await;

    let again = purge(&limiter, LiveLeases::Refuse).await.unwrap();
    assert_eq!(again.deleted(), 0);
    assert_purged(&fleet, &before).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_may_be_in_use_is_not_purged() {
    let fleet = Fleet::new().await;
    live(&fleet, "staging", 3).await;
    let limiter = limiter(&fleet, "staging").await;
    let refused = async |remedy: &str| {
        let before = fleet.dynamo.items();
        let error = purge(&limiter, LiveLeases::Discard).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
        assert!(fleet.dynamo.items() == before, "nothing was written");
    };
    refused("is not stopped: stop its system level").await;
    let level = ConfigLevel::Entity(entity("e-1"));
    stop(&limiter, &level).await;
    refused("is not stopped").await;
    stop(&limiter, &ConfigLevel::System).await;
    exempt(&limiter, &level).await;
    refused("entity e-1 of namespace \"staging\" is exempt").await;
    let other = limiter.admin().purge_namespace("stage").dry_run().send().await.unwrap_err();
    assert!(other.to_string().contains("build a limiter of the namespace"), "{other}");
}

#[tokio::test(start_paused = true)]
async fn a_purge_interrupted_at_any_request_is_completed_by_another() {
    let fleet = Fleet::slow(LATENCY).await;
    live(&fleet, "staging2", 3).await;
    let before = others(&fleet);
    let (mut requests, mut is_interrupted) = (0, true);
    while is_interrupted {
        live(&fleet, "staging", 12).await;
        let first = limiter(&fleet, "staging").await;
        stop(&first, &ConfigLevel::System).await;
        let span = LATENCY * requests + LATENCY / 2;
        let purged = tokio::time::timeout(span, purge(&first, LiveLeases::Refuse)).await;
        is_interrupted = purged.map(Result::unwrap).is_err();
        let second = limiter(&fleet, "staging").await;
        purge(&second, LiveLeases::Refuse).await.unwrap();
        assert_purged(&fleet, &before).await;
        start(&second, &ConfigLevel::System).await;
        requests += 1;
    }
    assert!(requests > 4, "{requests}");
}

#[tokio::test(start_paused = true)]
async fn shards_with_live_leases_stay_unless_they_are_discarded() {
    let fleet = Fleet::new().await;
    let limiter = limiter(&fleet, "staging").await;
    let slots = [slots(1)];
    let held = leased(&limiter, &slots, &[("slots", 1)], Duration::from_secs(60)).await;
    stop(&limiter, &ConfigLevel::System).await;
    let report = purge(&limiter, LiveLeases::Refuse).await.unwrap();
    assert_eq!((report.leased, report.shards), (1, 0));
    let report = purge(&limiter, LiveLeases::Discard).await.unwrap();
    assert_eq!((report.leased, report.shards), (0, 1));
    drop(held);
}

/// What is purged would else come back beside each shard that stays for its lease.
#[tokio::test(start_paused = true)]
async fn a_purge_of_a_leased_bucket_stays_done_until_the_namespace_starts() {
    let fleet = Fleet::new().await;
    let (limiter, table) = (limiter(&fleet, "staging").await, fleet.dynamo.table().await);
    let limits = [slots(64)];
    let reshard = limiter.admin().set_shards("e-1", "gpt-4", &limits, 4);
    assert_eq!(reshard.await.unwrap(), 4);
    let held = leased(&limiter, &limits, &[("slots", 1)], secs(3_600)).await;
    stop(&limiter, &ConfigLevel::System).await;
    let report = purge(&limiter, LiveLeases::Refuse).await.unwrap();
    assert_eq!((report.leased, report.shards), (1, 3));
    let key = BucketKey::parse("staging/BUCKET#e-1#gpt-4#0").unwrap();
    for _ in 0..3 {
        pass(secs(61)).await;
        sharded::run(&table, fleet.now()).await;
        assert_eq!(sharded::shards(&table, &key).await.len(), 1);
    }
    start(&limiter, &ConfigLevel::System).await;
    drop(leased(&limiter, &limits, &[("slots", 1)], secs(60)).await);
    for _ in 0..3 {
        pass(secs(61)).await;
        sharded::run(&table, fleet.now()).await;
    }
    assert!(sharded::is_complete(&table, &key).await);
    drop(held);
}

/// Changes something. Returns whether it was another way before.
async fn change(limiter: &RateLimiter, random: &mut Rng) -> bool {
    let (admin, rate) = (limiter.admin(), random.i64(1..1_000_000));
    let [own, of_entity, of_resource, system] = levels();
    let level = random.choice([own, of_entity, of_resource, of_plan("pro")]).unwrap();
    match random.u8(..8) {
        0 => set(limiter, &system, rate, 1).await,
        1 => set(limiter, &level, rate, 1).await,
        2 => return admin.delete_config(&level).await.unwrap(),
        3 => {
            let child = child(&format!("e-{rate}"), "team");
            admin.set_entity(&child).await.unwrap();
        }
        4 => return admin.stop(&level).send().await.unwrap().before.is_none(),
        5 => return admin.start(&level).send().await.unwrap().before.is_some(),
        6 => return admin.start(&system).send().await.unwrap().before.is_some(),
        _ => {
            let policy = Some(OnUnavailable::Local { percent: 1 + random.u8(..99) });
            let edit = admin.store_on_unavailable(policy).send().await.unwrap();
            return edit.before != edit.after;
        }
    }
    true
}

/// Processes know the schema from a change, a read or an acquire before the purge.
#[tokio::test(start_paused = true)]
async fn a_namespace_is_listed_from_its_first_change_after_a_purge_until_the_next() {
    const NAMESPACES: [&str; 3] = ["s", "stage", "staging"];
    let mut purged = 0;
    for seed in 0..16 {
        let (fleet, mut random) = (Fleet::new().await, Rng::with_seed(seed));
        let (mut processes, mut listed) = (vec![], BTreeSet::new());
        for namespace in NAMESPACES.into_iter().cycle().take(6) {
            processes.push((namespace, limiter(&fleet, namespace).await));
        }
        for _ in 0..16 {
            let (namespace, process) = &processes[random.usize(..6)];
            match random.u8(..8) {
                0..2 => {
                    stop(process, &ConfigLevel::System).await;
                    purge_of(process, namespace, LiveLeases::Discard).await.unwrap();
                    purged += usize::from(listed.remove(namespace));
                }
                2 => drop(process.acquire("e-1", "gpt-4").take("rpm", 1).send().await),
                _ if change(process, &mut random).await => drop(listed.insert(*namespace)),
                _ => {}
            }
            for (_, process) in &processes {
                let found = process.admin().namespaces(None).await.unwrap().items;
                assert!(found.iter().eq(&listed), "seed {seed}: {found:?}, not {listed:?}");
            }
        }
    }
    assert!(purged > 10, "{purged} purges");
}

/// What is left of a bucket after a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    /// The shard, because of its lease.
    Leased,
    /// The shard as it was, created again by a late caller.
    CreatedAgain,
}

fn levels() -> [ConfigLevel; 4] {
    ConfigLevel::of(&entity("e-1"), &"gpt-4".try_into().unwrap())
}

/// Sets the limits of a level, changed so many times.
async fn set(limiter: &RateLimiter, level: &ConfigLevel, rate: i64, changes: i64) {
    for change in (0..changes).rev() {
        let config = weirgate::Config::of([rpm(rate + change)]);
        set_config(limiter, level, &config).await;
    }
}

/// The caller asks until the last item is deleted, and right after the start.
async fn later_limits_hold(before: &[ConfigLevel], after: &ConfigLevel, left: Left, serves: bool) {
    let what = format!("{before:?}, then {after}, {left:?}, purged by the caller: {serves}");
    let fleet = Fleet::new().await;
    let (operator, other) = (limiter(&fleet, "staging").await, limiter(&fleet, "staging").await);
    let caller = if serves { &operator } else { &other };
    for level in before {
        set(&operator, level, 600, 5).await;
    }
    let ask = || caller.acquire("e-1", "gpt-4").take("rpm", 1);
    let held = match left {
        Left::Leased => ask().lease(Duration::from_secs(3_600)).send().await,
        _ => ask().send().await,
    };
    let held = held.unwrap().granted();
    let pk = "staging/BUCKET#e-1#gpt-4#0";
    let shard = fleet.dynamo.item(pk, "#STATE");
    stop(&operator, &ConfigLevel::System).await;
    for _ in 0..90 {
        let _ = ask().send().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let report = purge(&operator, LiveLeases::Refuse).await.unwrap();
    assert_eq!(report.leased, usize::from(left == Left::Leased), "{what}");
    if left == Left::CreatedAgain {
        fleet.dynamo.put(&shard);
    }
    set(&operator, after, 400, 1).await;
    start(&operator, &ConfigLevel::System).await;
    let _ = fleet.dynamo.take_operations();
    for _ in 0..120 {
        let _ = ask().send().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let reads = fleet.dynamo.take_operations()["BatchGetItem"];
    let capacity = &fleet.dynamo.item(pk, "#STATE")["b_rpm_cp"]["N"];
    assert_eq!(capacity, "400000", "{what}");
    assert!(reads <= 8, "{what}: {reads} reads");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn limits_set_after_a_purge_hold_whatever_it_left() {
    let [own, of_entity, of_resource, system] = levels();
    let some = [vec![system.clone()], vec![own.clone()], vec![own, of_entity, of_resource, system]];
    for before in some {
        for after in levels() {
            for left in [Left::Nothing, Left::Leased, Left::CreatedAgain] {
                for serves in [false, true] {
                    later_limits_hold(&before, &after, left, serves).await;
                }
            }
        }
    }
}

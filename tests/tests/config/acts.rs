//! Every call of an operator leaves an audit event. The list of calls is that of the public surface.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;
use weirgate_tests::stored::{set_config, set_entity, stop};

use weirgate::{
    AuditSubject, Config, ConfigChange, ConfigLevel, Entity, EntityDescription, Error, LiveLeases,
    OnUnavailable, PlanName, RateLimiter,
};

use crate::fixtures::fleet::{Fleet, millis, secs};
use crate::fixtures::stored::{child, configure, entity, of_entity, rpm};

/// Calls that change nothing in the table.
const READS: [&str; 42] = [
    "audit",
    "audit_all",
    "bucket",
    "builder",
    "cache_stats",
    "check",
    "check_configs",
    "check_entities",
    "children",
    "config",
    "configs",
    "effective_limits",
    "entities",
    "entity",
    "entity_buckets",
    "entity_description",
    "has_plan",
    "is_available",
    "is_shadow",
    "last_changes",
    "leases",
    "namespaces",
    "on_unavailable",
    "order_entities",
    "peek",
    "plan_entities",
    "plans",
    "prefetched",
    "preview_erasure",
    "preview_plan_deletion",
    "read_configs",
    "read_entities",
    "resource_buckets",
    "resource_buckets_starting_with",
    "stats",
    "stored_on_unavailable",
    "switches",
    "switches_in_force",
    "timeout",
    "usage",
    "usage_report",
    "vendor_advice",
];
/// Calls of applications, which may write to buckets only; and the one that makes the table.
const CALLS: [&str; 8] = [
    "acquire",
    "acquire_all",
    "admin",
    "create_table",
    "refund",
    "report_vendor",
    "restore_grant",
    "shutdown",
];
/// Calls of operators.
const ACTS: [&str; 22] = [
    "apply_limits",
    "change_config",
    "delete_config",
    "delete_entity",
    "delete_plan",
    "edit_balances",
    "edit_entity_description",
    "erase_entity",
    "exempt",
    "pause",
    "purge_namespace",
    "release_lease",
    "replace_config",
    "replace_entity",
    "resume",
    "set_config",
    "set_entity",
    "set_entity_description",
    "set_plan",
    "set_shards",
    "start",
    "stop",
];
/// The one whose argument is a policy.
const STORE: &str = "store_on_unavailable";

/// Makes a change that is one in the world of [`world`].
async fn act(limiter: &RateLimiter, name: &str) -> Result<(), Error> {
    let (id, system) = (entity("e-1"), ConfigLevel::System);
    let described = || EntityDescription::default().named("Acme").unwrap();
    match name {
        "apply_limits" => drop(limiter.admin().apply_limits("e-1", "gpt-4").send().await?),
        "change_config" => {
            let delete = ConfigChange::Delete;
            let change = limiter.admin().change_config(&system, &delete, None);
            drop(change.await?);
        }
        "delete_config" => drop(limiter.admin().delete_config(&system).await?),
        "delete_entity" => drop(limiter.admin().delete_entity(&id).await?),
        "edit_balances" => {
            drop(limiter.admin().edit_balances("e-1", "gpt-4").drain_all().send().await?)
        }
        "edit_entity_description" => {
            let edit = |_| Ok::<_, Error>(described());
            drop(limiter.admin().edit_entity_description(&id, edit).await?);
        }
        "erase_entity" => drop(limiter.admin().erase_entity(&id, LiveLeases::Discard).await?),
        "exempt" => {
            let _ = limiter.admin().exempt(&system).send().await?;
        }
        "pause" => {
            let pause = limiter.admin().pause("e-1", "gpt-4", secs(60));
            let _ = pause.send().await?;
        }
        "resume" => {
            let pause = limiter.admin().pause("e-1", "gpt-4", secs(60));
            let _ = pause.send().await?;
            let _ = limiter.admin().resume("e-1", "gpt-4").send().await?;
        }
        "purge_namespace" => {
            let _ = limiter.admin().stop(&system).send().await?;
            drop(limiter.admin().purge_namespace("default").send().await?);
        }
        "release_lease" => {
            let leases = limiter.admin().leases("e-1", "gpt-4").await?.items;
            assert!(limiter.admin().release_lease("e-1", "gpt-4", &leases[0].id).await?);
        }
        "replace_config" => assert!(limiter.admin().replace_config(&system, 1, None).await?),
        "replace_entity" => {
            let before = child("e-1", "team");
            assert!(limiter.admin().replace_entity(&id, Some(&before), None).await?);
        }
        "set_config" => limiter.admin().set_config(&system, &Config::of([rpm(7)])).await?,
        "set_entity" => {
            let alone = Entity { parent: None, cascades: false, ..child("e-1", "team") };
            limiter.admin().set_entity(&alone).await?;
        }
        "set_entity_description" => {
            limiter.admin().set_entity_description(&id, &described()).await?
        }
        "set_plan" => assert!(limiter.admin().set_plan(&id, Some(&pro())).await?),
        "delete_plan" => assert_eq!(limiter.admin().delete_plan(&pro(), false).await?, 1),
        "set_shards" => drop(limiter.admin().set_shards("e-1", "gpt-4", &[rpm(60)], 2).await?),
        "start" => {
            let level = of_entity("stopped");
            let _ = limiter.admin().start(&level).send().await?;
        }
        "stop" => {
            let _ = limiter.admin().stop(&system).send().await?;
        }
        STORE => {
            let edit = limiter.admin().store_on_unavailable(Some(OnUnavailable::Deny));
            let _ = edit.send().await?;
        }
        other => panic!("{other} has no act"),
    }
    Ok(())
}

fn pro() -> PlanName {
    PlanName::new("pro").unwrap()
}

/// A namespace in which each act changes something.
async fn world(fleet: &Fleet) -> RateLimiter {
    let limiter = fleet.limiter_with(|builder| builder.principal("ann")).await;
    let limits = Config::of([rpm(60)]);
    set_config(&limiter, &ConfigLevel::System, &limits).await;
    set_entity(&limiter, &child("e-1", "team")).await;
    let stopped = of_entity("stopped");
    stop(&limiter, &stopped).await;
    let held = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
    let held = held.lease(secs(600)).send().await.unwrap().granted();
    std::mem::forget(held.unwrap());
    let narrow = of_entity("e-1");
    configure(&limiter, &narrow, [rpm(30)]).await;
    configure(&limiter, &ConfigLevel::Plan(pro()), [rpm(40)]).await;
    limiter
}

/// The authors of all audit events, by key.
fn events(fleet: &Fleet) -> BTreeMap<String, String> {
    let text = |value: &serde_json::Value| value["S"].as_str().unwrap_or_default().to_owned();
    let items = fleet.dynamo.items().into_iter();
    let events = items.filter(|item| text(&item["PK"]).contains("/AUDIT#"));
    events.map(|item| (text(&item["PK"]) + &text(&item["SK"]), text(&item["principal"]))).collect()
}

#[test]
fn every_public_call_is_known_as_a_read_a_call_or_an_act() {
    let api = include_str!("../../data/api.txt");
    let known: BTreeSet<_> = READS.iter().chain(&CALLS).chain(&ACTS).chain([&STORE]).collect();
    for line in api.lines() {
        let owners = ["RateLimiter", "Admin"].map(|owner| format!("fn weirgate::{owner}::"));
        let Some((_, call)) = owners.iter().find_map(|owner| line.split_once(owner)) else {
            continue;
        };
        let name = call.split_once('(').map_or(call, |(name, _)| name);
        let name = name.split_once('<').map_or(name, |(name, _)| name);
        assert!(known.contains(&name), "{name}: does it leave an audit event?");
    }
}

#[tokio::test(start_paused = true)]
async fn every_act_of_an_operator_leaves_an_audit_event() {
    for name in ACTS.into_iter().chain([STORE]) {
        let fleet = Fleet::new().await;
        let limiter = world(&fleet).await;
        let before = events(&fleet);
        act(&limiter, name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let after = events(&fleet);
        let new: Vec<_> = after.iter().filter(|(key, _)| !before.contains_key(*key)).collect();
        assert!(!new.is_empty(), "{name} left no event");
        assert!(new.iter().all(|(_, principal)| *principal == "ann"), "{name}: {new:?}");
        // And it can be read.
        for of in [AuditSubject::System, AuditSubject::Entity(entity("e-1"))] {
            let page = limiter.admin().audit(&of, None).await.unwrap();
            assert!(page.unreadable.is_empty(), "{name}: {:?}", page.unreadable);
        }
    }
}

/// An operator waits no longer than it was told, also for a table that answers nothing, or no write.
#[tokio::test(start_paused = true)]
async fn i9_every_act_of_an_operator_ends_within_its_timeout_on_a_silent_table() {
    for (name, are_reads_answered) in
        ACTS.into_iter().chain([STORE]).flat_map(|name| [(name, false), (name, true)])
    {
        let fleet = Fleet::new().await;
        let _world = world(&fleet).await;
        let timeout = millis(700);
        let limiter = fleet.limiter_with(|builder| builder.timeout(timeout)).await;
        fleet.dynamo.stall_when(move |operation, _| {
            let is_read = ["BatchGetItem", "Query", "Scan", "GetItem"].contains(&operation);
            !(is_read && are_reads_answered)
        });
        let began = Instant::now();
        let error = act(&limiter, name).await.expect_err("nothing is written");
        let took = began.elapsed();
        assert!(took <= timeout * 2, "{name}, {are_reads_answered}: {took:?}, {error}");
        if !are_reads_answered {
            assert!(took <= timeout + millis(1), "{name}: {took:?}, {error}");
        }
    }
}

/// Acts that write to shards after what announces or records them.
const IN_SHARDS: [&str; 6] =
    ["apply_limits", "edit_balances", "pause", "purge_namespace", "resume", "set_shards"];

/// The plan of a change is stored, so another call finishes it.
#[tokio::test(start_paused = true)]
async fn i9_an_act_ends_within_its_timeout_if_the_table_falls_silent_half_way() {
    for name in IN_SHARDS {
        for answered in 1.. {
            let fleet = Fleet::new().await;
            let _world = world(&fleet).await;
            let timeout = millis(700);
            let limiter = fleet.limiter_with(|builder| builder.timeout(timeout)).await;
            let is_silent = Arc::new(AtomicBool::new(false));
            let (silent, mut arrived) = (Arc::clone(&is_silent), 0);
            fleet.dynamo.stall_when(move |_, _| {
                arrived += 1;
                silent.fetch_or(arrived > answered, Ordering::Relaxed);
                arrived > answered
            });
            let began = Instant::now();
            let done = act(&limiter, name).await;
            let took = began.elapsed();
            let most = timeout * 2 + millis(100);
            assert!(took <= most, "{name}, {answered} answers: {took:?}, {done:?}");
            if !is_silent.load(Ordering::Relaxed) {
                done.unwrap_or_else(|error| panic!("{name}: {error}"));
                break;
            }
        }
    }
}

//! A dry run writes nothing, whatever state the bucket is in; and each call of an operator has one,
//! and an idempotency key.

use weirgate::{ConfigLevel, Error, OnUnavailable, OperationOutcome, RateLimiter};
use weirgate_shared::write::split;
use weirgate_store::ReturnValues;
use weirgate_testkit::Fault;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::stop;

use weirgate_tests::fleet::shards::{self, per_minute};
use weirgate_tests::fleet::{Fleet, granted, pass, rpm, secs};
use weirgate_tests::stored::{configure, entity, resource};

/// How a call is to be made.
#[derive(Debug, Clone, Copy)]
enum How {
    DryRun,
    Once(&'static str),
}

/// The calls of `docs/guide/operate.md`, by their names.
const CALLS: [&str; 11] = [
    "stop",
    "exempt",
    "start",
    "store_on_unavailable",
    "apply_limits",
    "edit_balances reset",
    "edit_balances set",
    "edit_balances drain",
    "edit_balances top_up",
    "pause",
    "resume",
];

async fn call(limiter: &RateLimiter, name: &str, how: How) -> Result<OperationOutcome, Error> {
    macro_rules! sent {
        ($edit:expr) => {{
            let edit = $edit;
            let edit = match how {
                How::DryRun => edit.dry_run(),
                How::Once(key) => edit.idempotency_key(key),
            };
            edit.send().await.map(|report| report.outcome)
        }};
    }
    let level = ConfigLevel::Entity(entity("e-1"));
    let balances = || limiter.admin().edit_balances("e-1", "gpt-4");
    match name {
        "stop" => sent!(limiter.admin().stop(&level)),
        "exempt" => sent!(limiter.admin().exempt(&level)),
        "start" => sent!(limiter.admin().start(&level)),
        "store_on_unavailable" => {
            sent!(limiter.admin().store_on_unavailable(Some(OnUnavailable::Deny)))
        }
        "apply_limits" => sent!(limiter.admin().apply_limits("e-1", "gpt-4")),
        "edit_balances reset" => sent!(balances().reset_all()),
        "edit_balances set" => sent!(balances().set("rpm", 30)),
        "edit_balances drain" => sent!(balances().drain_all()),
        "edit_balances top_up" => sent!(balances().top_up("rpm", 20)),
        "pause" => sent!(limiter.admin().pause("e-1", "gpt-4", secs(60))),
        "resume" => sent!(limiter.admin().resume("e-1", "gpt-4")),
        other => panic!("{other} is no call"),
    }
}

const STATES: [&str; 10] = [
    "missing",
    "whole",
    "split",
    "merged",
    "a split under way",
    "a split that was left",
    "expired leases",
    "a change that was left",
    "a shard is missing",
    "paused",
];

/// The first of the three writes of a split.
async fn begin_split(fleet: &Fleet) {
    let op = weirgate_store::random_id();
    let begun = split(&fleet.bucket().await, 0, op, fleet.now());
    let table = fleet.dynamo.table().await;
    let _ = table.update(&begun, ReturnValues::None).await.unwrap();
}

/// A bucket in this state, with other limits than are configured.
async fn world(fleet: &Fleet, state: &str) -> RateLimiter {
    let limiter = fleet.limiter().await;
    let level = ConfigLevel::Resource(resource("gpt-4"));
    let configured = [rpm(120)];
    configure(&limiter, &level, configured).await;
    stop(&limiter, &ConfigLevel::Entity(entity("e-2"))).await;
    let caller = fleet.limiter().await;
    let limits = per_minute(100);
    if state == "missing" {
        return limiter;
    }
    let _ = granted(&caller, &limits, &[("rpm", 40)]).await;
    match state {
        "split" | "a shard is missing" => shards::split(&caller, &limits, 4).await,
        "merged" => {
            shards::split(&caller, &limits, 4).await;
            shards::split(&caller, &limits, 1).await;
        }
        "a split under way" => begin_split(fleet).await,
        "a split that was left" => {
            begin_split(fleet).await;
            pass(secs(5)).await;
        }
        "expired leases" => {
            let ask = caller.acquire("e-1", "gpt-4").limits(&limits).take("rpm", 5);
            let held = taken(ask.lease(secs(1))).await;
            std::mem::forget(held);
            pass(secs(2)).await;
        }
        "paused" => {
            let admin = caller.admin();
            let pause = admin.pause("e-1", "gpt-4", secs(3_600));
            let _ = pause.send().await.unwrap();
        }
        "a change that was left" => {
            shards::split(&caller, &limits, 2).await;
            let last = shards::key(1).item_key().pk;
            fleet.dynamo.fail_when(move |request| {
                let key = &request["Key"];
                let fails = key["PK"]["S"] == last.as_str() && key["SK"]["S"] == "#STATE";
                fails.then_some(Fault::Forbidden)
            });
            let edit = caller.admin().edit_balances("e-1", "gpt-4").drain_all();
            let _ = edit.send().await.unwrap_err();
            fleet.dynamo.fail_when(|_| None);
        }
        _ => {}
    }
    if state == "a shard is missing" {
        let key = shards::key(3).item_key();
        fleet.dynamo.delete(&key.pk, &key.sk);
    }
    // The limits of a call give way after 30 s.
    pass(secs(60)).await;
    limiter
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_leaves_the_table_byte_for_byte_and_says_what_a_call_would_do() {
    for state in STATES {
        for name in CALLS {
            let fleet = Fleet::new().await;
            let limiter = world(&fleet, state).await;
            let before = fleet.dynamo.items();
            let planned = call(&limiter, name, How::DryRun).await;
            assert_eq!(fleet.dynamo.items(), before, "{name}: {state}");
            let page = limiter.admin().purge_namespace("default").dry_run().send().await;
            assert!(page.unwrap().deleted() > 0);
            assert_eq!(fleet.dynamo.items(), before, "purge: {state}");
            let made = call(&limiter, name, How::Once("k")).await;
            let case = format!("{name}: {state}: {planned:?}, then {made:?}");
            match (planned, made) {
                (Ok(OperationOutcome::DryRun), Ok(OperationOutcome::Applied))
                | (Ok(OperationOutcome::Unchanged), Ok(OperationOutcome::Unchanged))
                | (Err(Error::Invalid(_)), Err(Error::Invalid(_))) => {}
                _ => panic!("{case}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i7_each_call_is_made_once_per_key() {
    for state in STATES {
        for name in CALLS {
            let fleet = Fleet::new().await;
            let limiter = world(&fleet, state).await;
            if call(&limiter, name, How::Once("k")).await.is_err() {
                continue;
            }
            pass(secs(1)).await;
            let before = fleet.dynamo.items();
            let again = call(&limiter, name, How::Once("k")).await.unwrap();
            let is_known = matches!(again, OperationOutcome::AppliedBefore(_));
            assert!(is_known, "{name}: {state}: {again:?}");
            assert_eq!(fleet.dynamo.items(), before, "{name}: {state}");
        }
    }
}

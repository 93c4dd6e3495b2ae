//! Erasing an entity: complete, continued after an interruption, and no other item touched.

use std::collections::BTreeMap;
use std::time::Duration;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::{set_config, set_entity};

use serde_json::{Value, json};
use weirgate::{
    AuditChange, AuditSubject, Config, ConfigLevel, EntityDescription, EraseReport, Error,
    LiveLeases, RateLimiter,
};

use weirgate_tests::fleet::{Fleet, leased, pass, secs, slots};
use weirgate_tests::stored::{child, configure, entity, of_plan, plan, resource, rpm, set_plan};

const LATENCY: Duration = Duration::from_millis(10);

/// Names that look like the erased one.
const NEIGHBOURS: [&str; 5] = ["e", "e-10", "e-1:x", "e-1.a", "E-1"];

async fn live(limiter: &RateLimiter, name: &str) {
    for of in ["gpt-4", "gpt-40", "api/search"] {
        let level = ConfigLevel::EntityResource(entity(name), resource(of));
        let limits = Config::of([rpm(600)]);
        set_config(limiter, &level, &limits).await;
        let taken = limiter.acquire(name, of).take("rpm", 1).send().await;
        assert!(taken.unwrap().is_granted());
    }
    let limits = [rpm(600)];
    for shards in [16, 4] {
        let done = limiter.admin().set_shards(name, "gpt-4", &limits, shards);
        assert_eq!(done.await.unwrap(), shards);
    }
    set_entity(limiter, &child(name, "team")).await;
}

/// Stores snapshots of an entity, as the aggregator does in as many hours.
fn used(fleet: &Fleet, name: &str, hours: usize) {
    for hour in 0..hours {
        let (day, hour) = (1 + hour / 24, hour % 24);
        let (month, day) = (1 + day / 28, 1 + day % 28);
        fleet.dynamo.put(&json!({
            "PK": {"S": format!("default/ENTITY#{name}")},
            "SK": {"S": format!("#USAGE#gpt-4#hourly#2026-{month:02}-{day:02}T{hour:02}:00:00Z")},
        }));
    }
}

async fn world(fleet: &Fleet, neighbours: &[&str], hours: usize) {
    let (ours, theirs) =
        (fleet.limiter().await, fleet.limiter_with(|builder| builder.namespace("default2")).await);
    for name in neighbours.iter().chain(&["e-1"]) {
        live(&ours, name).await;
        used(fleet, name, 3);
    }
    live(&theirs, "e-1").await;
    // No name has these characters; items written by other means may.
    for pk in ["default/ENTITY#e-1/x", "default/ENTITY#e-1#x", "x/default/ENTITY#e-1"] {
        let sk = "#USAGE#gpt-4#hourly#2026-01-02T00:00:00Z";
        fleet.dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": sk}}));
    }
    used(fleet, "e-1", hours);
    let shared_denial = json!({
        "PK": {"S": "default/BUCKET#e-1#gpt-4#0"}, "SK": {"S": "#SHORT"}, "until": {"N": "0"},
    });
    fleet.dynamo.put(&shared_denial);
    for name in ["kid-1", "kid-2"] {
        set_entity(&ours, &child(name, "e-1")).await;
    }
}

fn is_own(item: &Value) -> bool {
    let pk = item["PK"]["S"].as_str().unwrap();
    ["default/ENTITY#e-1", "default/AUDIT#e-1"].contains(&pk)
        || pk.starts_with("default/BUCKET#e-1#")
}

fn is_kid(item: &Value) -> bool {
    item["PK"]["S"].as_str().unwrap().contains("#kid-")
}

fn others(fleet: &Fleet) -> BTreeMap<String, Value> {
    let items = fleet.dynamo.items().into_iter();
    items
        .filter(|item| !is_own(item) && !is_kid(item))
        .map(|item| (format!("{} {}", item["PK"]["S"], item["SK"]["S"]), item))
        .collect()
}

/// Checks that nothing is left of the entity but the versions of its limits, tombstones of shards,
/// and the audit events of erasures.
async fn assert_erased(fleet: &Fleet, before: &BTreeMap<String, Value>) {
    assert!(others(fleet) == *before, "another entity's item changed");
    let reader = fleet.limiter().await;
    let of = AuditSubject::Entity(entity("e-1"));
    let events = reader.admin().audit(&of, None).await.unwrap().items;
    assert!(!events.is_empty());
    for event in events {
        assert_eq!(event.change, AuditChange::Erased { id: entity("e-1") });
    }
    let left = fleet.dynamo.items().into_iter().filter(is_own);
    for item in left {
        let sk = item["SK"]["S"].as_str().unwrap();
        if sk.starts_with("#CONFIG#") {
            assert!(item.get("limits").is_none() && item.get("cv").is_some(), "{item}");
        } else if sk == "#STATE" {
            assert!(item.get("rf").is_none() && item.get("ttl").is_some(), "{item}");
        } else {
            assert!(sk.starts_with("#AUDIT#"), "{item}");
        }
    }
    let children = reader.admin().children(&entity("e-1"), None).await.unwrap();
    assert!(children.items.is_empty());
    for name in ["kid-1", "kid-2"] {
        let kid = reader.admin().entity(&entity(name)).await.unwrap().unwrap();
        assert_eq!((kid.parent, kid.cascades), (None, false));
    }
}

#[tokio::test(start_paused = true)]
async fn an_entity_with_1000_items_is_erased_and_nothing_else_is() {
    let fleet = Fleet::new().await;
    world(&fleet, &NEIGHBOURS, 990).await;
    let count = fleet.dynamo.items().iter().filter(|item| is_own(item)).count();
    assert!(count >= 1_000, "{count}");
    let before = others(&fleet);
    let limiter = fleet.limiter().await;
    let erase = async || {
        let erased = limiter.admin().erase_entity(&entity("e-1"), LiveLeases::Refuse).await;
        erased.unwrap()
    };
    let preview = async || {
        let counted = limiter.admin().preview_erasure(&entity("e-1"), LiveLeases::Refuse).await;
        counted.unwrap()
    };
    let items = fleet.dynamo.items();
    let previewed = preview().await;
    assert_eq!(fleet.dynamo.items(), items, "a preview deletes nothing");
    let report = erase().await;
    assert_eq!(previewed, report);
    // Shards: 16 of which 12 were merged away, and two buckets of one.
    let expected = EraseReport {
        configs: 3,
        entity: true,
        children: 2,
        shards: 18,
        snapshots: 990,
        audit_events: 6,
        versions_left: 3,
        in_use: vec![],
    };
    assert_eq!(report, expected);
    assert_erased(&fleet, &before).await;
    let again = EraseReport { versions_left: 3, ..EraseReport::default() };
    assert_eq!(preview().await, again);
    assert_eq!(erase().await, again);
    assert_erased(&fleet, &before).await;
    // The versions went on rising, so a caller that knows the old limits cannot keep them.
    pass(secs(1)).await;
    live(&limiter, "e-1").await;
    let level = ConfigLevel::EntityResource(entity("e-1"), resource("gpt-4"));
    assert!(limiter.admin().config(&level).await.unwrap().is_some());
}

/// Acquires leave no audit events, so the second erasure shows only by its own.
#[tokio::test(start_paused = true)]
async fn each_erasure_that_deletes_something_has_an_audit_event() {
    let fleet = Fleet::new().await;
    let by = async |name: &str| fleet.limiter_with(|builder| builder.principal(name)).await;
    let (alice, bob) = (by("alice").await, by("bob").await);
    let id = entity("e-1");
    for (limiter, deletes) in [(&alice, true), (&alice, false), (&bob, true)] {
        if deletes {
            let limits = [rpm(600)];
            let taken = alice.acquire("e-1", "gpt-4").limits(&limits).take("rpm", 1);
            assert!(taken.send().await.unwrap().is_granted());
        }
        let report = limiter.admin().erase_entity(&id, LiveLeases::Refuse).await.unwrap();
        assert_eq!(report.shards, usize::from(deletes));
        // Events of one millisecond have no order.
        pass(secs(1)).await;
    }
    let of = AuditSubject::Entity(id.clone());
    let events = alice.admin().audit(&of, None).await.unwrap().items;
    let principals: Vec<_> = events.iter().map(|event| event.principal.as_str()).collect();
    assert_eq!(principals, ["bob", "alice"]);
}

/// Drops the call during its first request, its second, and so on, until one call is complete.
#[tokio::test(start_paused = true)]
async fn an_erasure_interrupted_at_any_request_is_completed_by_another_call() {
    let fleet = Fleet::slow(LATENCY).await;
    world(&fleet, &["e-10"], 15).await;
    let (all, before) = (fleet.dynamo.items(), others(&fleet));
    let (mut requests, mut interrupted) = (0, true);
    while interrupted {
        for item in fleet.dynamo.items() {
            let key = |name: &str| item[name]["S"].as_str().unwrap();
            fleet.dynamo.delete(key("PK"), key("SK"));
        }
        all.iter().for_each(|item| fleet.dynamo.put(item));
        let limiter = fleet.limiter().await;
        let id = entity("e-1");
        let span = LATENCY * requests + LATENCY / 2;
        let first =
            tokio::time::timeout(span, limiter.admin().erase_entity(&id, LiveLeases::Refuse));
        interrupted = match first.await {
            Ok(done) => done.map(|_| false).unwrap(),
            Err(_) => true,
        };
        let second = fleet.limiter().await;
        second.admin().erase_entity(&id, LiveLeases::Refuse).await.unwrap();
        assert_erased(&fleet, &before).await;
        requests += 1;
    }
    assert!(requests > 20, "{requests}");
}

#[tokio::test(start_paused = true)]
async fn a_live_lease_refuses_the_erasure_before_anything_is_deleted() {
    let (fleet, [limiter]) = Fleet::of().await;
    live(&limiter, "e-1").await;
    let slots = [slots(4)];
    let held = limiter.acquire("e-1", "db").limits(&slots).take("slots", 1);
    let grant = taken(held.lease(secs(60))).await;
    let before = fleet.dynamo.items();
    let erase = async |leases| limiter.admin().erase_entity(&entity("e-1"), leases).await;
    let error = erase(LiveLeases::Refuse).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("default/BUCKET#e-1#db#0 holds 1 leases"), "{text}");
    assert!(text.contains("LiveLeases::Discard"), "{text}");
    assert!(fleet.dynamo.items() == before);
    let report = erase(LiveLeases::Discard).await.unwrap();
    assert_eq!((report.shards, report.configs), (19, 3));
    drop(grant);
}

/// A take between the read and the deletion fails the transaction, so its lease is not lost.
#[tokio::test(start_paused = true)]
async fn a_lease_taken_during_the_erasure_is_not_deleted() {
    let (fleet, [holder, operator]) = Fleet::of().await;
    let limits = [rpm(60)];
    drop(leased(&holder, &limits, &[("rpm", 1)], secs(60)).await);
    weirgate_tests::fleet::settle().await;
    let key = "default/BUCKET#e-1#gpt-4#0";
    let dynamo = fleet.dynamo.clone();
    let mut is_first = true;
    fleet.dynamo.fail_transactions(move |request| {
        if std::mem::take(&mut is_first) && request.to_string().contains("BUCKET#e-1") {
            let mut held = dynamo.item(key, "#STATE");
            let lease = json!({"e": {"N": "9999999999999"}, "t": {"M": {}}, "w": {"S": "late"}});
            held["h"] = json!({"M": {"0late": {"M": lease}}});
            let v: i64 = held["v"]["N"].as_str().unwrap().parse().unwrap();
            held["v"] = json!({"N": (v + 1).to_string()});
            dynamo.put(&held);
        }
        None
    });
    let erased = operator.admin().erase_entity(&entity("e-1"), LiveLeases::Refuse).await;
    let error = erased.unwrap_err().to_string();
    assert!(error.contains("holds 1 leases"), "{error}");
    assert!(fleet.dynamo.item(key, "#STATE")["h"]["M"]["0late"].is_object());
}

/// Whichever of both is first, the next erasure leaves nothing.
#[tokio::test(start_paused = true)]
async fn an_edit_beside_an_erasure_changes_nothing_of_what_that_left() {
    for (edit, begins) in (0..3).flat_map(|edit| (0..20).map(move |of| (edit, of))) {
        let fleet = Fleet::slow(LATENCY).await;
        let (editor, eraser) = (fleet.limiter().await, fleet.limiter().await);
        let (id, pro) = (entity("e-1"), plan("pro"));
        configure(&eraser, &of_plan("pro"), [rpm(600)]).await;
        set_entity(&eraser, &child("e-1", "team")).await;
        set_plan(&eraser, "e-1", "pro").await.unwrap();
        let editing = async {
            tokio::time::sleep(LATENCY * begins).await;
            let admin = editor.admin();
            match edit {
                0 => drop(admin.set_entity(&child("e-1", "other")).await),
                1 => drop(admin.set_plan(&id, None).await),
                _ => {
                    let named = EntityDescription::default().named("Acme").unwrap();
                    drop(admin.set_entity_description(&id, &named).await);
                }
            }
        };
        let erase = || eraser.admin().erase_entity(&id, LiveLeases::Refuse);
        let (erased, ()) = tokio::join!(erase(), editing);
        erased.unwrap();
        erase().await.unwrap();
        let case = format!("edit {edit}, begun after {begins} requests");
        let items = fleet.dynamo.items();
        let left = items.iter().find(|item| item["PK"]["S"] == "default/ENTITY#e-1");
        let left = left.and_then(Value::as_object).into_iter().flat_map(|item| item.keys());
        let left: Vec<_> =
            left.filter(|name| !["PK", "SK", "cv", "op"].contains(&&***name)).collect();
        assert_eq!(left, Vec::<&String>::new(), "{case}");
        let plans = eraser.admin().plans(None).await.unwrap().items;
        let uses: Vec<_> = plans.iter().map(|of| (&of.plan, of.entities)).collect();
        assert_eq!(uses, [(&pro, 0)], "{case}");
    }
}

//! Tenants of one table: whatever a limiter is asked to do, it asks only for what begins with its
//! own namespace, and the items of others stay as they are, byte for byte.

use std::sync::{Arc, Mutex, OnceLock};

use proptest::prelude::*;
use serde_json::{Value, json};
use weirgate::{
    AuditSubject, Config, ConfigFilter, ConfigLevel, Error, FileError, Limit, LimitsFile, Page,
    Prefetch, RateLimiter, Window,
};
use weirgate_testkit::{Dynamo, Temporary};
use weirgate_tests::fleet::{Fleet, START, config, pass, rpm, runtime, secs, settle, slots};
use weirgate_tests::stored::{child, entity, resource};

/// The tenant, and others whose names are as near to its own as names may be.
const OURS: &str = "a";
const OTHERS: [&str; 5] = ["a-b", "A", "aa", "a_", "BUCKET"];

/// What all of them have: entities and resources that look like parts of keys.
const ENTITIES: [&str; 4] = ["e-1", "a-b", "BUCKET", "a:0@x"];
const RESOURCES: [&str; 4] = ["gpt-4", "a-b/BUCKET", "ENTITY", "a/"];

/// What stands between a namespace and the rest of a key, in any key and any index.
const MARKS: [&str; 6] = ["/BUCKET#", "/ENTITY#", "/RESOURCE#", "/SYSTEM#", "/AUDIT#", "/PARENT#"];

/// Every text of every request from now on that is a key, or a partition of an index, or was one.
fn asked(dynamo: &Dynamo) -> Arc<Mutex<Vec<String>>> {
    /// A resource in a sort key can look like one, behind a `#`.
    fn is_partition(text: &str, mark: &str) -> bool {
        text.split_once(mark).is_some_and(|(before, _)| !before.contains('#'))
    }
    fn keys(value: &Value, is_key: bool, found: &mut Vec<String>) {
        match value {
            Value::String(text) if is_key || MARKS.iter().any(|mark| is_partition(text, mark)) => {
                found.push(text.clone())
            }
            Value::Array(values) => values.iter().for_each(|value| keys(value, is_key, found)),
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| keys(value, is_key || name == "PK", found))
            }
            _ => {}
        }
    }
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let (writes, transactions, reads) =
        (Arc::clone(&asked), Arc::clone(&asked), Arc::clone(&asked));
    let note = |asked: &Mutex<Vec<String>>, request: &Value| {
        keys(request, false, &mut asked.lock().unwrap())
    };
    dynamo.fail_when(move |request| {
        note(&writes, request);
        None
    });
    dynamo.fail_transactions(move |request| {
        note(&transactions, request);
        None
    });
    dynamo.fail_reads(move |_, request| {
        note(&reads, request);
        None
    });
    asked
}

fn assert_ours(asked: &Mutex<Vec<String>>) {
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    assert!(!asked.is_empty(), "the check sees keys");
    for key in asked {
        assert_eq!(key.split('/').next(), Some(OURS), "{key}");
    }
}

fn limits() -> [Limit; 2] {
    [rpm(1_000), slots(8)]
}

async fn limiter(fleet: &Fleet, namespace: &str) -> RateLimiter {
    fleet.limiter_with(|builder| builder.namespace(namespace)).await
}

/// One thing that a limiter can be asked for.
#[derive(Debug, Clone, Copy)]
struct Step {
    what: u8,
    entity: usize,
    other: usize,
    resource: usize,
    amount: i64,
}

fn step() -> impl Strategy<Value = Step> {
    (0..20_u8, 0..4_usize, 0..4_usize, 0..4_usize, 1..9_i64).prop_map(
        |(what, entity, other, resource, amount)| Step { what, entity, other, resource, amount },
    )
}

/// Every public way in. What cannot be done, as a circle of parents, is refused and does nothing.
async fn take(limiter: &RateLimiter, step: Step) {
    let Step { what, amount, .. } = step;
    let (name, other, of) = (ENTITIES[step.entity], ENTITIES[step.other], RESOURCES[step.resource]);
    let (limits, levels) = (limits(), ConfigLevel::of(&entity(name), &resource(of)));
    let ask = |name| {
        limiter
            .acquire(name, of)
            .limits(&limits)
            .take("rpm", amount)
            .take("slots", 1)
            .lease(secs(30))
    };
    let level = &levels[step.other];
    match what {
        0..=2 => {
            let Some(mut grant) = ask(name).send().await.unwrap().granted() else {
                return;
            };
            let _ = grant.adjust("rpm", 2).await.unwrap();
            let _ = grant.renew(secs(60)).await.unwrap();
            let _ = match what {
                0 => grant.release().await.unwrap(),
                1 => grant.roll_back().await.unwrap(),
                _ => return,
            };
        }
        3 => drop(limiter.acquire(name, of).take("rpm", amount).send().await),
        4 if name != other => {
            drop(limiter.acquire_all([ask(name), ask(other)]).send().await.unwrap())
        }
        6 => drop(limiter.peek(name, of).limits(&limits).need("rpm", amount).send().await.unwrap()),
        7 => limiter.admin().set_config(level, &Config::of(limits)).await.unwrap(),
        8 => drop(limiter.admin().delete_config(level).await.unwrap()),
        9 => drop(limiter.admin().config(level).await.unwrap()),
        10 => drop(limiter.admin().set_entity(&child(name, other)).await),
        11 => drop(limiter.admin().delete_entity(&entity(name)).await.unwrap()),
        12 => drop(limiter.admin().entity(&entity(name)).await.unwrap()),
        13 => drop(limiter.admin().children(&entity(name), None).await.unwrap()),
        14 => {
            for of in [
                ConfigFilter::Entity(entity(name)),
                ConfigFilter::Resource(resource(of)),
                ConfigFilter::All,
                ConfigFilter::Entities,
            ] {
                drop(limiter.admin().configs(&of, None).await.unwrap());
            }
            drop(limiter.admin().configs(&ConfigFilter::Resources, None).await.unwrap());
        }
        15 => {
            for of in [
                AuditSubject::Entity(entity(name)),
                AuditSubject::Resource(resource(of)),
                AuditSubject::System,
            ] {
                drop(limiter.admin().audit(&of, None).await.unwrap());
            }
        }
        16 => drop(limiter.admin().set_shards(name, of, &limits[..1], 1 << (amount % 4)).await),
        17 => limiter.check().await.unwrap(),
        18 => drop(limiter.usage(name, of, Window::Hourly, START).await.unwrap()),
        _ => pass(secs(61)).await,
    }
}

/// A limits file of this text, which is gone when it has been read.
fn opened(text: &str) -> Result<LimitsFile, FileError> {
    LimitsFile::open(&*Temporary::file("limits.yaml", text))
}

/// Limits for names that look like parts of keys, each the parent of the one before it.
fn look_alikes() -> String {
    let limits = "limits: {rpm: {per_minute: 1000}, slots: {concurrent: 8}}";
    let entity = |at: usize| match ENTITIES.get(at + 1) {
        Some(parent) => format!("  {:?}: {{parent: {parent:?}, {limits}}}\n", ENTITIES[at]),
        None => format!("  {:?}: {{{limits}}}\n", ENTITIES[at]),
    };
    let entities: String = (0..ENTITIES.len()).map(entity).collect();
    let resources: String =
        RESOURCES.iter().map(|name| format!("  {name:?}: {{{limits}}}\n")).collect();
    format!("weirgate: 1\nresources:\n{resources}entities:\n{entities}")
}

async fn every_step(limiter: &RateLimiter) {
    for what in 0..19 {
        for entity in 0..ENTITIES.len() {
            let (other, resource) = ((entity + 1) % 4, entity);
            take(limiter, Step { what, entity, other, resource, amount: 3 }).await;
        }
    }
}

/// What all the others have in the table; made once.
fn occupied() -> &'static [Value] {
    static ITEMS: OnceLock<Vec<Value>> = OnceLock::new();
    ITEMS.get_or_init(|| {
        let made = std::thread::spawn(|| {
            runtime().block_on(async {
                let fleet = Fleet::new().await;
                for namespace in OTHERS {
                    every_step(&limiter(&fleet, namespace).await).await;
                }
                settle().await;
                fleet.dynamo.items()
            })
        });
        // On another thread, as a runtime cannot run inside of one.
        made.join().expect("the others can do what we can")
    })
}

proptest! {
    #![proptest_config(config(5))]

    #[test]
    fn a_limiter_asks_for_nothing_of_another_namespace(steps in prop::collection::vec(step(), 1..60)) {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            occupied().iter().for_each(|item| fleet.dynamo.put(item));
            let before = fleet.dynamo.items_of_others(OURS);
            assert!(OTHERS.iter().all(|namespace| before.keys().any(|key| key.starts_with(&format!("{namespace}/")))));

            let file = opened(&look_alikes()).unwrap();
            let ahead = fleet.limiter_with(|builder| builder.namespace(OURS).limits_file(file).prefetch("gpt-4", Prefetch::default().max_outstanding_percent(50))).await;
            let (ours, asked) = (limiter(&fleet, OURS).await, asked(&fleet.dynamo));
            for (at, step) in steps.into_iter().enumerate() {
                take(if at % 3 == 0 { &ahead } else { &ours }, step).await;
            }
            every_step(&ours).await;
            ahead.shutdown().await.unwrap();
            settle().await;

            assert_ours(&asked);
            assert_eq!(fleet.dynamo.items_of_others(OURS), before);
        });
    }
}

/// Where a page ends is a key, and one of another namespace must not be sent.
#[tokio::test(start_paused = true)]
async fn a_page_goes_on_in_its_own_list_only() {
    let fleet = Fleet::new().await;
    let (ours, theirs) = (limiter(&fleet, OURS).await, limiter(&fleet, "b").await);
    for namespace in [OURS, "b"] {
        for child in 0..101 {
            let item = json!({
                "PK": {"S": format!("{namespace}/ENTITY#c-{child}")}, "SK": {"S": "#META"}, "op": {"S": "0"},
                "GSI1PK": {"S": format!("{namespace}/PARENT#team")}, "GSI1SK": {"S": format!("CHILD#c-{child}")},
            });
            fleet.dynamo.put(&item);
        }
    }
    let page = |page: Page<_>| page.next.expect("there are more");
    let (own, foreign) = (
        page(ours.admin().children(&entity("team"), None).await.unwrap()),
        page(theirs.admin().children(&entity("team"), None).await.unwrap()),
    );
    let asked = asked(&fleet.dynamo);
    assert_eq!(ours.admin().children(&entity("team"), Some(&own)).await.unwrap().items.len(), 1);
    assert_ours(&asked);
    let refused = |result: Result<_, Error>| matches!(result, Err(Error::Invalid(text)) if text.contains("/PARENT#team"));
    assert!(refused(ours.admin().children(&entity("team"), Some(&foreign)).await.map(drop)));
    assert!(refused(ours.admin().children(&entity("e-1"), Some(&own)).await.map(drop)));
    assert!(refused(
        ours.admin().audit(&AuditSubject::Entity(entity("team")), Some(&own)).await.map(drop)
    ));
    assert!(refused(ours.admin().configs(&ConfigFilter::Entities, Some(&own)).await.map(drop)));
    assert!(asked.lock().unwrap().is_empty(), "refused before anything is sent");
}

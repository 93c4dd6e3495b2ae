//! One item that cannot be read hides no other, in no list and in no report: each attribute of each
//! kind of item is damaged in each way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use weirgate_tests::stored::{set_config, set_entity};

use serde_json::{Value, json};
use weirgate::{
    AuditSubject, Config, ConfigFilter, ConfigLevel, Entity, EntityId, EpochMillis, Error,
    Granularity, Limit, Page, PageToken, RateLimiter, Resource, UsageScope,
};
use weirgate_shared::attr::INDEXED;
use weirgate_testkit::batches;

use weirgate_tests::aggregator::{deliver_text, event};
use weirgate_tests::fleet::{Fleet, pass, secs, slots};

fn entity(name: &str) -> EntityId {
    name.try_into().unwrap()
}

fn resource(name: &str) -> Resource {
    name.try_into().unwrap()
}

fn limits() -> [Limit; 2] {
    [slots(8), Limit::per_hour("rpm", 1_000).unwrap()]
}

/// What a list has: entries by a name, and the keys of items that cannot be read.
#[derive(Debug, Default, PartialEq)]
struct Listed {
    entries: BTreeMap<String, String>,
    unreadable: BTreeSet<String>,
}

impl Listed {
    async fn of<T: Debug>(
        name: impl Fn(&T) -> String,
        mut page: impl AsyncFnMut(Option<&PageToken>) -> Result<Page<T>, Error>,
    ) -> Self {
        let (mut listed, mut after) = (Self::default(), None);
        loop {
            let read = page(after.as_ref()).await.unwrap();
            let entries = read.items.iter();
            let entries = entries.map(|entry| (name(entry), format!("{entry:?}")));
            listed.entries.extend(entries);
            for item in read.unreadable {
                assert!(item.error.ends_with("; correct or delete the item"));
                listed.unreadable.insert(format!("{} {}", item.pk, item.sk));
            }
            after = read.next;
            if after.is_none() {
                return listed;
            }
        }
    }
}

/// The lists that read items of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Buckets, leases and usage, of an entity.
    Usage,
    /// Those of a resource, with many requests.
    OfResource,
    Config,
    Audit,
    Entity,
}

/// Reads every list and report of these kinds.
async fn lists(
    limiter: &RateLimiter,
    now: EpochMillis,
    kinds: &[Kind],
) -> BTreeMap<&'static str, Listed> {
    let (e1, gpt4) = (entity("e-1"), resource("gpt-4"));
    let mut lists = BTreeMap::new();
    let is_read = |kind| kinds.contains(&kind);
    if is_read(Kind::OfResource) {
        let name =
            |bucket: &weirgate::StoredBucket| format!("{} {}", bucket.entity, bucket.resource);
        let of =
            Listed::of(name, async |after| limiter.admin().resource_buckets(&gpt4, after).await);
        lists.insert("buckets of a resource", of.await);
    }
    if is_read(Kind::Usage) {
        let name =
            |bucket: &weirgate::StoredBucket| format!("{} {}", bucket.entity, bucket.resource);
        let of = Listed::of(name, async |after| limiter.admin().entity_buckets(&e1, after).await);
        lists.insert("buckets of an entity", of.await);
        for (list, holder) in [("leases", "e-1"), ("leases of shards", "e-4")] {
            let name = |lease: &weirgate::StoredLease| format!("{} {}", lease.shard, lease.id);
            let of = Listed::of(name, async |_| limiter.admin().leases(holder, "gpt-4").await);
            lists.insert(list, of.await);
        }
    }
    if is_read(Kind::Config) {
        for (list, filter) in [
            ("limits of an entity", ConfigFilter::Entity(e1.clone())),
            ("limits of entities", ConfigFilter::Entities),
            ("limits on a resource", ConfigFilter::Resource(gpt4.clone())),
            ("limits of resources", ConfigFilter::Resources),
            ("limits of all", ConfigFilter::All),
        ] {
            let name = |(level, _): &(ConfigLevel, Config)| level.to_string();
            let of = Listed::of(name, async |after| limiter.admin().configs(&filter, after).await);
            lists.insert(list, of.await);
        }
    }
    if is_read(Kind::Audit) {
        for (list, subject) in [
            ("audit of an entity", AuditSubject::Entity(e1.clone())),
            ("audit of a resource", AuditSubject::Resource(gpt4.clone())),
            ("audit of the system", AuditSubject::System),
        ] {
            let name = |event: &weirgate::AuditEvent| event.id.to_string();
            let of = Listed::of(name, async |after| limiter.admin().audit(&subject, after).await);
            lists.insert(list, of.await);
        }
        let name = |event: &weirgate::AuditEvent| event.id.to_string();
        let of = Listed::of(name, async |after| limiter.admin().audit_all(after).await);
        lists.insert("audit of all", of.await);
    }
    if is_read(Kind::Entity) {
        let of =
            Listed::of(ToString::to_string, async |after| limiter.admin().entities(after).await);
        lists.insert("entities", of.await);
        let team = entity("team");
        let of = Listed::of(ToString::to_string, async |after| {
            limiter.admin().children(&team, after).await
        });
        lists.insert("children", of.await);
        let of =
            Listed::of(ToString::to_string, async |after| limiter.admin().namespaces(after).await);
        lists.insert("namespaces", of.await);
    }
    for (list, scope, kind) in [
        ("usage of a resource", UsageScope::Resource(gpt4.clone()), Kind::OfResource),
        ("usage of an entity", UsageScope::Entity(e1.clone()), Kind::Usage),
        ("usage of a bucket", UsageScope::Bucket(e1, gpt4), Kind::Usage),
    ] {
        if !is_read(kind) {
            continue;
        }
        let start = EpochMillis(now.0 - 6 * 3_600_000);
        let report = limiter.admin().usage_report(scope, Granularity::Hourly, start..now);
        let report = report.unwrap();
        let name =
            |row: &weirgate::UsageRow| format!("{} {} {}", row.entity, row.resource, row.start.0);
        let of = Listed::of(name, async |after| report.page(after).await).await;
        if list != "usage of a bucket" {
            lists.insert(list, of);
            continue;
        }
        let total = report.total().await.unwrap();
        let top = report.top_by_acquires(10).await.unwrap();
        let keys = |items: Vec<weirgate::Unreadable>| -> BTreeSet<_> {
            let keys = items.into_iter();
            keys.map(|item| format!("{} {}", item.pk, item.sk)).collect()
        };
        let is_complete = total.unreadable.is_empty();
        assert_eq!(keys(total.unreadable), of.unreadable);
        assert_eq!(keys(top.unreadable), of.unreadable);
        assert!(is_complete || total.complete_until <= start, "{list}");
        lists.insert(list, of);
    }
    lists
}

/// Returns the kinds of the lists that read an item; `None` if one like it is damaged already.
fn kind(pk: &str, sk: &str, hours: &mut BTreeSet<String>) -> Option<Kind> {
    let is_chosen =
        ["e-1", "e-4#gpt-4#1", "RESOURCE#gpt-4", "SYSTEM"].iter().any(|name| pk.contains(name));
    let kind = if !is_chosen || pk.contains("api/search") {
        return None;
    } else if pk.contains("/BUCKET#") || sk.starts_with("#USAGE#gpt-4") {
        Kind::Usage
    } else if sk.starts_with("#CONFIG") {
        Kind::Config
    } else if sk.starts_with("#AUDIT") {
        Kind::Audit
    } else {
        Kind::Entity
    };
    // One of the hours and of the events is enough.
    let of_many = sk.starts_with("#USAGE") || sk.starts_with("#AUDIT");
    let name = if of_many { &sk[..12.min(sk.len())] } else { sk };
    hours.insert(format!("{pk} {name}")).then_some(kind)
}

/// A table with several items of each kind, and usage in several hours.
async fn world() -> (Fleet, EpochMillis) {
    let fleet = Fleet::new().await;
    pass(secs(60)).await;
    let limiter = fleet.limiter().await;
    let config = Config::of(limits());
    for level in [
        ConfigLevel::System,
        ConfigLevel::Resource(resource("gpt-4")),
        ConfigLevel::Resource(resource("api/search")),
        ConfigLevel::Entity(entity("e-1")),
        ConfigLevel::Entity(entity("e-2")),
        ConfigLevel::EntityResource(entity("e-1"), resource("gpt-4")),
        ConfigLevel::EntityResource(entity("e-2"), resource("gpt-4")),
    ] {
        set_config(&limiter, &level, &config).await;
    }
    for name in ["e-1", "e-2", "e-3"] {
        let parent = Some(entity("team"));
        let set = Entity { id: entity(name), parent, cascades: false, plan: None };
        set_entity(&limiter, &set).await;
    }
    let shards = limiter.admin().set_shards("e-4", "gpt-4", &limits(), 2).await;
    assert_eq!(shards.unwrap(), 2);
    for hour in 0..3 {
        for (of, on) in [
            ("e-1", "gpt-4"),
            ("e-2", "gpt-4"),
            ("e-3", "gpt-4"),
            ("e-4", "gpt-4"),
            ("e-4", "gpt-4"),
            ("e-1", "api/search"),
        ] {
            let limits = limits();
            let acquire = limiter.acquire(of, on).limits(&limits).take("rpm", 3);
            let acquire = acquire.take("slots", 1).lease(secs(86_000));
            let granted = acquire.send().await.unwrap();
            assert!(granted.is_granted(), "{of} {on} {hour}");
            std::mem::forget(granted);
        }
        pass(secs(3_600)).await;
        let records = batches::stream(&fleet.dynamo, fleet.now());
        let table = fleet.dynamo.table().await;
        let handled = deliver_text(&table, &event(&records), fleet.now()).await;
        assert!(handled.response.unwrap().batch_item_failures.is_empty());
    }
    let now = fleet.now();
    (fleet, now)
}

const DAMAGES: usize = 5;

/// What an attribute can be that it should not.
fn damages() -> [Option<Value>; DAMAGES] {
    [
        Some(json!({"S": "\u{1b}]0;x\u{7}\u{202e}"})),
        Some(json!({"N": "-1"})),
        Some(json!({"N": "99999999999999999999999999999999999999"})),
        Some(json!({"M": {"x": {"S": "y"}}})),
        None,
    ]
}

/// Returns the item with each damage: its attribute, or the entry of a map in it.
fn damaged(item: &Value) -> Vec<(String, Value)> {
    let attributes = item.as_object().unwrap();
    let mut all = vec![];
    for (name, value) in attributes {
        // Items are found by these.
        if INDEXED.contains(&name.as_str()) {
            continue;
        }
        let mut paths = vec![vec![name.clone()]];
        for (entry, value) in value["M"].as_object().into_iter().flatten().take(1) {
            paths.push(vec![name.clone(), entry.clone()]);
            for deeper in value["M"].as_object().into_iter().flat_map(|map| map.keys()) {
                paths.push(vec![name.clone(), entry.clone(), deeper.clone()]);
            }
        }
        for path in paths {
            for damage in damages() {
                let mut item = item.clone();
                let mut place = &mut item;
                let (last, before) = path.split_last().unwrap();
                for step in before {
                    place = &mut place[step.as_str()]["M"];
                }
                match &damage {
                    Some(damage) => place[last.as_str()] = damage.clone(),
                    None => drop(place.as_object_mut().unwrap().remove(last)),
                }
                all.push((path.join("."), item));
            }
        }
    }
    all
}

/// Returns whether an entry may be missing or another one if this attribute is damaged.
fn may_change(list: &str, entry: &str, [pk, sk]: [&str; 2], attribute: &str) -> bool {
    let words: Vec<_> = entry.split(' ').collect();
    let of_bucket = |of: &str, on: &str| pk.starts_with(&format!("default/BUCKET#{of}#{on}#"));
    match list {
        "buckets of an entity" | "buckets of a resource" => of_bucket(words[0], words[1]),
        "leases" | "leases of shards" => {
            let holder = if list == "leases" { "e-1" } else { "e-4" };
            let is_its_shard = pk == format!("default/BUCKET#{holder}#gpt-4#{}", words[0]);
            let is_all = attribute == "h";
            is_its_shard && (is_all || attribute.starts_with(&format!("h.{}", words[1])))
        }
        "entities" | "children" | "namespaces" => false,
        list if list.starts_with("limits") => sk.starts_with("#CONFIG"),
        list if list.starts_with("audit") => sk.starts_with("#AUDIT"),
        _ => {
            let is_its_snapshot = pk == format!("default/ENTITY#{}", words[0])
                && sk.starts_with(&format!("#USAGE#{}#", words[1]));
            of_bucket(words[0], words[1]) || is_its_snapshot
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_item_hides_no_other_whatever_is_wrong_with_it() {
    let (fleet, now) = world().await;
    let all = [Kind::Usage, Kind::OfResource, Kind::Config, Kind::Audit, Kind::Entity];
    let whole = lists(&fleet.limiter().await, now, &all).await;
    for (list, listed) in &whole {
        assert!(!listed.entries.is_empty(), "{list}");
        assert!(listed.unreadable.is_empty(), "{list}");
    }
    let (mut seen, mut cases, mut hours) = (BTreeSet::new(), 0, BTreeSet::new());
    for item in fleet.dynamo.items() {
        let key = ["PK", "SK"].map(|name| item[name]["S"].as_str().unwrap().to_owned());
        let [pk, sk] = key.each_ref().map(String::as_str);
        let Some(kind) = kind(pk, sk, &mut hours) else {
            continue;
        };
        let damages = damaged(&item);
        for (number, (attribute, damaged)) in damages.into_iter().enumerate() {
            fleet.dynamo.put(&damaged);
            cases += 1;
            let kinds = match (kind, number % DAMAGES) {
                (Kind::Usage, 0) => &[Kind::Usage, Kind::OfResource][..],
                (kind, _) => &[kind],
            };
            let found = lists(&fleet.limiter().await, now, kinds).await;
            for (list, after) in &found {
                let before = &whole[list];
                let case = format!("{list}: {pk} {sk} {attribute} {damaged}");
                let is_unreadable = !after.unreadable.is_empty();
                if is_unreadable {
                    let only = BTreeSet::from([format!("{pk} {sk}")]);
                    assert_eq!(after.unreadable, only, "{case}");
                    seen.insert(*list);
                }
                let mut lost = 0;
                for (name, entry) in &before.entries {
                    let is_same = after.entries.get(name) == Some(entry);
                    let may_change = may_change(list, name, [pk, sk], &attribute);
                    assert!(is_same || may_change, "{case}: {name}");
                    lost += usize::from(!after.entries.contains_key(name));
                }
                let of_many = list.starts_with("usage") || list.starts_with("leases");
                assert!(lost <= 1 || of_many, "{case}: {lost} are lost");
            }
        }
        fleet.dynamo.put(&item);
    }
    assert!(cases > 500, "{cases}");
    let with_items: BTreeSet<_> = whole.keys().copied().collect();
    let by_key_alone = ["entities", "children", "namespaces"];
    let expected: BTreeSet<_> =
        with_items.into_iter().filter(|list| !by_key_alone.contains(list)).collect();
    assert_eq!(seen, expected, "each list has met one");
    assert_eq!(lists(&fleet.limiter().await, now, &all).await, whole);
}

/// A tenant can give its items any key of an index.
#[tokio::test(start_paused = true)]
async fn items_of_others_in_an_index_hide_nothing() {
    let (fleet, now) = world().await;
    let all = [Kind::Usage, Kind::OfResource, Kind::Entity];
    let whole = lists(&fleet.limiter().await, now, &all).await;
    for number in 0..250 {
        for (at, pk) in ["other/BUCKET#e-1#zzz#0", "default/NONE", "default/BUCKET#e-9#zzz#0"]
            .into_iter()
            .enumerate()
        {
            // `!` sorts before every name.
            fleet.dynamo.put(&json!({
                "PK": {"S": format!("{pk}{number}")}, "SK": {"S": format!("#STATE{at}")},
                "GSI2PK": {"S": "default/RESOURCE#gpt-4"}, "GSI2SK": {"S": format!("BUCKET#!{number}#0")},
                "GSI3PK": {"S": "default/ENTITY#e-1"}, "GSI3SK": {"S": format!("BUCKET#!{number}#0")},
            }));
        }
    }
    let found = lists(&fleet.limiter().await, now, &all).await;
    for (list, before) in whole {
        for (name, entry) in before.entries {
            assert_eq!(found[list].entries.get(&name), Some(&entry), "{list}");
        }
    }
}

//! Every configuration change leaves an event with its author.

use crate::fixtures::fleet;
use crate::fixtures::fleet::{Fleet, pass, secs};
use crate::fixtures::stored::{
    child, configure, entity, of_entity, of_resource, on, resource, rpm,
};
use serde_json::json;
use weirgate::{
    AuditChange, AuditEvent, AuditSubject, Config, ConfigLevel, ConfigStatus, Entity, PageToken,
};
use weirgate_tests::stored::{delete_config, set_config, set_entity};

/// Whose change it was, and what came of it.
fn told(events: Vec<AuditEvent>) -> Vec<(String, AuditChange)> {
    events.into_iter().map(|event| (event.principal, event.change)).collect()
}

#[tokio::test(start_paused = true)]
async fn every_change_is_told_the_newest_first() {
    let fleet = Fleet::new().await;
    let ann = fleet.limiter_with(|builder| builder.principal("ann")).await;
    let bob = fleet.limiter_with(|builder| builder.owner("bob")).await;
    let anonymous = fleet.limiter_with(|builder| builder.owner("")).await;
    let own = on("e-1", "gpt-4");
    let (five, off) =
        (Config::of([rpm(5)]), Config { status: ConfigStatus::Disabled, ..Config::default() });
    set_config(&ann, &own, &five).await;
    set_config(&ann, &of_entity("e-1"), &five).await;
    pass(secs(1)).await;
    set_config(&bob, &own, &off).await;
    pass(secs(1)).await;
    set_entity(&anonymous, &child("e-1", "team")).await;
    pass(secs(1)).await;
    set_entity(&ann, &Entity { cascades: false, ..child("e-1", "team") }).await;
    ann.admin().delete_entity(&entity("e-1")).await.unwrap();
    delete_config(&ann, &own).await;
    set_config(&bob, &of_resource("gpt-4"), &five).await;
    set_config(&bob, &ConfigLevel::System, &off).await;

    let of_config = |level: &ConfigLevel, before: Option<&Config>, after: Option<&Config>| {
        AuditChange::Config { level: level.clone(), before: before.cloned(), after: after.cloned() }
    };
    let of_id = |before: Option<Entity>, after: Option<Entity>| AuditChange::Entity {
        id: entity("e-1"),
        before,
        after,
    };
    let (cascading, alone) =
        (child("e-1", "team"), Entity { cascades: false, ..child("e-1", "team") });
    let events = ann.admin().audit(&AuditSubject::Entity(entity("e-1")), None).await.unwrap();
    assert_eq!(events.items[0].id.at(), fleet.now());
    assert_eq!(events.items.last().unwrap().id.at(), fleet::START);
    let expected = [
        ("ann", of_config(&own, Some(&off), None)),
        ("ann", of_id(Some(alone.clone()), None)),
        ("ann", of_id(Some(cascading.clone()), Some(alone))),
        ("unknown", of_id(None, Some(cascading))),
        ("bob", of_config(&own, Some(&five), Some(&off))),
        ("ann", of_config(&of_entity("e-1"), None, Some(&five))),
        ("ann", of_config(&own, None, Some(&five))),
    ];
    assert_eq!(told(events.items), expected.map(|(by, change)| (by.to_owned(), change)));

    let events =
        bob.admin().audit(&AuditSubject::Resource(resource("gpt-4")), None).await.unwrap().items;
    let level = of_resource("gpt-4");
    assert_eq!(told(events), [("bob".to_owned(), of_config(&level, None, Some(&five)))]);
    let of_system = bob.admin().audit(&AuditSubject::System, None).await.unwrap().items;
    assert_eq!(
        told(of_system),
        [("bob".to_owned(), of_config(&ConfigLevel::System, None, Some(&off)))]
    );
}

#[tokio::test(start_paused = true)]
async fn events_come_in_pages() {
    let (_fleet, [limiter]) = Fleet::of().await;
    for rate in 1..=230 {
        configure(&limiter, &ConfigLevel::System, [rpm(rate)]).await;
    }
    let (mut rates, mut pages, mut next) = (vec![], 0, None);
    loop {
        let page = limiter.admin().audit(&AuditSubject::System, next.as_ref()).await.unwrap();
        for (_, change) in told(page.items) {
            let AuditChange::Config { after: Some(after), .. } = change else {
                panic!("{change:?}")
            };
            rates.push(after.limits[0].rule().capacity.whole_tokens());
        }
        pages += 1;
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!((rates, pages), ((1..=230).rev().collect::<Vec<_>>(), 3));
}

#[tokio::test(start_paused = true)]
async fn an_event_says_when_it_may_be_deleted() {
    let fleet = Fleet::new().await;
    let day = 86_400;
    for (at, kept, days) in
        [(1, None, Some(90)), (2, Some(Some(secs(7 * 86_400))), Some(7)), (3, Some(None), None)]
    {
        let builder = fleet.builder().await;
        let builder = if let Some(kept) = kept { builder.audit_retention(kept) } else { builder };
        let limiter = builder.build().await.unwrap();
        pass(secs(1)).await;
        configure(&limiter, &ConfigLevel::System, [rpm(at)]).await;
        let id = limiter.admin().audit(&AuditSubject::System, None).await.unwrap().items[0].id;
        let item = fleet.dynamo.item("default/AUDIT##SYSTEM", &format!("#AUDIT#{id}"));
        let ttl = item.get("ttl").map(|ttl| ttl["N"].as_str().unwrap().parse());
        let expected = days.map(|days| Ok(fleet.now().0 / 1000 + days * day));
        assert_eq!(ttl, expected);
        assert_eq!(item["at"]["N"].as_str().unwrap(), fleet.now().0.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn a_principal_that_is_no_name_is_refused() {
    let fleet = Fleet::new().await;
    for name in ["", &"x".repeat(257)] {
        let error = fleet.builder().await.principal(name).build().await.unwrap_err();
        assert!(error.to_string().contains("principal"), "{error}");
    }
}

/// Also where other namespaces' items name the parts of the list.
#[tokio::test(start_paused = true)]
async fn all_changes_of_a_namespace_are_listed_the_newest_first_over_all_pages() {
    let (fleet, [limiter]) = Fleet::of().await;
    let other = fleet.limiter_with(|builder| builder.namespace("other")).await;
    let names: Vec<_> = (0..7).map(|at| format!("e-{at}")).collect();
    for change in 0..230_i64 {
        let at = usize::try_from(change).unwrap() % names.len();
        configure(&limiter, &of_entity(&names[at]), [rpm(change + 1)]).await;
        configure(&other, &of_entity("theirs"), [rpm(change + 1)]).await;
        pass(std::time::Duration::from_millis(2)).await;
    }
    for part in 0..16 {
        for at in 0..110 {
            fleet.dynamo.put(&json!({
                "PK": {"S": format!("other/AUDIT#x{part}x{at}")}, "SK": {"S": "#AUDIT#x"},
                "GSI3PK": {"S": format!("default/AUDITS#{part:02}")},
                "GSI3SK": {"S": format!("AUDIT#7ZZZ{at:03}")},
            }));
        }
    }
    let (mut all, mut after, mut pages) = (vec![], None::<PageToken>, 0);
    loop {
        let page = limiter.admin().audit_all(after.as_ref()).await.unwrap();
        assert!(page.unreadable.is_empty() && page.items.len() <= 100);
        all.extend(page.items);
        pages += 1;
        let Some(next) = page.next else { break };
        after = Some(next.to_string().parse().unwrap());
    }
    let mut expected = vec![];
    for name in &names {
        let subject = AuditSubject::Entity(entity(name));
        expected.extend(limiter.admin().audit(&subject, None).await.unwrap().items);
    }
    expected.sort_by_key(|event| std::cmp::Reverse(event.id));
    assert_eq!(all.len(), 230);
    assert_eq!(all, expected);
    assert!(pages > 3, "the others' entries take pages too: {pages}");
    let refused = other.admin().audit_all(after.as_ref()).await;
    assert!(refused.is_err(), "a token of another list");
}

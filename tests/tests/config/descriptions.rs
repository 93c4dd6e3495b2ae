//! Display names and labels of entities.

use std::collections::BTreeMap;
use weirgate_tests::stored::set_entity;

use serde_json::json;
use weirgate::{AuditChange, AuditSubject, EntityDescription, Error};

use crate::fixtures::fleet::{Fleet, millis};
use crate::fixtures::stored::{child, entity};

fn acme() -> EntityDescription {
    let named = EntityDescription::default().named("Acme Inc.").unwrap();
    named.labelled("plan", "pro").unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_description_and_the_parent_do_not_change_each_other() {
    let (fleet, [limiter]) = Fleet::of().await;
    let id = entity("e-1");
    let absent = limiter.admin().set_entity_description(&id, &acme()).await.unwrap_err();
    assert!(matches!(absent, Error::Invalid(_)), "{absent}");
    assert!(absent.to_string().contains("set it first"), "{absent}");
    assert_eq!(limiter.admin().entity_description(&id).await.unwrap(), None);

    set_entity(&limiter, &child("e-1", "team")).await;
    let none = limiter.admin().entity_description(&id).await.unwrap();
    assert_eq!(none, Some(EntityDescription::default()));
    limiter.admin().set_entity_description(&id, &acme()).await.unwrap();
    let found = limiter.admin().entity(&id).await.unwrap().unwrap();
    assert_eq!(found, child("e-1", "team"));
    set_entity(&limiter, &child("e-1", "other")).await;
    let kept = limiter.admin().entity_description(&id).await.unwrap();
    assert_eq!(kept, Some(acme()));

    let less = acme().unnamed().without_label("plan").labelled("a", "").unwrap();
    limiter.admin().set_entity_description(&id, &less).await.unwrap();
    assert_eq!(limiter.admin().entity_description(&id).await.unwrap(), Some(less.clone()));
    let of = AuditSubject::Entity(id.clone());
    let newest = limiter.admin().audit(&of, None).await.unwrap().items.remove(0);
    let change =
        AuditChange::EntityDescription { id: id.clone(), before: acme(), after: less.clone() };
    assert_eq!(newest.change, change);

    let before = fleet.dynamo.items();
    limiter.admin().set_entity_description(&id, &less).await.unwrap();
    assert!(fleet.dynamo.items() == before, "without a change nothing is written");
    limiter.admin().delete_entity(&id).await.unwrap();
    assert_eq!(limiter.admin().entity_description(&id).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_description_is_named_and_stops_no_acquire() {
    let (fleet, [limiter]) = Fleet::of().await;
    let id = entity("e-1");
    set_entity(&limiter, &child("e-1", "team")).await;
    limiter.admin().set_entity_description(&id, &acme()).await.unwrap();
    let mut stored = fleet.dynamo.items().into_iter();
    let mut stored = stored.find(|item| item["SK"]["S"] == "#META").unwrap();
    let damages = BTreeMap::from([
        ("display_name", json!({"N": "1"})),
        ("labels", json!({"M": {"plan": {"N": "1"}}})),
        ("labels ", json!({"S": "x"})),
    ]);
    for (name, damage) in damages {
        let good = stored.clone();
        stored[name.trim()] = damage;
        fleet.dynamo.put(&stored);
        let error = limiter.admin().entity_description(&id).await.unwrap_err();
        assert!(matches!(error, Error::UnreadableItem { .. }), "{error}");
        assert!(error.to_string().contains(name.trim()), "{error}");
        let other = fleet.limiter().await;
        assert!(other.admin().entity(&id).await.unwrap().is_some());
        let limits = [crate::fixtures::stored::rpm(60)];
        let taken = other.acquire("e-1", "gpt-4").limits(&limits).take("rpm", 1);
        assert!(taken.send().await.unwrap().is_granted());
        stored = good;
    }
}

/// Each adds a label to what it has read.
#[tokio::test(start_paused = true)]
async fn labels_that_operators_set_at_once_are_all_kept() {
    for latency_ms in [0, 3] {
        let fleet = Fleet::slow(millis(latency_ms)).await;
        let id = entity("e-1");
        let operator = fleet.limiter().await;
        set_entity(&operator, &child("e-1", "team")).await;
        let mut edits = tokio::task::JoinSet::new();
        for at in 0..6 {
            let (limiter, id) = (fleet.limiter().await, id.clone());
            edits.spawn(async move {
                let edit = |before: EntityDescription| {
                    Ok::<_, Error>(before.labelled(format!("l{at}"), "x").unwrap())
                };
                limiter.admin().edit_entity_description(&id, edit).await.unwrap();
            });
        }
        // A change of the parent at the same time, as it was read.
        let (before, next) = (child("e-1", "team"), child("e-1", "other"));
        let moved = operator.admin().replace_entity(&id, Some(&before), Some(&next));
        assert!(moved.await.unwrap());
        edits.join_all().await;
        let found = operator.admin().entity_description(&id).await.unwrap().unwrap();
        assert_eq!(found.labels().len(), 6, "{found:?}");
        // Of two changes of what both have read, one is made.
        let other = child("e-1", "third");
        let lost = operator.admin().replace_entity(&id, Some(&before), Some(&other));
        assert!(!lost.await.unwrap());
        assert_eq!(operator.admin().entity(&id).await.unwrap(), Some(next));
    }
}

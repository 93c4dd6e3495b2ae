//! No entity becomes its own ancestor, with any concurrent changes of parents.

use std::collections::BTreeSet;

use crate::fixtures::fleet::{Fleet, config, millis, runtime};
use crate::fixtures::stored::{child, entity};
use proptest::prelude::*;
use serde_json::json;
use weirgate::{Entity, EntityId, Error, RateLimiter};

fn is_circle(error: &Error) -> bool {
    matches!(error, Error::Invalid(text) if text.contains("its own ancestor"))
}

#[tokio::test(start_paused = true)]
async fn a_circle_is_refused_by_the_names_that_make_it() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    for parent in ["a", "b", "c"] {
        limiter.set_entity(&child("d", "c")).await.unwrap();
        limiter.set_entity(&child("c", "b")).await.unwrap();
        limiter.set_entity(&child("b", "a")).await.unwrap();
        let error = limiter.set_entity(&child(parent, "d")).await.unwrap_err();
        assert!(
            is_circle(&error) && error.to_string().contains(&format!("entity {parent} ")),
            "{error}"
        );
    }
    assert!(is_circle(
        &limiter.set_entity(&child("e", "e")).await.unwrap_err()
    ));
    assert_eq!(limiter.entity(&entity("a")).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn of_two_changes_that_close_a_circle_together_one_is_refused() {
    for latency_ms in [0, 3] {
        let fleet = Fleet::slow(millis(latency_ms)).await;
        let (one, other) = (fleet.limiter().await, fleet.limiter().await);
        one.set_entity(&child("c", "a")).await.unwrap();
        let (up, down) = (child("a", "b"), child("b", "c"));
        let (up, down) = tokio::join!(one.set_entity(&up), other.set_entity(&down));
        let refused: Vec<_> = [up, down].into_iter().filter_map(Result::err).collect();
        assert!(
            matches!(&refused[..], [error] if is_circle(error)),
            "{refused:?}"
        );
    }
}

/// As many ancestors as one transaction can check.
#[tokio::test(start_paused = true)]
async fn an_entity_has_97_ancestors_at_most() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    for at in 0..98 {
        let parent = json!({"S": format!("e-{}", at + 1)});
        let key = json!({"S": format!("default/ENTITY#e-{at}")});
        let (sk, op, cascade) = (
            json!({"S": "#META"}),
            json!({"S": "0"}),
            json!({"BOOL": true}),
        );
        fleet
            .dynamo
            .put(&json!({"PK": key, "SK": sk, "parent_id": parent, "op": op, "cascade": cascade}));
    }
    // e-98 is the root, so e-2 has 96 ancestors and is the 97th.
    limiter.set_entity(&child("new", "e-2")).await.unwrap();
    let error = limiter
        .set_entity(&child("newer", "e-1"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("97") && text.contains("newer")),
        "{error}"
    );
    // A change that leaves the parent as it is needs no check.
    limiter
        .set_entity(&Entity {
            cascades: false,
            ..child("e-0", "e-1")
        })
        .await
        .unwrap();
}

/// An entity, and its new parent or none; or nothing, if it is deleted.
type Change = (usize, Option<Option<usize>>);

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn change() -> impl Strategy<Value = Change> {
    let parent = prop::option::weighted(0.9, prop::option::weighted(0.9, 0..NAMES.len()));
    (0..NAMES.len(), parent)
}

async fn make(limiter: &RateLimiter, changes: Vec<Change>) {
    for (at, parent) in changes {
        let id = entity(NAMES[at]);
        let made = match parent {
            None => limiter.delete_entity(&id).await.map(|_| ()),
            Some(parent) => {
                let parent = parent.map(|at| entity(NAMES[at]));
                limiter
                    .set_entity(&Entity {
                        id,
                        parent,
                        cascades: true,
                    })
                    .await
            }
        };
        assert!(made.as_ref().err().is_none_or(is_circle), "{made:?}");
    }
}

async fn ancestors(limiter: &RateLimiter, of: EntityId) -> Result<(), TestCaseError> {
    let (mut met, mut next) = (BTreeSet::new(), Some(of.clone()));
    while let Some(id) = next {
        prop_assert!(met.insert(id.clone()), "{of} is above itself, by {id}");
        next = limiter
            .entity(&id)
            .await
            .unwrap()
            .and_then(|entity| entity.parent);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn two_processes_that_change_parents_never_close_a_circle(
        changes in prop::collection::vec(prop::collection::vec(change(), 1..12), 2..4), latency_ms in 0..3_u64,
    ) {
        runtime().block_on(async {
            let fleet = Fleet::slow(millis(latency_ms)).await;
            let mut tasks = tokio::task::JoinSet::new();
            for changes in changes {
                let limiter = fleet.limiter().await;
                tasks.spawn(async move { make(&limiter, changes).await });
            }
            tasks.join_all().await;
            let limiter = fleet.limiter().await;
            for name in NAMES {
                ancestors(&limiter, entity(name)).await?;
            }
            Ok::<_, TestCaseError>(())
        })?;
    }
}

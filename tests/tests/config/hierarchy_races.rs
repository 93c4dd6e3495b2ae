//! No entity becomes its own ancestor, with any concurrent changes of parents.

use std::collections::BTreeSet;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::{set_config, set_entity};

use crate::fixtures::fleet::{Fleet, config, millis, pass, runtime, secs};
use crate::fixtures::stored::{child, entity, rpm, take_of};
use proptest::prelude::*;
use serde_json::json;
use weirgate::{Entity, EntityId, Error, RateLimiter};

fn is_circle(error: &Error) -> bool {
    matches!(error, Error::Invalid(text) if text.contains("its own ancestor"))
}

#[tokio::test(start_paused = true)]
async fn a_circle_is_refused_by_the_names_that_make_it() {
    let (_fleet, [limiter]) = Fleet::of().await;
    for parent in ["a", "b", "c"] {
        set_entity(&limiter, &child("d", "c")).await;
        set_entity(&limiter, &child("c", "b")).await;
        set_entity(&limiter, &child("b", "a")).await;
        let error = limiter.admin().set_entity(&child(parent, "d")).await.unwrap_err();
        assert!(
            is_circle(&error) && error.to_string().contains(&format!("entity {parent} ")),
            "{error}"
        );
    }
    assert!(is_circle(&limiter.admin().set_entity(&child("e", "e")).await.unwrap_err()));
    assert_eq!(limiter.admin().entity(&entity("a")).await.unwrap(), None);
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
            None => limiter.admin().delete_entity(&id).await.map(|_| ()),
            Some(parent) => {
                let parent = parent.map(|at| entity(NAMES[at]));
                limiter.admin().set_entity(&Entity { id, parent, cascades: true, plan: None }).await
            }
        };
        assert!(made.as_ref().err().is_none_or(is_circle), "{made:?}");
    }
}

async fn ancestors(limiter: &RateLimiter, of: EntityId) -> Result<(), TestCaseError> {
    let (mut met, mut next) = (BTreeSet::new(), Some(of.clone()));
    while let Some(id) = next {
        prop_assert!(met.insert(id.clone()), "{of} is above itself, by {id}");
        next = limiter.admin().entity(&id).await.unwrap().and_then(|entity| entity.parent);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(64))]

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

/// A link of a chain, as `set_entity` writes it.
fn put_child(fleet: &Fleet, id: &str, parent: &str) {
    let text = |text: String| json!({"S": text});
    fleet.dynamo.put(&json!({
        "PK": text(format!("default/ENTITY#{id}")),
        "SK": text("#META".to_owned()),
        "parent_id": text(parent.to_owned()),
        "op": text("0".to_owned()),
        "cascade": {"BOOL": true},
        "GSI1PK": text(format!("default/PARENT#{parent}")),
        "GSI1SK": text(format!("CHILD#{id}")),
    }));
}

/// A chain of so many entities, the root first.
fn put_chain(fleet: &Fleet, name: &str, entities: usize) {
    for at in 1..entities {
        put_child(fleet, &format!("{name}-{at}"), &format!("{name}-{}", at - 1));
    }
}

/// At most what one grant takes from, and its token can restore.
#[tokio::test(start_paused = true)]
async fn chains_that_are_joined_are_no_longer_than_an_acquire_takes() {
    for (upper, lower) in
        [(60, 60), (48, 48), (48, 47), (94, 1), (95, 1), (1, 94), (1, 95), (2, 94)]
    {
        let (fleet, [limiter]) = Fleet::of().await;
        put_chain(&fleet, "u", upper);
        put_chain(&fleet, "l", lower);
        let joint = child("l-0", &format!("u-{}", upper - 1));
        let joined = limiter.admin().set_entity(&joint).await;
        let ordered = limiter.admin().order_entities(std::slice::from_ref(&joint)).await;
        let case = format!("{upper} above {lower}");
        assert_eq!(joined.is_ok(), upper + lower <= 95, "{case}: {joined:?}");
        assert_eq!(ordered.is_ok(), joined.is_ok(), "{case}: {ordered:?}");
        if let Err(error) = &joined {
            assert!(error.to_string().contains("94"), "{case}: {error}");
            let found = limiter.admin().entity(&entity("l-0")).await.unwrap();
            assert_eq!(found, None, "{case}");
            continue;
        }
        let limits = weirgate::Config::of([rpm(60)]);
        let level = weirgate::ConfigLevel::System;
        set_config(&limiter, &level, &limits).await;
        let lowest = format!("l-{}", lower - 1);
        let acquire = limiter.acquire(&lowest, "gpt-4").take("rpm", 1);
        let grant = taken(acquire).await;
        let token = grant.into_token();
        let _ = limiter.restore_grant(&token).unwrap().release().await.unwrap();
    }
}

/// A forest of these entities: the parent of each, which comes before it in `order`.
fn forest() -> impl Strategy<Value = Vec<Option<usize>>> {
    let order = Just((0..NAMES.len()).collect::<Vec<_>>()).prop_shuffle();
    let parents = prop::collection::vec(
        prop::option::weighted(0.8, any::<prop::sample::Index>()),
        NAMES.len(),
    );
    (order, parents).prop_map(|(order, parents)| {
        let mut forest = vec![None; NAMES.len()];
        for (at, parent) in parents.into_iter().enumerate().skip(1) {
            forest[order[at]] = parent.map(|of| order[of.index(at)]);
        }
        forest
    })
}

fn entities(forest: &[Option<usize>]) -> Vec<Entity> {
    let entity = |(at, parent): (usize, &Option<usize>)| Entity {
        id: entity(NAMES[at]),
        parent: parent.map(|at| entity(NAMES[at])),
        cascades: parent.is_some(),
        plan: None,
    };
    forest.iter().enumerate().map(entity).collect()
}

proptest! {
    #![proptest_config(config(48))]

    /// Also if a step is the last one, and the rest is planned again.
    #[test]
    fn any_forest_becomes_any_other_without_a_cycle_on_the_way(
        from in forest(), to in forest(), stop_after in 0..6_usize,
    ) {
        runtime().block_on(async {
            let (_fleet, [limiter]) = Fleet::of().await;
            let (from, to) = (entities(&from), entities(&to));
            for steps in [usize::MAX, stop_after, usize::MAX] {
                let target = if steps == usize::MAX && limiter.admin().entity(&from[0].id).await.unwrap().is_none() { &from } else { &to };
                for next in limiter.admin().order_entities(target).await.unwrap().iter().take(steps) {
                    let before = limiter.admin().entity(&next.id).await.unwrap();
                    prop_assert!(limiter.admin().replace_entity(&next.id, before.as_ref(), Some(next)).await.unwrap());
                    for name in NAMES {
                        ancestors(&limiter, entity(name)).await?;
                    }
                }
            }
            for expected in &to {
                let found = limiter.admin().entity(&expected.id).await.unwrap();
                prop_assert_eq!(found.as_ref(), Some(expected));
            }
            Ok::<_, TestCaseError>(())
        })?;
    }

    /// The process has items of different ages, which together show a cycle that never was.
    #[test]
    fn no_valid_change_of_parents_fails_a_request(
        forests in prop::collection::vec((forest(), 0..NAMES.len(), 0..70_u64), 2..10),
    ) {
        runtime().block_on(async {
            let (_fleet, [operator, caller]) = Fleet::of().await;
            let limits = weirgate::Config::of([rpm(1_000)]);
            set_config(&operator, &weirgate::ConfigLevel::System, &limits).await;
            for (forest, at, seconds) in forests {
                for next in operator.admin().order_entities(&entities(&forest)).await.unwrap() {
                    set_entity(&operator, &next).await;
                }
                for at in [at, (at + 1) % NAMES.len()] {
                    let taken = take_of(&caller, [NAMES[at], "gpt-4"], "rpm", 1).await;
                    prop_assert!(taken.as_ref().is_ok_and(weirgate::Decision::is_granted), "{:?}", taken);
                    pass(secs(seconds / 2)).await;
                }
            }
            Ok::<_, TestCaseError>(())
        })?;
    }
}

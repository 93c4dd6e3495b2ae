//! Entities that are parts of others: what they take is taken of those too.

use crate::fixtures::fleet::{Fleet, secs, tokens};
use crate::fixtures::stored::{child, configure, entity, of_entity, rpm, take, take_of};
use serde_json::json;
use weirgate::{Config, ConfigStatus, Decision, Entity, Error, Limit, PageToken, RateLimiter};
use weirgate_shared::BucketKey;
use weirgate_testkit::leased::load;
use weirgate_tests::assert_has;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::{delete_config, set_config, set_entity};

/// What is left of a limit of an entity on `gpt-4`, in tokens; `None` if it has no bucket, or not
/// this limit.
async fn left(fleet: &Fleet, name: &str, limit: &str) -> Option<i64> {
    let key = BucketKey::parse(&format!("default/BUCKET#{name}#gpt-4#0")).unwrap();
    let bucket = load(&fleet.dynamo.table().await, &key).await?;
    let state = bucket.limits.get(limit)?;
    Some(bucket.balance(state, fleet.now()).whole_tokens())
}

/// A process where `e-1` is a part of `team`, and that of `company`, each with its own limits.
async fn company(fleet: &Fleet) -> RateLimiter {
    let limiter = fleet.limiter().await;
    for (name, rate) in [("e-1", 10), ("team", 15), ("company", 20)] {
        configure(&limiter, &of_entity(name), [rpm(rate)]).await;
    }
    set_entity(&limiter, &child("e-1", "team")).await;
    set_entity(&limiter, &child("team", "company")).await;
    limiter
}

async fn all_left(fleet: &Fleet) -> [Option<i64>; 3] {
    [
        left(fleet, "e-1", "rpm").await,
        left(fleet, "team", "rpm").await,
        left(fleet, "company", "rpm").await,
    ]
}

#[tokio::test(start_paused = true)]
async fn a_take_is_made_from_every_ancestor_or_from_none() {
    let fleet = Fleet::new().await;
    let limiter = company(&fleet).await;
    let grant = take(&limiter, 4).await.unwrap().granted().unwrap();
    assert_eq!(all_left(&fleet).await, [Some(6), Some(11), Some(16)]);
    assert_eq!(grant.limits().len(), 3);
    // The team runs dry through another of its parts.
    set_entity(&limiter, &child("e-2", "team")).await;
    configure(&limiter, &of_entity("e-2"), [rpm(99)]).await;
    assert!(take_of(&limiter, ["e-2", "gpt-4"], "rpm", 11).await.unwrap().is_granted());
    let Decision::Denied(denied) = take(&limiter, 1).await.unwrap() else {
        panic!("the team has nothing left")
    };
    let short: Vec<_> = denied.short().map(|status| status.entity.as_str()).collect();
    assert_eq!((short, denied.retry_after), (vec!["team"], Some(secs(4))));
    assert_eq!(all_left(&fleet).await, [Some(6), Some(0), Some(5)]);
    let _ = grant.roll_back().await.unwrap();
    assert_eq!(all_left(&fleet).await, [Some(10), Some(4), Some(9)]);
}

/// The team has its own limits, and the company those of the call.
#[tokio::test(start_paused = true)]
async fn limits_of_the_call_cascade_to_ancestors_on_request() {
    let fleet = Fleet::new().await;
    let limiter = company(&fleet).await;
    let team = of_entity("company");
    assert!(limiter.admin().delete_config(&team).await.unwrap());
    let limits = [rpm(100)];
    let ask = |tokens| limiter.acquire("e-1", "gpt-4").limits(&limits).take("rpm", tokens);
    let alone = taken(ask(5)).await;
    assert_eq!(all_left(&fleet).await, [Some(95), None, None]);
    let all = taken(ask(4).cascading()).await;
    assert_eq!(all_left(&fleet).await, [Some(91), Some(11), Some(96)]);
    let Decision::Denied(denied) = ask(12).cascading().send().await.unwrap() else {
        panic!("the team has 11 left")
    };
    let short = denied.short().map(|status| status.entity.as_str());
    assert_eq!(short.collect::<Vec<_>>(), ["team"]);
    assert_eq!(all_left(&fleet).await, [Some(91), Some(11), Some(96)]);
    let _ = all.roll_back().await.unwrap();
    let _ = alone.roll_back().await.unwrap();
    assert_eq!(all_left(&fleet).await, [Some(100), Some(15), Some(100)]);
    // A disabled ancestor stops it.
    let disabled = Config { status: ConfigStatus::Disabled, ..Config::default() };
    set_config(&limiter, &team, &disabled).await;
    let decision = ask(1).cascading().send().await.unwrap();
    let Decision::Disabled(by) = decision else {
        panic!("the company is disabled, not {decision:?}")
    };
    assert_eq!(by.entity, entity("company"));
    let _ = taken(ask(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_does_not_cascade_ends_the_chain() {
    let fleet = Fleet::new().await;
    let limiter = company(&fleet).await;
    set_entity(&limiter, &Entity { cascades: false, ..child("team", "company") }).await;
    let _ = take(&limiter, 1).await.unwrap();
    assert_eq!(all_left(&fleet).await, [Some(9), Some(14), None]);
    set_entity(&limiter, &Entity { cascades: false, ..child("e-1", "team") }).await;
    let _ = take(&limiter, 1).await.unwrap();
    assert_eq!(all_left(&fleet).await, [Some(8), Some(14), None]);
    assert!(limiter.admin().delete_entity(&entity("e-1")).await.unwrap());
    assert!(!limiter.admin().delete_entity(&entity("e-1")).await.unwrap());
    assert_eq!(limiter.admin().entity(&entity("e-1")).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn an_ancestor_is_asked_for_the_limits_it_has() {
    let fleet = Fleet::new().await;
    let limiter = company(&fleet).await;
    let tpm = |rate| Limit::per_minute("tpm", rate).unwrap();
    let slots = Limit::concurrent("slots", 2).unwrap();
    set_config(&limiter, &of_entity("e-1"), &Config::of([rpm(10), tpm(90)])).await;
    // The team has no limits at all, the company only one of those that are asked and one that is
    // not.
    delete_config(&limiter, &of_entity("team")).await;
    set_config(&limiter, &of_entity("company"), &Config::of([tpm(100), slots])).await;
    let ask = || limiter.acquire("e-1", "gpt-4").take("rpm", 1).take("tpm", 30);
    let grant = taken(ask()).await;
    assert_eq!((grant.amount("rpm"), grant.lease_id()), (tokens(1), None));
    assert_eq!(left(&fleet, "company", "tpm").await, Some(70));
    assert_eq!(left(&fleet, "company", "slots").await, Some(2));
    assert_eq!(left(&fleet, "team", "tpm").await, None);
    // None of those that are asked.
    configure(&limiter, &of_entity("company"), [Limit::per_day("rpd", 1).unwrap()]).await;
    let _ = fleet.writes();
    assert!(ask().send().await.unwrap().is_granted());
    assert_eq!(fleet.writes(), 1);
}

#[tokio::test(start_paused = true)]
async fn slots_of_an_ancestor_have_a_lease_and_go_back_with_the_grant() {
    let fleet = Fleet::new().await;
    let limiter = company(&fleet).await;
    let slots = |count| Config::of([Limit::concurrent("slots", count).unwrap()]);
    for (name, count) in [("e-1", 5), ("company", 2)] {
        set_config(&limiter, &of_entity(name), &slots(count)).await;
    }
    let ask = || limiter.acquire("e-1", "gpt-4").take("slots", 2).send();
    let grant = ask().await.unwrap().granted().unwrap();
    assert!(!ask().await.unwrap().is_granted());
    assert_eq!(left(&fleet, "e-1", "slots").await, Some(3));
    assert_eq!(left(&fleet, "company", "slots").await, Some(0));
    let _ = grant.release().await.unwrap();
    assert_eq!(left(&fleet, "e-1", "slots").await, Some(5));
    assert_eq!(left(&fleet, "company", "slots").await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn the_status_of_an_ancestor_counts() {
    let fleet = Fleet::new().await;
    let limiter = company(&fleet).await;
    let set = async |name: &str, status| {
        let config = Config { class: None, limits: vec![rpm(20)], status, is_shadow: false };
        set_config(&limiter, &of_entity(name), &config).await;
    };
    set("company", ConfigStatus::Disabled).await;
    let Decision::Disabled(disabled) = take(&limiter, 1).await.unwrap() else {
        panic!("the company is disabled")
    };
    assert_has!(disabled, entity: entity("company"); "where it is to be enabled again");
    set("company", ConfigStatus::Unlimited).await;
    let _ = take(&limiter, 1).await.unwrap();
    assert_eq!(all_left(&fleet).await, [Some(9), Some(14), None]);
    // An unlimited entity is still limited by its ancestors.
    set("e-1", ConfigStatus::Unlimited).await;
    let _ = take(&limiter, 14).await.unwrap();
    assert_eq!(all_left(&fleet).await, [Some(9), Some(0), None]);
    assert!(matches!(take(&limiter, 1).await.unwrap(), Decision::Denied(_)));
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_one_read_for_each_of_it_and_then_none() {
    let fleet = Fleet::new().await;
    company(&fleet).await;
    let limiter = fleet.limiter().await;
    let _ = fleet.dynamo.take_operations();
    for (reads, writes) in [(3, 3), (0, 3), (0, 3)] {
        assert!(take(&limiter, 1).await.unwrap().is_granted());
        let operations = fleet.dynamo.take_operations();
        let sent = |operation: &str| operations.get(operation).copied().unwrap_or_default();
        assert_eq!(sent("BatchGetItem"), reads, "{operations:?}");
        assert_eq!(sent("UpdateItem"), writes, "{operations:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn children_are_listed_in_pages() {
    let (_fleet, [limiter]) = Fleet::of().await;
    for at in 0..120 {
        set_entity(&limiter, &child(&format!("e-{at:03}"), "team")).await;
    }
    set_entity(&limiter, &child("e-000", "other")).await;
    limiter.admin().delete_entity(&entity("e-001")).await.unwrap();
    set_entity(&limiter, &Entity { parent: None, ..child("e-002", "team") }).await;
    let (mut all, mut next): (Vec<_>, Option<PageToken>) = (vec![], None);
    loop {
        let page = limiter.admin().children(&entity("team"), next.as_ref()).await.unwrap();
        all.extend(page.items);
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(all, (3..120).map(|at| entity(&format!("e-{at:03}"))).collect::<Vec<_>>());
    assert_eq!(
        limiter.admin().children(&entity("other"), None).await.unwrap().items,
        [entity("e-000")]
    );
}

/// Only manual writes make a cycle; then no acquire may loop indefinitely, nor read without a bound.
#[tokio::test(start_paused = true)]
async fn a_manually_written_cycle_of_parents_is_an_error() {
    let fleet = Fleet::new().await;
    let limiter = company(&fleet).await;
    let mut item = fleet.dynamo.item("default/ENTITY#team", "#META");
    item["parent_id"] = json!({"S": "e-1"});
    fleet.dynamo.put(&item);
    let other = fleet.limiter().await;
    let _ = fleet.dynamo.take_requests();
    let error = take(&other, 1).await.unwrap_err();
    let is_circle = matches!(&error, Error::Invalid(text) if text.contains("its own ancestor"));
    assert!(is_circle, "{error}");
    assert!(fleet.dynamo.take_requests() <= 16);
    let error = limiter.admin().set_entity(&child("e-3", "team")).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    set_entity(&limiter, &child("team", "company")).await;
    assert!(take(&limiter, 1).await.unwrap().is_granted());
}

//! Buckets on limits that are not their own end when they are unused, by DynamoDB's time to live.

use weirgate::{ConfigLevel, Limit, Settlement};
use weirgate_shared::EpochSeconds;
use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::taken;
use weirgate_tests::fleet::{Fleet, PK, START, ask, granted, pass, secs};
use weirgate_tests::stored::delete_config;
use weirgate_tests::stored::{configure, configured, entity, resource, rpm, take};

const HOUR: u64 = 3_600;

/// After `START`, in hours.
async fn ttl_hours(fleet: &Fleet) -> Option<i64> {
    let seconds = |EpochSeconds(ttl)| ttl - START.0 / 1000;
    fleet.bucket().await.ttl.map(|ttl| seconds(ttl) / 3_600)
}

/// One level, and whether buckets by its limits end.
fn levels() -> [(ConfigLevel, bool); 4] {
    [
        (ConfigLevel::System, true),
        (ConfigLevel::Resource(resource("gpt-4")), true),
        (ConfigLevel::Entity(entity("e-1")), true),
        (ConfigLevel::EntityResource(entity("e-1"), resource("gpt-4")), false),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_bucket_ends_unless_its_limits_are_its_own() {
    for (level, ends) in levels() {
        let fleet = Fleet::new().await;
        let limiter = configured(&fleet, &level, [rpm(60)]).await;
        assert!(take(&limiter, 1).await.unwrap().is_granted());
        assert_eq!(ttl_hours(&fleet).await.is_some(), ends, "{level}");
    }
    let fleet = Fleet::new().await;
    let _ = granted(&fleet.limiter().await, &[rpm(60)], &[("rpm", 1)]).await;
    let hours = ttl_hours(&fleet).await.unwrap();
    assert!(
        (25..=32).contains(&hours),
        "a day after it is full, and an hour for clocks: {hours} h"
    );
}

#[tokio::test(start_paused = true)]
async fn a_bucket_with_limits_of_its_own_is_kept_and_ends_without_them() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &ConfigLevel::System, [rpm(60)]).await;
    assert!(take(&limiter, 1).await.unwrap().is_granted());
    assert!(ttl_hours(&fleet).await.is_some());
    let own = ConfigLevel::EntityResource(entity("e-1"), resource("gpt-4"));
    configure(&limiter, &own, [rpm(60)]).await;
    let _ = fleet.writes();
    assert!(take(&limiter, 1).await.unwrap().is_granted());
    assert_eq!((ttl_hours(&fleet).await, fleet.writes()), (None, 1));
    delete_config(&limiter, &own).await;
    let _ = fleet.writes();
    assert!(take(&limiter, 1).await.unwrap().is_granted());
    assert!(ttl_hours(&fleet).await.is_some());
    assert_eq!(fleet.writes(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_in_use_never_ends_and_its_end_moves_once_a_day() {
    let (fleet, [limiter]) = Fleet::of().await;
    let (mut moves, mut last) = (0, None);
    let _ = granted(&limiter, &[rpm(60)], &[("rpm", 1)]).await;
    let _ = fleet.writes();
    for _ in 0..5 * 24 {
        pass(secs(HOUR)).await;
        let _ = granted(&limiter, &[rpm(60)], &[("rpm", 1)]).await;
        assert_eq!(fleet.writes(), 1, "at no extra write");
        let ttl = fleet.bucket().await.ttl.unwrap();
        assert!(ttl.0 * 1000 > fleet.now().0);
        moves += i32::from(last.replace(ttl).is_some_and(|last| last != ttl));
    }
    assert!((3..=6).contains(&moves), "{moves} moves in five days");
}

#[tokio::test(start_paused = true)]
async fn shards_have_no_end_and_one_of_them_has_again() {
    let (fleet, [limiter]) = Fleet::of().await;
    let ask = async || granted(&limiter, &[rpm(60_000)], &[("rpm", 1)]).await;
    let _ = ask().await;
    let at = |shard: u32| fleet.dynamo.item(&PK.replace("#0", &format!("#{shard}")), "#STATE");
    assert!(at(0)["ttl"].is_object());
    split(&limiter, &[], 2).await;
    assert!([0, 1].map(at).iter().all(|item| item["ttl"].is_null() && item["rf"].is_object()));
    for _ in 0..20 {
        let _ = ask().await;
    }
    assert!([0, 1].map(at).iter().all(|item| item["ttl"].is_null()));
    split(&limiter, &[], 1).await;
    assert!(
        at(1)["ttl"].is_object() && at(1)["rf"].is_null(),
        "what a merge leaves has an end: {}",
        at(1)
    );
    let _ = ask().await;
    assert!(at(0)["ttl"].is_object());
    split(&limiter, &[], 2).await;
    assert!(at(1)["ttl"].is_null(), "made again, it is no more what a merge left");
}

/// Also of a limit that the new item has with slots.
#[tokio::test(start_paused = true)]
async fn a_hold_of_a_limit_that_a_new_item_lacks_is_gone() {
    let limit = |name| Limit::per_minute(name, 60).unwrap();
    let (both, others) = ([limit("x"), limit("y")], [limit("y")]);
    let slots = [limit("y"), Limit::concurrent("x", 6).unwrap()];
    for (new, is_bypass, actual) in [
        (&others[..], false, Some(10)),
        (&others[..], false, Some(2)),
        (&others[..], false, None),
        (&others[..], true, Some(10)),
        (&others[..], true, Some(2)),
        (&slots[..], false, Some(2)),
        (&slots[..], false, None),
    ] {
        let case = format!("{new:?} {is_bypass} {actual:?}");
        let (fleet, [limiter, other]) = Fleet::of().await;
        let asked = ask(&limiter, &both, &[("x", 5)]);
        let asked = if is_bypass { asked.bypass() } else { asked };
        let mut grant = taken(asked).await;
        fleet.delete();
        let _ = granted(&other, new, &[("y", 1)]).await;
        let before = fleet.bucket().await;
        let settled = match actual {
            Some(actual) => grant.adjust("x", actual).await,
            None => grant.roll_back().await,
        };
        assert_eq!(settled.unwrap(), Settlement::LeaseGone, "{case}");
        assert_eq!(fleet.bucket().await, before, "{case}");
        let _ = granted(&other, new, &[("y", 1)]).await;
    }
}

//! Settlements of several parts, of which a later one fails.

use weirgate::{ConfigLevel, Error, Grant, Limit};
use weirgate_testkit::Fault;

use weirgate_tests::fleet::shards::{holds, split};
use weirgate_tests::fleet::{Fleet, granted, leased, secs, slots, taken, tokens};
use weirgate_tests::stored::{child, configure, set_entity};

fn limits() -> [Limit; 2] {
    [Limit::custom("tpm", 800, 1, 86_400_000).unwrap(), slots(80)]
}

/// A bucket of eight shards, and a grant of parts from all of them.
async fn parts_of_eight(is_leased: bool) -> (Fleet, Grant) {
    let fleet = Fleet::new().await;
    split(&fleet.limiter().await, &limits(), 8).await;
    let limiter = fleet.limiter().await;
    let takes = [("tpm", 700)];
    let grant = match is_leased {
        true => leased(&limiter, &limits(), &takes, secs(60)).await,
        false => granted(&limiter, &limits(), &takes).await,
    };
    assert_eq!(grant.parts(), 8);
    (fleet, grant)
}

/// Throttles all writes after the first `passed` ones.
fn throttle_after(fleet: &Fleet, passed: u32) {
    let mut writes = 0;
    fleet.dynamo.fail_when(move |_| {
        writes += 1;
        (writes > passed).then_some(Fault::Throttle { key_range: true })
    });
}

fn is_halfway(error: &Error) -> bool {
    matches!(error, Error::Halfway(_)) && error.is_unknown() && error.is_transient()
}

#[tokio::test(start_paused = true)]
async fn an_adjustment_that_stops_after_a_part_says_so_and_goes_on_from_there() {
    for (passed, actual) in [(0, 100), (1, 100), (3, 100), (1, 0)] {
        let (fleet, mut grant) = parts_of_eight(false).await;
        throttle_after(&fleet, passed);
        let error = grant.adjust("tpm", actual).await.unwrap_err();
        let case = format!("{passed} parts of {actual}: {error}");
        assert_eq!(is_halfway(&error), passed > 0, "{case}");
        assert!(error.to_string().contains("throttled"), "{case}");
        fleet.dynamo.fail_when(|_| None);
        assert_eq!(grant.amount("tpm") + holds(&fleet, "tpm").await, tokens(800), "{case}");
        let _ = grant.adjust("tpm", actual).await.unwrap();
        assert_eq!(holds(&fleet, "tpm").await, tokens(800 - actual), "{case}");
    }
}

/// The other bucket's write failed for certain. Going on would count the unconfirmed one twice.
#[tokio::test(start_paused = true)]
async fn a_settlement_with_an_unconfirmed_write_is_not_halfway() {
    for lost in ["#e-1#", "#org#"] {
        let (fleet, [limiter]) = Fleet::of().await;
        configure(&limiter, &ConfigLevel::System, limits()).await;
        set_entity(&limiter, &child("e-1", "org")).await;
        let mut grant = taken(limiter.acquire("e-1", "gpt-4").take("tpm", 100)).await;
        fleet.dynamo.fail_when(move |write| match write.to_string().contains(lost) {
            true => Some(Fault::LoseRequest),
            false => Some(Fault::Throttle { key_range: true }),
        });
        let error = grant.adjust("tpm", 150).await.unwrap_err();
        assert!(error.is_unknown(), "{lost}: {error}");
        assert!(!matches!(error, Error::Halfway(_)), "{lost}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_a_release_and_a_rollback_that_stop_after_a_part_say_so() {
    for settle in ["renew", "release", "roll_back"] {
        for passed in [0, 1] {
            let (fleet, mut grant) = parts_of_eight(true).await;
            throttle_after(&fleet, passed);
            let settled = match settle {
                "renew" => grant.renew(secs(120)).await,
                "release" => grant.release().await,
                _ => grant.roll_back().await,
            };
            let error = settled.unwrap_err();
            assert_eq!(is_halfway(&error), passed > 0, "{settle}: {error}");
        }
    }
}

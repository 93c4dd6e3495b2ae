//! Two releases with different limits in code run side by side, as while a new one is rolled out.

use crate::fixtures::fleet::{Fleet, granted, millis, pass, secs, tokens};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weirgate::{Acquire, Error, Limit, RateLimiter};

/// The limits that a release brings. Both grant all that is asked.
fn limits(release: i64) -> [Limit; 2] {
    [
        Limit::per_minute("rpm", 600_000 * (release + 1)).unwrap(),
        Limit::per_minute("tpm", 6_000_000).unwrap(),
    ]
}

/// Asks by the limits of a release, and by its version if releases have one.
fn ask(limiter: &RateLimiter, release: i64, has_version: bool) -> Acquire<'_> {
    let ask = limiter
        .acquire("e-1", "gpt-4")
        .limits(&limits(release))
        .take("rpm", 1)
        .take("tpm", 10);
    if has_version {
        ask.limits_version(release)
    } else {
        ask
    }
}

/// A process of each release for `span` each, in turn, `per_second` acquires together; write units
/// for one.
async fn run(
    fleet: &Fleet,
    processes: u32,
    per_second: u32,
    span: Duration,
    has_version: bool,
) -> f64 {
    let (mut tasks, start) = (JoinSet::new(), Instant::now());
    for process in 0..processes {
        let limiter = fleet.limiter().await;
        tasks.spawn(async move {
            let (mut turn, mut asked) = (process, 0_u32);
            let mut at = start + turn * secs(1) / per_second;
            while at < start + span {
                sleep_until(at).await;
                let granted = ask(&limiter, i64::from(process % 2), has_version)
                    .send()
                    .await
                    .unwrap();
                assert!(granted.is_granted());
                asked += 1;
                turn += processes;
                at = start + turn * secs(1) / per_second;
            }
            asked
        });
    }
    let _ = fleet.writes();
    let asked: u32 = tasks.join_all().await.into_iter().sum();
    assert_eq!(
        fleet.bucket().await.limits["rpm"].consumed,
        tokens(asked.into()),
        "each counted once"
    );
    let writes = u32::try_from(fleet.writes()).unwrap();
    let per_acquire = f64::from(writes) / f64::from(asked);
    println!(
        "{processes} processes, {per_second}/s, version {has_version}: {per_acquire:.3} writes an acquire"
    );
    per_acquire
}

async fn capacity(fleet: &Fleet) -> i64 {
    fleet.bucket().await.limits["rpm"]
        .rule
        .capacity
        .whole_tokens()
}

#[tokio::test(start_paused = true)]
async fn two_releases_half_and_half_cost_little_more_than_one() {
    // The limits change at the beginning, and again after 30 s.
    for (processes, per_second, span) in [(50, 200, 40), (200, 800, 12)] {
        let fleet = Fleet::slow(millis(5)).await;
        let per_acquire = run(&fleet, processes, per_second, secs(span), false).await;
        assert!(per_acquire <= 1.1, "{per_acquire} writes an acquire");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_with_a_version_gives_way_to_a_newer_one_and_costs_nothing_more() {
    let fleet = Fleet::slow(millis(5)).await;
    let per_acquire = run(&fleet, 20, 200, secs(5), true).await;
    // The first write of each process, and those that lost to the change.
    assert!(per_acquire <= 1.1, "{per_acquire} writes an acquire");
    assert_eq!(capacity(&fleet).await, 1_200_000, "the newer limits stay");
}

#[tokio::test(start_paused = true)]
async fn new_limits_are_in_force_half_a_minute_after_the_old_release_is_gone() {
    let fleet = Fleet::new().await;
    let (old, new) = (fleet.limiter().await, fleet.limiter().await);
    for release in [0, 1, 0, 0] {
        let limiter = if release == 0 { &old } else { &new };
        let _ = granted(limiter, &limits(release), &[("rpm", 1)]).await;
    }
    assert_eq!(
        capacity(&fleet).await,
        1_200_000,
        "the first change is made at once, then the rule stands"
    );
    pass(secs(30)).await;
    let _ = granted(&old, &limits(0), &[("rpm", 1)]).await;
    assert_eq!(capacity(&fleet).await, 600_000);
    // The old release is gone.
    pass(secs(29)).await;
    let _ = granted(&new, &limits(1), &[("rpm", 1)]).await;
    assert_eq!(capacity(&fleet).await, 600_000);
    pass(secs(1)).await;
    let _ = granted(&new, &limits(1), &[("rpm", 1)]).await;
    assert_eq!(capacity(&fleet).await, 1_200_000);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_only_one_release_has_is_added_at_once_and_changes_no_other() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    for release in [0, 1] {
        let _ = granted(&limiter, &limits(release), &[("rpm", 1)]).await;
    }
    let more = [limits(0)[0].clone(), Limit::per_day("rpd", 9).unwrap()];
    let _ = granted(&limiter, &more, &[("rpm", 1), ("rpd", 1)]).await;
    let bucket = fleet.bucket().await;
    assert_eq!(
        bucket
            .limits
            .keys()
            .map(|name| name.as_str())
            .collect::<Vec<_>>(),
        ["rpd", "rpm", "tpm"]
    );
    assert_eq!(bucket.limits["rpm"].rule, *limits(1)[0].rule());
}

#[tokio::test(start_paused = true)]
async fn a_version_without_limits_or_below_zero_is_refused_before_anything_is_sent() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let _ = fleet.dynamo.take_operations();
    let alone = limiter
        .acquire("e-1", "gpt-4")
        .take("rpm", 1)
        .limits_version(3);
    let below = ask(&limiter, 1, false).limits_version(-1);
    for (ask, text) in [
        (alone, "limits given with the call"),
        (below, "must be 0 or more, got -1"),
    ] {
        let error = ask.send().await.unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(message) if message.contains(text)),
            "{error}"
        );
    }
    assert!(fleet.dynamo.take_operations().is_empty());
}

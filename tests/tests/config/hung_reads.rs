//! A read of limits without an answer costs its own request alone, and leaves little behind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use weirgate::{Acquire, ConfigLevel, RateLimiter};

use crate::fixtures::fleet::{Fleet, millis, pass, secs};
use crate::fixtures::stored::{configure, configured, of_entity, rpm, stop, take};

/// The next `lost` reads that ask for such a key have no answer.
fn lose_of(fleet: &Fleet, key: &'static str, lost: usize) {
    let left = AtomicUsize::new(lost);
    fleet.dynamo.stall_when(move |operation, request| {
        let is_meant = operation == "BatchGetItem" && request.to_string().contains(key);
        let less = |left: usize| left.checked_sub(1);
        is_meant && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    });
}

/// The next `lost` reads of limits have no answer.
fn lose(fleet: &Fleet, lost: usize) {
    lose_of(fleet, "#CONFIG", lost);
}

/// Returns a limiter that has read its limits this long ago.
async fn limiter_of(age: Option<Duration>) -> (Fleet, RateLimiter) {
    let fleet = Fleet::new().await;
    let _admin = configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
    let limiter = fleet.limiter().await;
    if let Some(age) = age {
        let _ = take(&limiter, 1).await.unwrap();
        pass(age).await;
    }
    (fleet, limiter)
}

fn asking(limiter: &RateLimiter, timeout: Duration) -> Acquire<'_> {
    let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
    acquire.timeout(timeout)
}

async fn is_granted(limiter: &RateLimiter, timeout: Duration) -> bool {
    let decision = asking(limiter, timeout).send().await;
    decision.is_ok_and(|decision| decision.is_granted())
}

/// How the request ends whose read of limits is lost.
#[derive(Debug, Clone, Copy)]
enum End {
    TimesOut(Duration),
    DroppedAfter(Duration),
    /// It stands still with its process, which is frozen.
    Frozen,
    /// It is not polled again.
    Stands,
}

/// Whatever is known of the limits, and however the request ends; the others come one after the other,
/// or while it waits.
#[tokio::test(start_paused = true)]
async fn a_lost_read_of_limits_costs_the_request_that_sent_it() {
    let cases = [
        (End::TimesOut(millis(250)), millis(250)),
        (End::TimesOut(millis(100)), secs(5)),
        // A read counts as hanging after a second.
        (End::TimesOut(secs(2)), secs(2)),
        (End::TimesOut(secs(5)), millis(1_100)),
        (End::Stands, millis(1_100)),
        (End::DroppedAfter(millis(50)), millis(250)),
        (End::DroppedAfter(millis(50)), secs(5)),
        (End::Frozen, millis(250)),
    ];
    let ages = [None, Some(secs(150))].into_iter();
    let ages = ages.flat_map(|age| [(age, false), (age, true)]);
    for ((age, is_at_once), (end, within)) in ages.flat_map(|of| cases.map(|case| (of, case))) {
        let what = format!("read: {age:?}, at once: {is_at_once}, {end:?}, others {within:?}");
        let (fleet, limiter) = limiter_of(age).await;
        lose(&fleet, 1);
        let mut standing = Box::pin(asking(&limiter, secs(5)).send());
        let first = async {
            match end {
                End::TimesOut(within) => drop(is_granted(&limiter, within).await),
                End::DroppedAfter(time) => {
                    drop(timeout(time, is_granted(&limiter, secs(5))).await);
                }
                End::Frozen | End::Stands => {
                    let begun = std::future::poll_fn(|context| {
                        std::task::Poll::Ready(standing.as_mut().poll(context))
                    });
                    assert!(begun.await.is_pending());
                    if matches!(end, End::Frozen) {
                        fleet.clock.skew(600_000);
                    }
                }
            }
        };
        let others = async {
            let other = async |at: u64| {
                pass(millis(10 * at)).await;
                is_granted(&limiter, within).await
            };
            if is_at_once {
                return join_all((1..=20).map(other)).await;
            }
            let mut all = vec![];
            for _ in 0..20 {
                all.push(other(1).await);
            }
            all
        };
        let ((), granted) = tokio::join!(first, others);
        let failed = granted.iter().filter(|is_granted| !**is_granted).count();
        assert_eq!(failed, 0, "{what}");
        assert_eq!(limiter.stats().breaker_opened, 0, "{what}");
    }
}

/// Its request was decided by the limits that were known.
#[tokio::test(start_paused = true)]
async fn a_read_of_limits_from_before_a_freeze_keeps_nothing_waiting() {
    for within in [millis(250), secs(1)] {
        let (fleet, limiter) = limiter_of(Some(secs(61))).await;
        lose(&fleet, 1);
        assert!(is_granted(&limiter, secs(2)).await);
        fleet.clock.skew(600_000);
        assert!(is_granted(&limiter, within).await, "{within:?}");
    }
}

/// Of the switches, or of the ancestors by which a stop of an entity reaches others. Limits that are read
/// meanwhile wait for neither.
#[tokio::test(start_paused = true)]
async fn a_lost_read_of_what_is_stopped_makes_one_request_wait() {
    for (key, is_configured) in [("#SWITCHES", false), ("ENTITY#e-1", false), ("ENTITY#e-1", true)]
    {
        let (fleet, [operator, limiter]) = Fleet::of().await;
        stop(&operator, &of_entity("e-2")).await;
        configure(&operator, &ConfigLevel::System, [rpm(600)]).await;
        let limits = [rpm(600)];
        let given = || asking(&limiter, secs(2)).limits(&limits);
        assert!(given().send().await.unwrap().is_granted());
        pass(secs(61)).await;
        lose_of(&fleet, key, 1);
        let ask = async |at: u64| {
            pass(millis(10 * at)).await;
            let (request, began) = match at > 0 && is_configured {
                true => (asking(&limiter, millis(250)), Instant::now()),
                false => (given(), Instant::now()),
            };
            assert!(request.send().await.unwrap().is_granted(), "{key}");
            u32::from(began.elapsed() > millis(20))
        };
        let first = join_all([ask(0), ask(1)]).await.iter().sum::<u32>();
        let mut late = 0;
        for _ in 0..20 {
            late += ask(1).await;
        }
        assert!(first <= 2 && late == 0, "{key}, {is_configured}: {first}, {late}");
    }
}

/// Also of many buckets, and whether requests time out or are dropped.
#[tokio::test(start_paused = true)]
async fn requests_that_give_up_a_read_of_limits_leave_few_tasks_behind() {
    for (buckets, most, is_dropped) in [(1, 8, false), (1, 8, true), (500, 110, false)] {
        let (fleet, limiter) = limiter_of(None).await;
        lose(&fleet, usize::MAX);
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        for round in 0..(500 / buckets) {
            let asked = (0..buckets).map(async |bucket| {
                let acquire = limiter.acquire(&format!("e-{bucket}"), "gpt-4").take("rpm", 1);
                let timeout_of = if is_dropped { secs(5) } else { millis(5) };
                let send = acquire.timeout(timeout_of).send();
                let decision = timeout(millis(5), send).await;
                assert!(decision.is_err() || decision.unwrap().is_err(), "{round}");
            });
            join_all(asked).await;
        }
        let left = tasks().saturating_sub(before);
        assert!(left <= most, "{buckets} buckets, dropped: {is_dropped}: {left}");
    }
}

/// Limits that are due, or older than those of the bucket.
#[tokio::test(start_paused = true)]
async fn limits_whose_read_hangs_are_awaited_once_a_second() {
    for is_due in [true, false] {
        let fleet = Fleet::new().await;
        let admin = configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
        let limiter = fleet.limiter().await;
        let _ = take(&limiter, 1).await.unwrap();
        if is_due {
            pass(secs(61)).await;
        } else {
            pass(secs(5)).await;
            configure(&admin, &ConfigLevel::System, [rpm(500)]).await;
            let _ = take(&admin, 1).await.unwrap();
            let _ = take(&limiter, 1).await.unwrap();
        }
        lose(&fleet, usize::MAX);
        let (mut late, stale) = (0, limiter.cache_stats().stale);
        for _ in 0..50 {
            let began = Instant::now();
            let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
            let decision = acquire.timeout(millis(400)).send().await.unwrap();
            assert!(decision.is_granted());
            late += u64::from(began.elapsed() >= millis(100));
            pass(millis(100)).await;
        }
        pass(secs(1)).await;
        assert_eq!(limiter.cache_stats().stale - stale, late, "due: {is_due}");
        assert!((1..=7).contains(&late), "due: {is_due}: {late}");
    }
}

/// Limits that are older than twice their time are used again for a second at most, also where no read
/// of them is answered.
#[tokio::test(start_paused = true)]
async fn old_limits_decide_most_requests_while_their_reads_hang() {
    let fleet = Fleet::new().await;
    let _admin = configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
    let limiter = fleet.limiter().await;
    let _ = take(&limiter, 1).await.unwrap();
    pass(secs(150)).await;
    lose(&fleet, usize::MAX);
    let mut failed = 0;
    for _ in 0..50 {
        let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
        failed += u32::from(acquire.timeout(millis(250)).send().await.is_err());
        pass(millis(50)).await;
    }
    assert!((1..=5).contains(&failed), "{failed}");
}

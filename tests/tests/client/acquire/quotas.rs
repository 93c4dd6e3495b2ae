//! Quotas: windows on the calendar, and sessions.

use std::time::Duration;

use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use weirgate::{Every, FakeClock, Grant, Limit, OnUnavailable, RateLimiter, Settlement};
use weirgate_shared::write::expire;
use weirgate_store::{ReturnValues, WriteOutcome};
use weirgate_testkit::{Fault, Lines};
use weirgate_tests::fleet::{
    Fleet, START, ask, denied, granted, is_granted, leased, millis, pass, rpm, runtime, secs,
    tokens,
};

const HOUR: Duration = secs(3_600);

/// The tests begin at a full hour.
fn hourly(tokens: i64) -> [Limit; 1] {
    [Limit::quota("q", tokens, Every::hour()).unwrap()]
}

fn session(tokens: i64, lasts: Duration) -> [Limit; 1] {
    [Limit::session("q", tokens, lasts).unwrap()]
}

/// The balance in the item, whatever the time is, and the end of its window after the start.
async fn stored(fleet: &Fleet) -> (i64, i64) {
    let state = fleet.bucket().await.limits["q"];
    (state.available.0 / 1_000, state.window_end.0 - START.0)
}

async fn consumed(fleet: &Fleet) -> i64 {
    fleet.tk_tc("q").await.1 / 1_000
}

#[tokio::test(start_paused = true)]
async fn a_quota_is_whole_again_at_the_end_of_its_window_and_not_before() {
    let (fleet, limiter, meter) = Fleet::measured().await;
    for _ in 0..3 {
        pass(secs(600)).await;
        for taken in [9, 1] {
            let _ = meter.take();
            let _ = granted(&limiter, &hourly(10), &[("q", taken)]).await;
            let units = meter.take();
            // The first of an hour also begins usage of the hour, in the same write.
            assert_eq!((units.table, units.requests), (1.0, 1), "{units:?}");
        }
        let denial = denied(&limiter, &hourly(10), &[("q", 1)]).await;
        assert_eq!(denial.retry_after, Some(secs(3_000)), "until the end of the hour");
        pass(secs(3_000) - millis(1)).await;
        assert!(!is_granted(&limiter, &hourly(10), &[("q", 1)]).await);
        pass(millis(1)).await;
        assert!(is_granted(&limiter, &hourly(10), &[("q", 10)]).await, "I5");
        assert!(!is_granted(&fleet.limiter().await, &hourly(10), &[("q", 1)]).await);
        pass(HOUR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_begins_with_the_first_use() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let limits = session(10, secs(300));
    // Nothing is used by it.
    assert!(is_granted(&limiter, &limits, &[("q", 0)]).await);
    pass(secs(77)).await;
    let _ = granted(&limiter, &limits, &[("q", 4)]).await;
    assert_eq!(stored(&fleet).await, (6, 377_000));
    pass(secs(299)).await;
    let _ = granted(&other, &limits, &[("q", 6)]).await;
    assert_eq!(denied(&other, &limits, &[("q", 1)]).await.retry_after, Some(secs(1)));
    pass(secs(1)).await;
    // The next one begins with the next use.
    pass(secs(1_000)).await;
    let _ = granted(&other, &limits, &[("q", 1)]).await;
    assert_eq!(stored(&fleet).await, (9, 1_677_000));
}

/// How a grant gives back what it took.
#[derive(Debug, Clone, Copy)]
enum Back {
    Undone,
    Adjusted,
    Dropped,
    Restored,
    Expired,
    Refunded,
}

const ALL: [Back; 6] =
    [Back::Undone, Back::Adjusted, Back::Dropped, Back::Restored, Back::Expired, Back::Refunded];

async fn give_back(
    fleet: &Fleet,
    back: Back,
    grant: Grant,
    limiter: &RateLimiter,
    limits: &[Limit],
) {
    match back {
        Back::Undone => assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied),
        Back::Adjusted => {
            let mut grant = grant;
            assert_eq!(grant.adjust("q", 0).await.unwrap(), Settlement::Applied);
        }
        Back::Restored => {
            let token = grant.into_token();
            let restored = limiter.restore_grant(&token).unwrap();
            assert_eq!(restored.roll_back().await.unwrap(), Settlement::Applied);
        }
        Back::Refunded => {
            drop(grant);
            let refund = limiter.refund("e-1", "gpt-4").limits(limits);
            refund.give_back("q", 4).send().await.unwrap();
        }
        Back::Dropped => drop(grant),
        Back::Expired => {
            // No caller releases it, and the reconciler finds it expired.
            let _ = grant.into_token();
            pass(secs(61)).await;
            let (update, _) = expire(&fleet.bucket().await, fleet.now()).unwrap();
            let table = fleet.dynamo.table().await;
            let outcome = table.update(&update, ReturnValues::None).await.unwrap();
            assert!(matches!(outcome, WriteOutcome::Applied(_)), "{outcome:?}");
        }
    }
}

/// Tokens of a window that has ended are no longer consumed, and return to no other window.
#[tokio::test(start_paused = true)]
async fn i1_what_was_taken_in_one_window_returns_to_no_other() {
    for back in ALL {
        for is_late in [false, true] {
            let (fleet, [limiter, other]) = Fleet::of().await;
            let limits = [hourly(10)[0].clone(), rpm(600)];
            pass(HOUR - secs(120)).await;
            let takes = [("q", 4), ("rpm", 1)];
            let grant = match back {
                Back::Expired => leased(&limiter, &limits, &takes, secs(60)).await,
                _ => granted(&limiter, &limits, &takes).await,
            };
            let used = if is_late {
                pass(secs(121)).await;
                let _ = granted(&other, &limits, &[("q", 7)]).await;
                7
            } else {
                let _ = granted(&other, &limits, &[("q", 3)]).await;
                3
            };
            give_back(&fleet, back, grant, &limiter, &limits).await;
            pass(millis(10)).await;
            let left = match (back, is_late) {
                // What is dropped without a lease stays used.
                (Back::Dropped, false) => 3,
                (Back::Dropped, true) => 3,
                // It is not known of which window it was, so the present one gets it.
                (Back::Refunded, true) => 7,
                (_, false) => 7,
                (_, true) => 3,
            };
            assert_eq!(stored(&fleet).await.0, left, "{back:?} {is_late}");
            let taken = match back {
                Back::Dropped => 4,
                _ => 0,
            };
            assert_eq!(consumed(&fleet).await, taken + used, "{back:?} {is_late}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_charged_counts_in_the_window_of_the_charge_and_a_debt_ends_with_it() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = hourly(10);
    let mut grant = granted(&limiter, &limits, &[("q", 4)]).await;
    assert_eq!(grant.adjust("q", 15).await.unwrap(), Settlement::Applied);
    assert_eq!(stored(&fleet).await.0, -5);
    assert_eq!(denied(&limiter, &limits, &[("q", 1)]).await.retry_after, Some(HOUR));
    pass(HOUR).await;
    let _ = granted(&limiter, &limits, &[("q", 2)]).await;
    assert_eq!(stored(&fleet).await.0, 8);
    assert_eq!(grant.adjust("q", 18).await.unwrap(), Settlement::Applied);
    assert_eq!(stored(&fleet).await.0, 5);
    // Of the first window, but for the three of this one, which were charged beside it.
    assert_eq!(grant.adjust("q", 0).await.unwrap(), Settlement::Applied);
    assert_eq!(stored(&fleet).await.0, 5);
    assert_eq!(consumed(&fleet).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_top_up_is_good_until_the_end_of_the_window() {
    for begins in [false, true] {
        let (fleet, [limiter]) = Fleet::of().await;
        let limits = hourly(10);
        let _ = granted(&limiter, &limits, &[("q", 10)]).await;
        let edit = || limiter.admin().edit_balances("e-1", "gpt-4");
        if begins {
            pass(HOUR).await;
        }
        let report = edit().top_up("q", 15).send().await.unwrap();
        let before = if begins { 10 } else { 0 };
        assert_eq!(report.before["q"], tokens(before));
        assert_eq!(report.after["q"], tokens(before + 15));
        let _ = granted(&limiter, &limits, &[("q", 10)]).await;
        assert_eq!(stored(&fleet).await.0, before + 5);
        edit().drain("q").send().await.unwrap();
        assert!(!is_granted(&limiter, &limits, &[("q", 1)]).await);
        edit().reset("q").send().await.unwrap();
        let _ = granted(&limiter, &limits, &[("q", 10)]).await;
        assert!(!is_granted(&limiter, &limits, &[("q", 1)]).await);
        pass(HOUR).await;
        assert!(is_granted(&limiter, &limits, &[("q", 10)]).await);
        assert!(!is_granted(&limiter, &limits, &[("q", 1)]).await);
        pass(HOUR).await;
        edit().drain("q").send().await.unwrap();
        assert!(
            !is_granted(&limiter, &limits, &[("q", 1)]).await,
            "a window that no take had begun"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_sets_all_rates_sets_no_quota_and_nothing_is_changed_twice() {
    let (fleet, [limiter]) = Fleet::of().await;
    let [quota] = hourly(10);
    let limits = [quota, rpm(60)];
    let _ = granted(&limiter, &limits, &[("q", 4), ("rpm", 20)]).await;
    let edit = || limiter.admin().edit_balances("e-1", "gpt-4");
    for (all, left) in [(edit().drain_all(), 0), (edit().reset_all(), 60)] {
        let report = all.send().await.unwrap();
        assert_eq!(report.after.len(), 1);
        assert_eq!(report.after["rpm"], tokens(left));
        assert_eq!(stored(&fleet).await.0, 6);
    }
    for twice in [
        edit().set("rpm", 5).reset_all(),
        edit().reset_all().set("rpm", 5),
        edit().top_up("rpm", 5).drain_all(),
        edit().drain_all().top_up("rpm", 5),
        edit().drain_all().reset_all(),
        edit().drain("rpm").reset("rpm"),
    ] {
        let error = twice.send().await.unwrap_err().to_string();
        assert!(error.contains("changed twice"), "{error}");
    }
    // Of different limits.
    edit().reset_all().drain("q").send().await.unwrap();
    assert_eq!(stored(&fleet).await.0, 0);
}

#[tokio::test(start_paused = true)]
async fn a_changed_quota_carries_what_was_used() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &hourly(10), &[("q", 6)]).await;
    // Without versions, limits of one place stand for half a minute.
    for (limits, left, end) in [
        (hourly(20), 14, 3_600_000),
        (hourly(5), -1, 3_600_000),
        ([Limit::quota("q", 8, Every::day()).unwrap()], 2, 86_400_000 - (START.0 % 86_400_000)),
        ([Limit::per_day("q", 8).unwrap()], 2, -START.0),
        (hourly(7), 2, 3_600_000),
    ] {
        pass(secs(31)).await;
        assert!(is_granted(&limiter, &limits, &[("q", 0)]).await || left < 0);
        let (now, until) = stored(&fleet).await;
        assert_eq!((now, until), (left, end), "{limits:?}");
    }
}

/// Each process has its windows while DynamoDB is unavailable: those of the table, at whatever time it began.
#[tokio::test(start_paused = true)]
async fn a_local_bucket_counts_by_windows() {
    let cases = [(hourly(10), true), (session(10, HOUR), false)];
    for (age, (limits, is_on_calendar)) in
        [0, 600].into_iter().flat_map(|age| cases.clone().map(|case| (age, case)))
    {
        let fleet = Fleet::new().await;
        pass(secs(age)).await;
        let left = if is_on_calendar { HOUR - secs(age) } else { HOUR };
        let limiter = fleet
            .limiter_with(|builder| {
                let local = OnUnavailable::Local { percent: 50 };
                builder.on_unavailable(local).timeout(millis(100))
            })
            .await;
        fleet.dynamo.fail_when(|_| Some(Fault::ServerError));
        fleet.fail_reads(Fault::ServerError);
        let first = granted(&limiter, &limits, &[("q", 3)]).await;
        let _ = granted(&limiter, &limits, &[("q", 2)]).await;
        let denial = denied(&limiter, &limits, &[("q", 1)]).await;
        let wait = denial.retry_after.unwrap();
        assert!(wait > left - secs(10) && wait <= left, "{wait:?}");
        let end = denial.limits[0].window_end.unwrap();
        let off = end.0 - fleet.now().plus(wait.into()).0;
        assert!(off.abs() <= 10, "{off} ms");
        pass(wait).await;
        let _ = granted(&limiter, &limits, &[("q", 4)]).await;
        let _ = first.roll_back().await.unwrap();
        assert!(!is_granted(&limiter, &limits, &[("q", 2)]).await, "it was of another window");
    }
}

/// One write begins a window; a process that loses the race repeats, few twice.
#[tokio::test(start_paused = true)]
async fn i1_a_thousand_processes_at_the_start_of_a_window_repeat_about_one_write_each() {
    const PROCESSES: usize = 1_000;
    const GRANTS: u64 = 20;
    let fleet = Fleet::slow(millis(5)).await;
    let limits = hourly(1_000_000);
    let mut processes = vec![];
    for _ in 0..PROCESSES {
        processes.push(fleet.limiter().await);
    }
    for limiter in &processes {
        let _ = granted(limiter, &limits, &[("q", 1)]).await;
    }
    pass(HOUR - Duration::from_millis(u64::try_from(fleet.now().0 - START.0).unwrap())).await;
    fleet.writes();
    let calls = processes.iter().map(|limiter| async {
        for _ in 0..GRANTS {
            let _ = granted(limiter, &limits, &[("q", 1)]).await;
            pass(millis(fastrand::u64(0..200))).await;
        }
    });
    futures_util::future::join_all(calls).await;
    let processes = u64::try_from(PROCESSES).unwrap();
    let (writes, grants) = (fleet.writes(), processes * GRANTS);
    println!("{writes} writes for {grants} grants");
    // One opens the window, and each of the others learns it by a write that is refused, few by two.
    assert!(writes <= grants + grants / 10, "{writes} writes for {grants} grants");
    let left = 1_000_000 - i64::try_from(grants).unwrap();
    assert_eq!(stored(&fleet).await, (left, 2 * 3_600_000));
}

/// A process whose clock is ahead begins the window early; the others take part in it.
#[tokio::test(start_paused = true)]
async fn processes_that_disagree_about_the_time_share_the_window_of_the_item() {
    let fleet = Fleet::new().await;
    let ahead = FakeClock::at(START);
    ahead.skew(900);
    let (limiter, early) = (fleet.limiter().await, fleet.limiter_by(&ahead).await);
    pass(HOUR - millis(500)).await;
    let limits = hourly(10);
    let mut taken = 0;
    for _ in 0..30 {
        for limiter in [&limiter, &early] {
            taken += i64::from(is_granted(limiter, &limits, &[("q", 1)]).await);
        }
        pass(millis(50)).await;
    }
    // Those of the window before, and those of the one after.
    assert!(taken <= 20, "{taken}");
    assert_eq!(stored(&fleet).await, (0, 2 * 3_600_000));
}

/// Each shard of one would begin with a first use of its own.
#[tokio::test(start_paused = true)]
async fn a_bucket_with_a_session_has_one_shard() {
    for is_there in [false, true] {
        let (_fleet, [limiter]) = Fleet::of().await;
        let [session] = session(10, HOUR);
        let limits = [rpm(6_000), session];
        if is_there {
            let _ = granted(&limiter, &limits, &[("q", 1)]).await;
        }
        let set = async |limits: &[Limit], shards| {
            let admin = limiter.admin();
            admin.set_shards("e-1", "gpt-4", limits, shards).await
        };
        for shards in [2, 64] {
            let error = set(&limits, shards).await.unwrap_err();
            let says = format!(
                "limit \"q\" is a session, which begins with the first use of its one shard, so the bucket must have \
                 1 shard, got {shards}: use a window on the calendar"
            );
            assert_eq!(error.to_string(), says);
            assert_eq!(error.name(), "invalid");
        }
        set(&limits, 1).await.unwrap();
        let admin = limiter.admin();
        let split = admin.set_shards("e-2", "gpt-4", &hourly(10), 2).await;
        split.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_is_never_prefetched() {
    let fleet = Fleet::new().await;
    let prefetch = weirgate::Prefetch::default();
    let limiter = fleet.limiter_with(|builder| builder.prefetch("gpt-4", prefetch)).await;
    for _ in 0..50 {
        assert!(ask(&limiter, &hourly(1_000), &[("q", 1)]).send().await.unwrap().is_granted());
        pass(millis(1)).await;
    }
    assert_eq!(limiter.stats().prefetch_hits, 0);
    assert_eq!(stored(&fleet).await.0, 950);
}

/// Once a bucket, and not for the other limits that are not prefetched.
#[test]
fn the_log_says_why_a_quota_is_not_prefetched() {
    let log = Lines::default();
    let (writer, held) = (log.clone(), Limit::concurrent("slots", 9).unwrap());
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    runtime().block_on(async {
        let fleet = Fleet::new().await;
        let prefetch = weirgate::Prefetch::default();
        let limiter = fleet.limiter_with(|builder| builder.prefetch("gpt-4", prefetch));
        let limiter = limiter.await;
        let take = async |id: &str, limits: &[Limit], name: &str| {
            let acquire = limiter.acquire(id, "gpt-4").limits(limits).take(name, 1);
            assert!(acquire.send().await.unwrap().is_granted());
        };
        for _ in 0..3 {
            take("held", &[held.clone(), rpm(9)], "slots").await;
            for id in ["e-1", "e-2"] {
                take(id, &hourly(1_000), "q").await;
            }
        }
    });
    let text = log.text();
    let said: Vec<_> =
        text.lines().filter(|line| line.contains("a quota is not prefetched")).collect();
    assert_eq!(said.len(), 2, "{text}");
    for (line, id) in said.iter().zip(["e-1", "e-2"]) {
        let bucket = format!("\"default/BUCKET#{id}#gpt-4#0\"");
        assert!(line.contains(&bucket) && line.contains("\"q\""), "{line}");
    }
}

/// A take whose answer is lost, and that is found after another process has begun the next window.
#[tokio::test(start_paused = true)]
async fn i1_what_an_unconfirmed_take_took_returns_to_its_own_window() {
    for is_leased in [false, true] {
        let fleet = Fleet::slow(millis(5)).await;
        let (limiter, other) = (fleet.limiter().await, fleet.limiter().await);
        let limits = hourly(10);
        let _ = granted(&limiter, &limits, &[("q", 1)]).await;
        let _ = granted(&other, &limits, &[("q", 1)]).await;
        pass(
            HOUR - millis(3)
                - Duration::from_millis(u64::try_from(fleet.now().0 - START.0).unwrap()),
        )
        .await;
        fleet.fail(&[Fault::LoseAnswer]);
        let ask = ask(&limiter, &limits, &[("q", 4)]);
        let ask = if is_leased { ask.lease(secs(60)) } else { ask };
        let late = async {
            pass(millis(10)).await;
            granted(&other, &limits, &[("q", 7)]).await
        };
        let (taken, _) = tokio::join!(ask.send(), late);
        let window = stored(&fleet).await.1;
        assert_eq!(window, 2 * 3_600_000);
        let before = stored(&fleet).await.0;
        if let Some(grant) = taken.unwrap().granted() {
            let _ = grant.roll_back().await.unwrap();
        }
        let after = stored(&fleet).await.0;
        // Whatever it took of this window returned to it, and nothing else did.
        assert!(before <= 3 && after <= 3, "{is_leased}: {before}, {after}");
    }
}

//! What an acquire answers: granted, denied with a time to come back, or never.

use std::time::Duration;

use proptest::prelude::*;
use weirgate::{Decision, Limit, MilliTokens};
use weirgate_tests::fleet::{
    Fleet, PK, ask, by_name, config, denied, granted, millis, pass, rpm, runtime, secs, slots,
    tokens, tpm,
};

fn two() -> [Limit; 2] {
    [rpm(60), tpm(10_000)]
}

#[tokio::test(start_paused = true)]
async fn a_denial_says_how_every_limit_stands_and_when_to_come_back() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &two(), &[("rpm", 59), ("tpm", 9_000)]).await;

    let denied = denied(&limiter, &two(), &[("rpm", 3), ("tpm", 4_000)]).await;
    let status = by_name(&denied);
    // 60 a minute is one a second, 10,000 a minute one each 6 ms.
    let (rpm, tpm) = (status["rpm"], status["tpm"]);
    assert_eq!((rpm.capacity, rpm.available, rpm.requested), (tokens(60), tokens(1), tokens(3)));
    assert_eq!(
        (tpm.capacity, tpm.available, tpm.requested),
        (tokens(10_000), tokens(1_000), tokens(4_000))
    );
    assert_eq!((rpm.retry_after, tpm.retry_after), (Some(secs(2)), Some(secs(18))));
    assert_eq!(denied.retry_after, Some(secs(18)), "the slowest decides");
    assert_eq!(
        denied.to_string(),
        "denied, retry after 18s: rpm has 1 of 3 requested, tpm has 1000 of 4000 requested",
    );
}

#[tokio::test(start_paused = true)]
async fn a_cached_denial_costs_no_request_and_the_next_one_a_read() {
    let fleet = Fleet::new().await;
    // No read of the switches beside.
    let limiter = fleet.limiter_with(|builder| builder.config_ttl(secs(86_400))).await;
    let hourly = [Limit::per_hour("rph", 1).unwrap()];
    let _ = granted(&limiter, &hourly, &[("rph", 1)]).await;
    assert_eq!(denied(&limiter, &hourly, &[("rph", 1)]).await.retry_after, Some(secs(3600)));
    let _ = fleet.dynamo.take_requests();
    for passed in 1..=100 {
        pass(secs(29)).await;
        for twice in 0..2 {
            let left = denied(&limiter, &hourly, &[("rph", 1)]).await.retry_after;
            assert_eq!(left, Some(secs(3600 - 29 * passed)));
            // 30 s are a tenth of five minutes.
            let reads = if passed % 2 == 0 && twice == 0 {
                vec![("BatchGetItem".to_owned(), 1)]
            } else {
                vec![]
            };
            assert_eq!(fleet.dynamo.take_operations().into_iter().collect::<Vec<_>>(), reads);
        }
    }
    pass(secs(700)).await;
    let _ = granted(&limiter, &hourly, &[("rph", 1)]).await;
    assert_eq!(fleet.writes(), 1, "it is written to once its time has come");
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_looked_up_again_after_the_memory_ends() {
    for (limit, memory) in [
        (Limit::custom("r", 1, 1, 5_000), secs(1)),
        (Limit::custom("r", 1, 1, 100_000), secs(10)),
        (Limit::per_hour("r", 1), secs(30)),
    ] {
        let (_fleet, [here, there]) = Fleet::of().await;
        let limits = [limit.unwrap()];
        let grant = granted(&there, &limits, &[("r", 1)]).await;
        denied(&here, &limits, &[("r", 1)]).await;
        let _ = grant.roll_back().await.unwrap();
        pass(memory - millis(1)).await;
        denied(&here, &limits, &[("r", 1)]).await;
        pass(millis(1)).await;
        let _ = granted(&here, &limits, &[("r", 1)]).await;
    }
}

/// A process saw the debt that another made and paid back. A caller that was told a time before
/// finds the tokens then.
#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_its_time_out_is_not_denied_by_what_was_seen_before() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [Limit::custom("r", 10, 1, 10_000).unwrap()];
    let set = |milli: i64| {
        let mut item = fleet.dynamo.item(PK, "#STATE");
        item["b_r_tk"] = serde_json::json!({"N": milli.to_string()});
        fleet.dynamo.put(&item);
    };
    let _ = granted(&limiter, &limits, &[("r", 10)]).await;
    assert_eq!(denied(&limiter, &limits, &[("r", 1)]).await.retry_after, Some(secs(10)));
    pass(millis(9_900)).await;
    set(-500_000);
    assert!(denied(&limiter, &limits, &[("r", 1)]).await.retry_after > Some(secs(5_000)));
    set(0);
    pass(millis(99)).await;
    assert!(
        denied(&limiter, &limits, &[("r", 1)]).await.retry_after > Some(secs(5_000)),
        "from memory"
    );
    pass(millis(1)).await;
    let _ = granted(&limiter, &limits, &[("r", 1)]).await;
}

#[tokio::test(start_paused = true)]
async fn more_than_a_limit_holds_is_never_and_sends_nothing() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = fleet.dynamo.take_requests();
    let answer = ask(&limiter, &two(), &[("rpm", 1), ("tpm", 10_001)])
        .wait_up_to(secs(9))
        .send()
        .await
        .unwrap();
    let Decision::NeverFits(never) = answer else { panic!("{answer:?}") };
    assert_eq!(
        (&*never.limit, never.requested, never.capacity),
        ("tpm", tokens(10_001), tokens(10_000))
    );
    assert!(
        never.to_string().contains("capacity of 10000 tokens, 10001 were requested"),
        "{never}"
    );
    assert_eq!(fleet.dynamo.take_requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_ends_when_the_tokens_are_there() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &two(), &[("rpm", 60)]).await;
    let began = fleet.now();
    let answer = ask(&limiter, &two(), &[("rpm", 2)]).wait_up_to(secs(2)).send().await.unwrap();
    assert!(answer.is_granted());
    assert_eq!(Duration::from(fleet.now().since(began)), secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_cannot_succeed_is_not_begun() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &two(), &[("rpm", 60)]).await;
    let began = fleet.now();
    let answer =
        ask(&limiter, &two(), &[("rpm", 2)]).wait_up_to(millis(1_999)).send().await.unwrap();
    assert!(matches!(answer, Decision::Denied(denied) if denied.retry_after == Some(secs(2))));
    assert_eq!(fleet.now(), began);
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_an_end_is_a_long_one() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.timeout(Duration::MAX)).await;
    let _ = granted(&limiter, &two(), &[("rpm", 60)]).await;
    assert!(
        ask(&limiter, &two(), &[("rpm", 60)])
            .wait_up_to(Duration::MAX)
            .send()
            .await
            .unwrap()
            .is_granted()
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_slot_lasts_as_long_as_it_was_given() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let slots = [slots(1)];
    for wait in [60, 100, 170] {
        let grant = granted(&other, &slots, &[("slots", 1)]).await;
        let (began, until) = (fleet.now(), millis(wait));
        let waiting = ask(&limiter, &slots, &[("slots", 1)]).wait_up_to(until).send();
        let release = async {
            pass(millis(5)).await;
            grant.release().await
        };
        let (answer, _) = tokio::join!(waiting, release);
        let mine = answer
            .unwrap()
            .granted()
            .unwrap_or_else(|| panic!("a slot was free for most of {wait} ms"));
        // The slot went to another process before, so this one holds back for a moment at each
        // look.
        assert!(Duration::from(fleet.now().since(began)) <= until + millis(20));
        let _ = mine.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_slot_that_stays_held_ends_in_time() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let slots = [slots(1)];
    let _grant = granted(&other, &slots, &[("slots", 1)]).await;
    let began = fleet.now();
    let answer = ask(&limiter, &slots, &[("slots", 1)]).wait_up_to(secs(1)).send().await.unwrap();
    assert!(!answer.is_granted());
    assert_eq!(Duration::from(fleet.now().since(began)), secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_slot_ends_at_once_when_this_process_releases_one() {
    let (fleet, [limiter]) = Fleet::of().await;
    let slots = [slots(1)];
    let grant = granted(&limiter, &slots, &[("slots", 1)]).await;
    let began = fleet.now();
    let waiting = ask(&limiter, &slots, &[("slots", 1)]).wait_up_to(secs(5)).send();
    let release = async {
        pass(millis(7)).await;
        grant.release().await
    };
    let (answer, _) = tokio::join!(waiting, release);
    assert!(answer.unwrap().is_granted());
    assert_eq!(Duration::from(fleet.now().since(began)), millis(7));
}

proptest! {
    #![proptest_config(config(32))]

    /// I5, exact: after retry-after the tokens are there, one millisecond before they are not.
    #[test]
    fn i5_a_request_after_its_retry_after_is_admitted(
        (capacity, amount, period_ms) in (1..2_000_i64, 1..2_000_i64, 1..1_000_000_i64),
        (first, need) in (1..=2_000_000_i64, 1..=2_000_000_i64),
        (slow_capacity, slow_take) in (1..50_i64, 1..50_i64),
        idle_ms in 0..5_000_u64,
    ) {
        let milli = |part: i64, capacity: i64| MilliTokens(1 + part % (capacity * 1000));
        let limits =
            [Limit::custom("a", capacity, amount, period_ms).unwrap(), Limit::per_minute("b", slow_capacity).unwrap()];
        let (first, need) = (milli(first, capacity), milli(need, capacity));
        let slow = milli(slow_take * 1000, slow_capacity);
        runtime().block_on(async {
            let (fleet, [limiter]) = Fleet::of().await;
            let ask = |amount| limiter.acquire("e-1", "gpt-4").limits(&limits).take_milli("a", amount);
            prop_assert!(ask(first).take_milli("b", slow).send().await.unwrap().is_granted());
            pass(millis(idle_ms)).await;
            let retry_after = match ask(need).take_milli("b", slow).send().await.unwrap() {
                Decision::Denied(denied) => denied.retry_after.expect("a rate comes back"),
                Decision::Granted(_) => return Ok(()),
                other => panic!("{other:?}"),
            };
            prop_assert!(retry_after > Duration::ZERO);
            pass(retry_after - millis(1)).await;
            let Decision::Denied(early) = ask(need).take_milli("b", slow).send().await.unwrap() else {
                panic!("admitted one millisecond early")
            };
            prop_assert_eq!(early.retry_after, Some(millis(1)));
            pass(millis(1)).await;
            // Also a process that has never seen the bucket is admitted then.
            let limiter = fleet.limiter().await;
            let ask = limiter.acquire("e-1", "gpt-4").limits(&limits).take_milli("a", need).take_milli("b", slow);
            prop_assert!(ask.send().await.unwrap().is_granted());
            Ok(())
        })?;
    }
}

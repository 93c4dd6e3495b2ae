//! Takes whose request or answer is lost, repeated, refused: what is taken is admitted, or known to
//! be in doubt.

use weirgate::{CircuitBreakerConfig, Decision, Error, Limit};
use weirgate_testkit::Fault;
use weirgate_tests::fleet;
use weirgate_tests::fleet::{
    Fleet, alone_and_in_pairs, ask, granted, is_unknown, millis, pass, secs, slots,
};

fn limits() -> [Limit; 2] {
    [Limit::per_hour("rph", 1000).unwrap(), slots(20)]
}

/// How the bucket is before the take that meets trouble.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before {
    /// This process has seen it.
    Known,
    /// This process has not.
    FirstContact,
    /// There is none.
    Missing,
    /// There is only enough with the refill since.
    Dry,
}

/// Takes 8 tokens, and 2 slots if `with_slots`, in trouble, and checks that nothing is admitted
/// that is not taken, and that nothing is taken that is not admitted, held by a lease, or counted
/// as in doubt.
async fn take_in(trouble: &[Fault], before: Before, with_slots: bool, other: bool) {
    let case = format!("{trouble:?} {before:?} slots: {with_slots} other: {other}");
    let (fleet, [limiter]) = Fleet::of().await;
    let mut taken_before = 0;
    match before {
        Before::Known => drop(granted(&limiter, &limits(), &[("rph", 100)]).await),
        Before::FirstContact => {
            drop(granted(&fleet.limiter().await, &limits(), &[("rph", 100)]).await)
        }
        Before::Missing => {}
        Before::Dry => {
            drop(granted(&limiter, &limits(), &[("rph", 995)]).await);
            pass(secs(3600 / 100)).await;
        }
    }
    if before != Before::Missing {
        taken_before = fleet.tk_tc("rph").await.1;
    }
    fleet.writes();
    fleet.trouble(trouble.iter().copied().map(Some).collect(), other.then_some("rph"));
    let takes: &[_] = if with_slots { &[("rph", 8), ("slots", 2)] } else { &[("rph", 8)] };
    let answer = ask(&limiter, &limits(), takes).send().await;
    let (stats, sent) = (limiter.stats(), fleet.writes());
    assert!(sent <= 8, "{case}: {sent} writes");
    fleet.dynamo.fail_when(|_| None);

    let admitted = match &answer {
        Ok(Decision::Granted(_)) => 8_000,
        // What the lost answer took, or others, is missing now.
        Ok(Decision::Denied(_)) if before == Before::Dry => 0,
        Ok(other) => panic!("{case}: {other:?}"),
        Err(_) => 0,
    };
    if fleet.dynamo.item(fleet::PK, "#STATE").is_null() {
        assert!(answer.is_err(), "{case}: admitted without a bucket");
        return;
    }
    let bucket = fleet.bucket().await;
    let foreign = 1000 * fleet::foreign_takes(&fleet);
    let (rate, slots) = (bucket.limits["rph"], bucket.limits["slots"]);
    let taken = rate.consumed.bounded().0 - taken_before - foreign;
    assert!(taken >= admitted, "{case}: I1, {taken} taken, {admitted} admitted");
    let held: i64 =
        bucket.leases.iter().flatten().map(|(_, lease)| lease.tokens[&slots_name()].0).sum();
    assert_eq!(
        slots.available.0 + held,
        20_000,
        "{case}: I4, every slot is free or held by one lease"
    );
    let credit = bucket.refilled_at.since(fleet::START).0 * 1_000_000 / 3_600_000;
    assert!(
        rate.available.0 + rate.consumed.bounded().0 <= 1_000_000 + credit,
        "{case}: I1, {rate:?}"
    );
    assert!(
        rate.available.0 + rate.consumed.bounded().0 >= 1_000_000,
        "{case}: tokens were lost: {rate:?}"
    );

    let in_doubt = i64::try_from(stats.unconfirmed_millitokens).unwrap();
    let unknown =
        i64::try_from(trouble.iter().filter(|fault| is_unknown(**fault)).count()).unwrap();
    let asked = if with_slots { 10_000 } else { 8_000 };
    assert!(
        in_doubt <= unknown * asked,
        "{case}: {in_doubt} in doubt after {unknown} unknown outcomes"
    );
    assert!(
        taken - admitted <= in_doubt,
        "{case}: {taken} taken, {admitted} admitted, {in_doubt} in doubt"
    );
    match &answer {
        Err(error) if error.is_unknown() => assert!(unknown > 0, "{case}: {error}"),
        Err(error) => {
            assert!(trouble.contains(&Fault::Forbidden), "{case}: {error}");
            assert_eq!(taken, 0, "{case}: {error}");
        }
        Ok(_) if !other && before == Before::Known => {
            assert_eq!((taken, in_doubt), (admitted, 0), "{case}")
        }
        Ok(_) => {}
    }
}

fn slots_name() -> weirgate_shared::LimitName {
    weirgate_shared::LimitName::new("slots").unwrap()
}

async fn take_in_every_trouble(before: Before) {
    for trouble in alone_and_in_pairs() {
        for (with_slots, other) in [(false, false), (false, true), (true, false), (true, true)] {
            take_in(&trouble, before, with_slots, other).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i1_a_take_in_trouble_counts_what_it_took() {
    take_in_every_trouble(Before::Known).await;
}

#[tokio::test(start_paused = true)]
async fn i1_a_take_at_first_contact_in_trouble_counts_what_it_took() {
    take_in_every_trouble(Before::FirstContact).await;
}

#[tokio::test(start_paused = true)]
async fn i1_a_take_that_makes_the_bucket_in_trouble_counts_what_it_took() {
    take_in_every_trouble(Before::Missing).await;
}

#[tokio::test(start_paused = true)]
async fn i1_a_take_that_refills_in_trouble_counts_what_it_took() {
    take_in_every_trouble(Before::Dry).await;
}

#[tokio::test(start_paused = true)]
async fn where_the_id_is_gone_the_tokens_count_as_taken_once_each() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
    // Applied three times, with another process's write between each two: the outcome cannot be
    // found out.
    fleet.trouble(vec![Some(Fault::LoseAnswer); 2], Some("rph"));
    let _ = granted(&limiter, &limits(), &[("rph", 5)]).await;
    assert_eq!(fleet.tk_tc("rph").await.1, 1_000 + 3 * 5_000 + 2_000);
    assert_eq!(limiter.stats().unconfirmed_millitokens, 10_000);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_says_that_the_take_may_have_happened() {
    let fleet = Fleet::new().await;
    let builder =
        fleet.builder().await.timeout(millis(900)).circuit_breaker(CircuitBreakerConfig {
            failure_threshold: 0,
            ..CircuitBreakerConfig::default()
        });
    let limiter = builder.build().await.unwrap();
    let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
    for (applied, fault) in [(false, Fault::LoseRequest), (true, Fault::LoseAnswer)] {
        let before = fleet.tk_tc("rph").await.1;
        let doubt = limiter.stats().unconfirmed_millitokens;
        fleet.dynamo.fail_when(move |_| Some(fault));
        fleet.fail_reads(Fault::LoseRequest);
        let error =
            ask(&limiter, &limits(), &[("rph", 7)]).send().await.expect_err("no answer comes");
        fleet.dynamo.fail_when(|_| None);
        fleet.fail_reads(None);
        assert!(
            matches!(&error, Error::Timeout { last: Some(_), .. }) && error.is_unknown(),
            "{error:?}"
        );
        assert!(error.is_transient());
        let text = error.to_string();
        let named = [fleet::PK, "900ms", "UpdateItem", "may have been applied", "reset"];
        assert!(named.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(
            fleet.tk_tc("rph").await.1 - before,
            if applied { 7_000 } else { 0 },
            "once at most"
        );
        assert!(limiter.stats().unconfirmed_millitokens - doubt >= 7_000);
    }
    let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
}

/// Writes are refused until the deadline; a read then shows the take.
#[tokio::test(start_paused = true)]
async fn a_take_whose_answer_is_lost_is_found_at_the_deadline() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.timeout(millis(900))).await;
    let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
    fleet.fail(&[Fault::LoseAnswer]);
    fleet.fail_writes(Fault::Throttle { key_range: true });
    let _ = granted(&limiter, &limits(), &[("rph", 7)]).await;
    assert_eq!(fleet.tk_tc("rph").await.1, 8_000);
    assert_eq!(limiter.stats().unconfirmed_millitokens, 0);
}

/// A refusal after an unknown outcome does not make the outcome known.
#[tokio::test(start_paused = true)]
async fn a_doubt_is_not_forgotten_over_a_later_refusal() {
    for last in [Fault::Forbidden, Fault::Throttle { key_range: false }] {
        let fleet = Fleet::new().await;
        let limiter = fleet.limiter_with(|builder| builder.timeout(millis(900))).await;
        let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
        fleet.fail(&[Fault::LoseAnswer]);
        fleet.dynamo.fail_when(move |_| Some(last));
        fleet.fail_reads(last);
        let error =
            ask(&limiter, &limits(), &[("rph", 7)]).send().await.expect_err("it is refused");
        assert!(error.is_unknown(), "{error:?}");
        fleet.fail_reads(None);
        assert_eq!(fleet.tk_tc("rph").await.1, 8_000);
        assert_eq!(limiter.stats().unconfirmed_millitokens, 7_000);
    }
}

/// An answer slower than the request may take is one that was lost.
#[tokio::test(start_paused = true)]
async fn a_read_whose_answer_is_too_slow_has_taken_nothing() {
    let fleet = Fleet::slow(secs(4)).await;
    let limiter = fleet.limiter().await;
    let error =
        ask(&limiter, &limits(), &[("rph", 7)]).send().await.expect_err("it takes longer than 3 s");
    assert!(
        !error.is_unknown() && error.is_transient() && error.to_string().contains("timed out"),
        "{error}"
    );
    pass(secs(10)).await;
    assert_eq!(limiter.stats().unconfirmed, 0, "no write was sent");
}

/// An unconfirmed write that the item does not show was refused by nothing.
#[tokio::test(start_paused = true)]
async fn a_request_with_more_time_than_its_doubts_is_granted_after_them() {
    let fleet = Fleet::new().await;
    let limiter = fleet
        .limiter_with(|builder| {
            let breaker =
                CircuitBreakerConfig { failure_threshold: 0, ..CircuitBreakerConfig::default() };
            builder.timeout(millis(200)).circuit_breaker(breaker)
        })
        .await;
    let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
    fleet.fail_writes(Fault::LoseRequest);
    let limits = limits();
    let request = ask(&limiter, &limits, &[("rph", 7)]).timeout(secs(10));
    let over = async {
        pass(secs(3)).await;
        fleet.fail_writes(None);
    };
    let (decision, ()) = tokio::join!(request.send(), over);
    assert!(decision.unwrap().is_granted());
    assert_eq!(fleet.tk_tc("rph").await.1, 8_000);
}

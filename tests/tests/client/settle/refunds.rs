//! What is counted without a grant: refunds of tokens that were not used, and requests into debt for
//! those that were.

use weirgate::{ConfigLevel, Error, Limit, OnUnavailable, RateLimiter};
use weirgate_testkit::Fault;
use weirgate_tests::stored::set_entity;

use weirgate_tests::fleet::shards::{drain, holds, per_minute, shards, split};
use weirgate_tests::fleet::{
    Fleet, ask, denied, granted, millis, pass, secs, slots, taken, tokens,
};
use weirgate_tests::stored::{child, configured, entity, resource};

fn limits() -> [Limit; 2] {
    [Limit::per_day("tpd", 86_400).unwrap(), slots(4)]
}

async fn refund(limiter: &RateLimiter, limits: &[Limit], limit: &str, amount: i64) {
    let refund = limiter.refund("e-1", "gpt-4").limits(limits);
    refund.give_back(limit, amount).send().await.unwrap();
}

async fn debit(limiter: &RateLimiter, limits: &[Limit], amount: i64) {
    let decision = ask(limiter, limits, &[("tpd", amount)]).into_debt().send();
    assert!(decision.await.unwrap().is_granted());
}

#[tokio::test(start_paused = true)]
async fn a_refund_returns_up_to_the_capacity_and_lowers_the_usage_by_all() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &limits(), &[("tpd", 1_000)]).await;
    fleet.writes();
    refund(&limiter, &limits(), "tpd", 400).await;
    assert_eq!(fleet.writes(), 1);
    assert_eq!(fleet.tk_tc("tpd").await, (85_800_000, 600_000));
    // A hundred tokens have come back by themselves.
    pass(secs(100)).await;
    fleet.clock.advance(secs(100)).await;
    refund(&limiter, &limits(), "tpd", 600).await;
    assert_eq!(fleet.tk_tc("tpd").await, (86_400_000, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refund_of_more_than_was_consumed_is_refused() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &limits(), &[("tpd", 1_000)]).await;
    let more = limiter.refund("e-1", "gpt-4").limits(&limits());
    let error = more.give_back("tpd", 1_001).send().await.unwrap_err();
    let text = error.to_string();
    let named = ["\"tpd\"", "0 to 1000", "got 1001", "give back at most 1000"];
    assert!(named.iter().all(|word| text.contains(word)), "{text}");
    assert_eq!(fleet.tk_tc("tpd").await, (85_400_000, 1_000_000));
    // What another process has consumed meanwhile can be returned.
    let _ = granted(&fleet.limiter().await, &limits(), &[("tpd", 500)]).await;
    refund(&limiter, &limits(), "tpd", 1_500).await;
    assert_eq!(fleet.tk_tc("tpd").await, (86_400_000, 0));
}

#[tokio::test(start_paused = true)]
async fn a_bucket_without_an_item_is_full_and_stays_without_one() {
    let fleet = Fleet::new().await;
    refund(&fleet.limiter().await, &limits(), "tpd", 250).await;
    assert_eq!(fleet.dynamo.items().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn slots_are_not_refunded_and_left_out_of_a_request_into_debt() {
    let (fleet, [limiter]) = Fleet::of().await;
    let refund = limiter.refund("e-1", "gpt-4").limits(&limits());
    let error = refund.give_back("slots", 1).send().await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(text) if text.contains("slots")));
    let slots = ask(&limiter, &limits(), &[("slots", 1)]).into_debt();
    assert!(taken(slots).await.amounts().is_empty());
    assert_eq!(fleet.dynamo.items().len(), 0);
    let both = ask(&limiter, &limits(), &[("slots", 9), ("tpd", 50)]).into_debt();
    let grant = taken(both).await;
    assert_eq!((grant.amount("tpd"), grant.lease_id()), (tokens(50), None));
    assert_eq!(fleet.tk_tc("tpd").await, (86_350_000, 50_000));
    assert_eq!(fleet.tk_tc("slots").await, (4_000, 0));
}

/// I1: the write may have been applied, so it is not repeated.
#[tokio::test(start_paused = true)]
async fn i1_a_refund_whose_answer_is_lost_returns_nothing_twice() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        let (fleet, [limiter]) = Fleet::of().await;
        let _ = granted(&limiter, &limits(), &[("tpd", 1_000)]).await;
        fleet.fail(&[fault]);
        let refund = limiter.refund("e-1", "gpt-4").limits(&limits());
        // The item shows what was applied.
        match refund.give_back("tpd", 400).send().await {
            Ok(()) => assert_eq!(fault, Fault::LoseAnswer),
            Err(error) => assert!(error.is_unknown() && fault == Fault::LoseRequest),
        }
        let (tk, tc) = fleet.tk_tc("tpd").await;
        assert_eq!(tk + tc, 86_400_000, "{fault:?}");
        assert!(tk <= 85_801_000, "{fault:?}: {tk}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_that_is_refused_for_now_is_made_later() {
    for fault in [Fault::Conflict, Fault::Throttle { key_range: true }] {
        let (fleet, [limiter]) = Fleet::of().await;
        let _ = granted(&limiter, &limits(), &[("tpd", 1_000)]).await;
        fleet.fail(&[fault, fault]);
        refund(&limiter, &limits(), "tpd", 400).await;
        let (tk, tc) = fleet.tk_tc("tpd").await;
        assert_eq!(tc, 600_000, "{fault:?}");
        // A token comes back every second, and the pauses between the attempts are shorter.
        assert!((85_800_000..85_801_000).contains(&tk), "{fault:?}: {tk}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_split_bucket_a_refund_goes_where_there_is_room() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = per_minute(400);
    split(&limiter, &limits, 4).await;
    // Consumed, and taken of no balance.
    let bypass = ask(&limiter, &limits, &[("rpm", 99)]).bypass();
    assert!(bypass.send().await.unwrap().is_granted());
    drain(&fleet, 2, "rpm", tokens(40));
    drain(&fleet, 3, "rpm", tokens(90));
    fleet.writes();
    let other = fleet.limiter().await;
    // Views of all shards.
    let _ = other.peek("e-1", "gpt-4").limits(&limits).send().await.unwrap();
    refund(&other, &limits, "rpm", 50).await;
    assert_eq!(fleet.writes(), 1, "one shard has enough room");
    assert_eq!(holds(&fleet, "rpm").await, tokens(380));
    refund(&other, &limits, "rpm", 19).await;
    assert_eq!(holds(&fleet, "rpm").await, tokens(399), "two shards had room");
    refund(&other, &limits, "rpm", 30).await;
    assert_eq!(holds(&fleet, "rpm").await, tokens(400));
    let shards = shards(&fleet).await;
    let consumed = shards.iter().map(|shard| shard.limits["rpm"].consumed);
    assert_eq!(consumed.sum::<weirgate::MilliTotal>(), tokens(0));
}

#[tokio::test(start_paused = true)]
async fn a_refund_and_a_debit_reach_the_parents_that_an_acquire_takes_from() {
    let fleet = Fleet::new().await;
    let level = ConfigLevel::Resource(resource("gpt-4"));
    let limiter = configured(&fleet, &level, [Limit::per_day("tpd", 86_400).unwrap()]).await;
    set_entity(&limiter, &child("e-1", "org")).await;
    let acquire = limiter.acquire("e-1", "gpt-4").take("tpd", 1_000);
    assert!(acquire.send().await.unwrap().is_granted());
    let refund = limiter.refund("e-1", "gpt-4").give_back("tpd", 300);
    refund.send().await.unwrap();
    let acquire = limiter.acquire("e-1", "gpt-4").take("tpd", 90_000);
    assert!(acquire.into_debt().send().await.unwrap().is_granted());
    for name in ["e-1", "org"] {
        let balances = limiter.peek(name, "gpt-4").send().await.unwrap();
        let own = balances.limits.iter().find(|status| status.entity == entity(name));
        assert_eq!(own.unwrap().available, tokens(86_400 - 700 - 90_000), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_that_fails_for_one_bucket_reaches_the_others() {
    let fleet = Fleet::new().await;
    let level = ConfigLevel::Resource(resource("gpt-4"));
    let limiter = configured(&fleet, &level, [Limit::per_day("tpd", 86_400).unwrap()]).await;
    set_entity(&limiter, &child("e-1", "org")).await;
    let acquire = limiter.acquire("e-1", "gpt-4").take("tpd", 1_000);
    assert!(acquire.send().await.unwrap().is_granted());
    // The parent's write is still repeated when the child's has failed.
    let mut is_parent_refused = false;
    fleet.dynamo.fail_when(move |write| {
        if write.to_string().contains("#e-1#") {
            return Some(Fault::Forbidden);
        }
        let is_first = !std::mem::replace(&mut is_parent_refused, true);
        is_first.then_some(Fault::Throttle { key_range: true })
    });
    let refund = limiter.refund("e-1", "gpt-4").give_back("tpd", 300);
    assert!(refund.send().await.is_err());
    let peek = limiter.peek("org", "gpt-4").send().await.unwrap();
    let left = peek.limit("tpd").unwrap().available;
    assert_eq!(left.whole_tokens(), 86_400 - 700);
}

#[tokio::test(start_paused = true)]
async fn a_request_into_debt_is_not_denied_counts_its_amounts_and_no_acquire() {
    let (fleet, [limiter]) = Fleet::of().await;
    debit(&limiter, &limits(), 50_000).await;
    debit(&limiter, &limits(), 50_000).await;
    debit(&limiter, &limits(), 200_000).await;
    assert_eq!(fleet.tk_tc("tpd").await, (-213_600_000, 300_000_000));
    assert_eq!(fleet.bucket().await.acquires.total, 0);
    let denial = denied(&limiter, &limits(), &[("tpd", 1)]).await;
    assert_eq!(denial.retry_after, Some(secs(213_601)));
}

/// Otherwise usage that has happened would be lost, and the caller told that it was counted.
#[tokio::test(start_paused = true)]
async fn a_request_into_debt_is_neither_granted_nor_denied_without_the_table() {
    let local = OnUnavailable::Local { percent: 10 };
    for policy in [OnUnavailable::Allow, OnUnavailable::Deny, local] {
        for (is_stored, is_shadow) in [(false, false), (true, false), (false, true)] {
            let (fleet, [operator]) = Fleet::of().await;
            let store = operator.admin().store_on_unavailable(Some(policy));
            let limiter = fleet.limiter_with(|builder| {
                let builder = builder.timeout(millis(200)).shadow(is_shadow);
                builder.on_unavailable(policy)
            });
            let limiter = limiter.await;
            if is_stored {
                store.send().await.unwrap();
            }
            let _ = granted(&limiter, &limits(), &[("tpd", 1)]).await;
            fleet.fail_writes(Fault::ServerError);
            fleet.fail_reads(Fault::ServerError);
            let debit = || ask(&limiter, &limits(), &[("tpd", 50_000)]).into_debt();
            let decisions = [
                debit().send().await.map(drop),
                debit().on_unavailable(policy).send().await.map(drop),
                limiter.acquire_all([debit()]).send().await.map(drop),
            ];
            for decision in decisions {
                let error = decision.expect_err("nothing was counted");
                assert!(error.is_transient(), "{policy:?}: {error}");
            }
            fleet.fail_writes(None);
            fleet.fail_reads(None);
            pass(secs(10)).await;
            debit_all(&fleet, &limiter).await;
        }
    }
}

async fn debit_all(fleet: &Fleet, limiter: &RateLimiter) {
    debit(limiter, &limits(), 100_000).await;
    assert!(fleet.tk_tc("tpd").await.0 < 0);
}

/// What is taken even into debt is short of nothing: the other request decides.
#[tokio::test(start_paused = true)]
async fn beside_another_request_a_local_bucket_goes_into_debt_too() {
    let fleet = Fleet::new().await;
    let local = OnUnavailable::Local { percent: 10 };
    let limiter =
        fleet.limiter_with(|builder| builder.timeout(millis(200)).on_unavailable(local)).await;
    fleet.fail_writes(Fault::ServerError);
    fleet.fail_reads(Fault::ServerError);
    for (amount, is_granted) in [(8_000, true), (8_000, false)] {
        let debit = ask(&limiter, &limits(), &[("tpd", 80_000)]).into_debt();
        let other = limiter.acquire("e-2", "gpt-4").limits(&limits());
        let both = limiter.acquire_all([debit, other.take("tpd", amount)]);
        assert_eq!(both.send().await.unwrap().is_granted(), is_granted);
    }
}

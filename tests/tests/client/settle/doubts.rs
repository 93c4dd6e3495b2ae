//! What a grant does after a settlement whose outcome is unknown: it answers the truth.

use std::time::Duration;

use weirgate::{Acquire, Grant, Limit, RateLimiter, Settlement};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::shards::{shards, split};
use weirgate_tests::fleet::{
    self, Fleet, PK, granted, leased, millis, pass, rpm, secs, settle, tokens, tpm,
};

const LATENCY: Duration = millis(10);

fn limits() -> [Limit; 1] {
    [tpm(10_000)]
}

/// The next write meets `first`, and all that follow are lost.
fn outage(fleet: &Fleet, first: Option<Fault>) {
    let mut first = Some(first);
    let lost = Some(Fault::LoseRequest);
    fleet.dynamo.fail_when(move |_| first.take().unwrap_or(lost));
}

/// How the first adjustment ends in doubt.
#[derive(Debug, Clone, Copy)]
enum Doubt {
    /// It is applied, and no answer arrives.
    Applied,
    /// It is not applied.
    Lost,
    /// Its future is dropped after so many ms.
    Dropped(u64),
}

async fn leave_in_doubt(fleet: &Fleet, grant: &mut Grant, to: i64, doubt: Doubt) {
    match doubt {
        Doubt::Applied => outage(fleet, Some(Fault::LoseAnswer)),
        Doubt::Lost => outage(fleet, Some(Fault::LoseRequest)),
        Doubt::Dropped(after) => {
            let dropped = tokio::time::timeout(millis(after), grant.adjust("tpm", to));
            let _ = dropped.await;
            settle().await;
            return;
        }
    }
    let error = grant.adjust("tpm", to).await.expect_err("no answer");
    assert!(error.is_unknown(), "{error}");
    fleet.fail_writes(None);
}

/// Consumed tokens of the bucket, and what its leases have.
async fn stored(fleet: &Fleet) -> (i64, Vec<i64>) {
    let shard = fleet.bucket().await;
    let leases = shard.leases.iter().flatten();
    let held = leases.filter_map(|(_, lease)| lease.tokens.get("tpm"));
    let held = held.map(|amount| amount.0 / 1_000).collect();
    (shard.limits["tpm"].consumed.bounded().0 / 1_000, held)
}

async fn builder(fleet: &Fleet) -> RateLimiter {
    fleet.builder().await.timeout(secs(1)).build().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn i7_an_adjustment_after_one_in_doubt_answers_the_truth() {
    let doubts = [Doubt::Applied, Doubt::Lost].into_iter();
    for doubt in doubts.chain((1..25).step_by(3).map(Doubt::Dropped)) {
        for first in [200, 800] {
            for (next, by_token, is_end) in [200, 500, 600, 800].into_iter().flat_map(|to| {
                [(to, false, false), (to, true, false), (to, false, true), (to, true, true)]
            }) {
                let what = format!(
                    "500 to {first} {doubt:?}, then to {next}, by token: {by_token}, an end: {is_end}"
                );
                let fleet = Fleet::slow(LATENCY).await;
                let limiter = builder(&fleet).await;
                let mut grant = leased(&limiter, &limits(), &[("tpm", 500)], secs(600)).await;
                leave_in_doubt(&fleet, &mut grant, first, doubt).await;
                if by_token {
                    let token = grant.into_token();
                    grant = builder(&fleet).await.restore_grant(&token).unwrap();
                }
                if is_end {
                    let done = grant.release_with(&[("tpm", tokens(next))], &[]).await;
                    assert_eq!(done.unwrap(), Settlement::Applied, "{what}");
                    assert_eq!(stored(&fleet).await, (next, vec![]), "{what}");
                    continue;
                }
                let done = grant.adjust("tpm", next).await.unwrap();
                assert_eq!(done, Settlement::Applied, "{what}");
                assert_eq!(grant.amount("tpm"), tokens(next), "{what}");
                assert_eq!(stored(&fleet).await, (next, vec![next]), "{what}");
                assert_eq!(grant.release().await.unwrap(), Settlement::Applied, "{what}");
                assert_eq!(stored(&fleet).await, (next, vec![]), "{what}");
            }
        }
    }
}

/// An old token ends the grant by what the lease has.
#[tokio::test(start_paused = true)]
async fn i7_an_end_by_an_old_token_changes_what_the_lease_has() {
    for (adjusted, back, left) in [(400, 200, 300), (40, 200, 40), (800, 200, 300)] {
        let (fleet, [limiter]) = Fleet::of().await;
        let grant = leased(&limiter, &limits(), &[("tpm", 500)], secs(600)).await;
        let token = grant.into_token();
        let mut one = limiter.restore_grant(&token).unwrap();
        let done = one.adjust("tpm", adjusted).await.unwrap();
        assert_eq!(done, Settlement::Applied);
        let other = limiter.restore_grant(&token).unwrap();
        let done = other.release_with(&[], &[("tpm", tokens(back))]).await;
        assert_eq!(done.unwrap(), Settlement::Applied);
        assert_eq!(stored(&fleet).await, (left, vec![]), "{adjusted}");
    }
}

/// The other shard takes nothing in place of the one that does not answer.
#[tokio::test(start_paused = true)]
async fn i7_an_end_in_several_shards_counts_once_whatever_one_of_them_answers() {
    for (fault, lost_shard) in [
        (Fault::LoseAnswer, 0),
        (Fault::LoseAnswer, 1),
        (Fault::LoseRequest, 0),
        (Fault::LoseRequest, 1),
    ] {
        for used in [7_500, 9_000, 100, 0] {
            let (fleet, [limiter]) = Fleet::of().await;
            split(&limiter, &limits(), 2).await;
            let grant = leased(&limiter, &limits(), &[("tpm", 7_000)], secs(600)).await;
            assert_eq!(grant.parts(), 2);
            let token = grant.into_token();
            let item = format!("#gpt-4#{lost_shard}\"");
            fleet.dynamo.fail_when(move |write| write.to_string().contains(&item).then_some(fault));
            let end = async || {
                let grant = limiter.restore_grant(&token).unwrap();
                grant.release_with(&[("tpm", tokens(used))], &[]).await
            };
            let error = end().await.expect_err("a shard does not answer");
            assert!(error.is_unknown(), "{error}");
            fleet.fail_writes(None);
            let _ = end().await.unwrap();
            let shards = shards(&fleet).await;
            let consumed = shards.iter().map(|shard| shard.limits["tpm"].consumed.bounded().0);
            assert_eq!(consumed.sum::<i64>(), used * 1_000, "shard {lost_shard}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i7_a_grant_in_doubt_whose_lease_has_ended_says_so() {
    let fleet = Fleet::slow(LATENCY).await;
    let limiter = builder(&fleet).await;
    let mut grant = leased(&limiter, &limits(), &[("tpm", 500)], secs(600)).await;
    leave_in_doubt(&fleet, &mut grant, 200, Doubt::Lost).await;
    fleet.delete();
    assert_eq!(grant.adjust("tpm", 200).await.unwrap(), Settlement::LeaseGone);
}

/// Only its answer is lost, and no other process writes: the item shows that it was applied.
#[tokio::test(start_paused = true)]
async fn i7_a_settlement_without_a_lease_whose_answer_is_lost_is_known() {
    for others in [false, true] {
        for fault in [Fault::LoseAnswer, Fault::ServerErrorApplied] {
            let fleet = Fleet::new().await;
            let limiter = builder(&fleet).await;
            let limits = [rpm(600)];
            let mut grant = granted(&limiter, &limits, &[("rpm", 5)]).await;
            fleet.fail(&[fault]);
            let dynamo = fleet.dynamo.clone();
            if others {
                // Between the write and the read that looks for it.
                fleet.dynamo.fail_reads(move |_, _| {
                    let mut item = dynamo.item(PK, "#STATE");
                    item["op"] = serde_json::json!({"S": "other"});
                    dynamo.put(&item);
                    None
                });
            }
            let adjusted = grant.adjust("rpm", 3).await;
            pass(secs(1)).await;
            match others {
                false => assert_eq!(adjusted.unwrap(), Settlement::Applied),
                true => assert!(adjusted.unwrap_err().is_unknown()),
            }
        }
    }
}

/// The timeout ends repetitions, and not the question what became of the write.
#[tokio::test(start_paused = true)]
async fn i7_a_settlement_whose_answer_is_lost_later_than_the_timeout_is_known_or_counted() {
    let slow = async || {
        let fleet = Fleet::slow(millis(300)).await;
        let builder = fleet.builder().await.timeout(millis(250));
        let limiter = builder.build().await.unwrap();
        (fleet, limiter)
    };
    fn ask(limiter: &RateLimiter) -> Acquire<'_> {
        fleet::ask(limiter, &[rpm(600)], &[("rpm", 5)]).timeout(secs(5))
    }
    let (fleet, limiter) = slow().await;
    let mut grant = ask(&limiter).send().await.unwrap().granted().unwrap();
    fleet.fail(&[Fault::LoseAnswer]);
    assert_eq!(grant.adjust("rpm", 3).await.unwrap(), Settlement::Applied);
    fleet.fail(&[Fault::LoseAnswer]);
    fleet.fail_reads(Fault::LoseRequest);
    let error = grant.roll_back().await.expect_err("nothing shows it");
    assert!(error.is_unknown(), "{error}");
    let stats = limiter.stats();
    assert_eq!((stats.unconfirmed, stats.unconfirmed_millitokens), (2, 3_000));
    // Under a lease, nothing is lost: the lease returns it.
    let (fleet, limiter) = slow().await;
    let leased = ask(&limiter).lease(secs(60)).send().await.unwrap();
    let grant = leased.granted().unwrap();
    fleet.fail(&[Fault::LoseAnswer]);
    assert!(grant.roll_back().await.unwrap_err().is_unknown());
    let stats = limiter.stats();
    assert_eq!((stats.unconfirmed, stats.unconfirmed_millitokens), (1, 0));
}

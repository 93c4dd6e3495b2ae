//! Two processes on one bucket, with random faults of every kind: grants never exceed what the
//! table shows as taken, and no slot is lost permanently.

use std::collections::VecDeque;
use weirgate_tests::fleet;

use proptest::prelude::*;
use weirgate::{Decision, Grant, Limit, Settlement};
use weirgate_shared::refill_between;
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{Fleet, ask, config, millis, pass, runtime, secs, settle};

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Which process, rate tokens, slots, under a lease.
    Take(bool, i64, i64, bool),
    Release(usize),
    Rollback(usize),
    Adjust(usize, i64),
    AdjustSlots(usize, i64),
    Renew(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<bool>(), 1..40_i64, 0..3_i64, any::<bool>()).prop_map(|(who, rate, slots, lease)| {
            Step::Take(who, rate, slots, lease)
        }),
        2 => any::<usize>().prop_map(Step::Release),
        2 => any::<usize>().prop_map(Step::Rollback),
        2 => (any::<usize>(), 0..60_i64).prop_map(|(which, tokens)| Step::Adjust(which, tokens)),
        1 => (any::<usize>(), 0..4_i64).prop_map(|(which, slots)| Step::AdjustSlots(which, slots)),
        1 => any::<usize>().prop_map(Step::Renew),
        3 => prop_oneof![0..2_000_u64, 0..40_000_u64].prop_map(Step::Pass),
    ]
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let fault = prop::sample::select(vec![
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Repeat,
        Fault::Throttle { key_range: true },
        Fault::Conflict,
        Fault::ServerError,
        Fault::ServerErrorApplied,
        Fault::Forbidden,
    ]);
    prop_oneof![2 => Just(None), 1 => fault.prop_map(Some)]
}

/// What the processes know: net rate consumption is at least `least`, and at most `most` and what
/// is in doubt.
#[derive(Debug, Default)]
struct Ledger {
    least: i64,
    most: i64,
    grants: VecDeque<Grant>,
    /// Whether rate tokens may have come back by the expiry of a lease.
    has_leases: bool,
}

impl Ledger {
    /// `more` was consumed, or less if negative; `None` if the outcome is unknown.
    fn consumed(&mut self, more: i64, happened: Option<bool>) {
        if happened != Some(false) {
            self.least += more.min(if happened.is_none() { 0 } else { i64::MAX });
            self.most += more.max(if happened.is_none() { 0 } else { i64::MIN });
        }
    }

    async fn step(&mut self, limiters: &[weirgate::RateLimiter; 2], limits: &[Limit], step: Step) {
        let happened = |answer: &Result<Settlement, weirgate::Error>| match answer {
            Ok(Settlement::Applied) => Some(true),
            Ok(Settlement::LeaseGone) => Some(false),
            Err(error) => (!error.is_unknown()).then_some(false),
        };
        let which = match step {
            Step::Pass(span) => return pass(millis(span)).await,
            Step::Take(who, rate, slots, lease) => {
                let takes = [("rpm", rate), ("slots", slots)];
                let takes = if slots == 0 { &takes[..1] } else { &takes[..] };
                let request = ask(&limiters[usize::from(who)], limits, takes);
                let request = if lease {
                    request.lease(secs(20))
                } else {
                    request
                };
                if let Ok(Decision::Granted(grant)) = request.send().await {
                    self.consumed(rate * 1000, Some(true));
                    self.grants.push_back(grant);
                }
                self.has_leases |= lease || slots > 0;
                return;
            }
            Step::Release(which) | Step::Rollback(which) | Step::Renew(which) => which,
            Step::Adjust(which, _) | Step::AdjustSlots(which, _) => which,
        };
        if self.grants.is_empty() {
            return;
        }
        let mut grant = self.grants.remove(which % self.grants.len()).unwrap();
        let held = grant.amount("rpm").0;
        match step {
            Step::Release(_) => drop(grant.release().await),
            Step::Rollback(_) => {
                // An expired lease was returned by the process that found it.
                let answer = grant.roll_back().await;
                self.consumed(-held, happened(&answer));
            }
            Step::Adjust(_, tokens) => {
                let answer = grant.adjust("rpm", tokens).await;
                self.consumed(tokens * 1000 - held, happened(&answer));
                self.grants.push_back(grant);
            }
            Step::AdjustSlots(_, slots) => {
                let _ = grant.adjust("slots", slots).await;
                self.grants.push_back(grant);
            }
            _ => {
                let _ = grant.renew(secs(20)).await;
                self.grants.push_back(grant);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn i1_i4_i7_two_processes_in_any_trouble(
        steps in prop::collection::vec(step(), 1..25),
        faults in prop::collection::vec(fault(), 0..40),
        skew_ms in -3_000..3_000_i64,
    ) {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let here = fleet.limiter().await;
            // The other process's clock differs.
            let skewed = weirgate::FakeClock::at(fleet::START);
            skewed.skew(skew_ms);
            let there = fleet.limiter_by(&skewed).await;
            let limiters = [here, there];
            let limits = [Limit::per_minute("rpm", 60).unwrap(), Limit::concurrent("slots", 5).unwrap()];
            let mut ledger = Ledger::default();
            let mut faults = faults.into_iter();
            fleet.dynamo.fail_when(move |_| faults.next().flatten());
            for step in steps {
                ledger.step(&limiters, &limits, step).await;
            }
            // Nothing fails any more.
            fleet.dynamo.fail_when(|_| None);
            settle().await;
            if fleet.dynamo.item(fleet::PK, "#STATE").is_null() {
                prop_assert_eq!(ledger.most, 0);
                return Ok(());
            }
            let bucket = fleet.bucket().await;
            let (rate, slots) = (bucket.limits["rpm"], bucket.limits["slots"]);
            let held = bucket.leases.iter().flatten().filter_map(|(_, lease)| lease.tokens.get("slots"));
            let leased: i64 = held.map(|held| held.0).sum();
            prop_assert_eq!(slots.available.0 + leased, 5_000, "I4: every slot is free or held by one lease");
            // I1: what was taken is no more than what was there and what flowed in by the faster
            // clock.
            let late = weirgate::EpochMillis(fleet.now().0 + skew_ms.max(0));
            let early = weirgate::EpochMillis(fleet::START.0 + skew_ms.min(0));
            let flowed = refill_between(&rate.rule, bucket.shard(), early, late);
            prop_assert!(rate.available.0 + rate.consumed.bounded().0 <= 60_000 + flowed.0, "{rate:?}");
            prop_assert!(bucket.balance(&rate, late) <= rate.rule.capacity);
            // I7: what the processes know is what the table says, but for what is in doubt or
            // expired.
            let doubt: u64 = limiters.iter().map(|limiter| limiter.stats().unconfirmed_millitokens).sum();
            let doubt = i64::try_from(doubt).unwrap();
            prop_assert!(rate.consumed.bounded().0 <= ledger.most + doubt, "{rate:?} {ledger:?} {doubt}");
            prop_assert!(ledger.has_leases || rate.consumed.bounded().0 >= ledger.least, "{rate:?} {ledger:?}");
            // All leases end, and all slots are there again.
            ledger.grants.into_iter().for_each(std::mem::forget);
            pass(secs(70)).await;
            let all = ask(&limiters[0], &limits, &[("slots", 5)]).send().await.unwrap();
            prop_assert!(all.is_granted(), "I4: {all:?}");
            Ok(())
        })?;
    }
}

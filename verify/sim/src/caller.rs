//! The actions of one caller: acquire, hold, adjust, release, stop waiting, drop.

mod call;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weirgate::{Acquire, Decision, Error, Grant, LimitStatus, RateLimiter, Settlement};

use call::Call;

use crate::cancel::cancel_after;
use crate::fault::{Event, Kind};
use crate::ledger::{ClaimIds, LimitIndex, SharedLedger};
use crate::scenario::{CLASS, Source};
use crate::world::World;

/// A caller of a process. The process's claims are listed, so that they end when it is killed.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The world.
    pub world: World,
    /// Limiter of the process.
    pub limiter: RateLimiter,
    /// Ledger of the callers' claims.
    pub ledger: SharedLedger,
    /// Claims of the whole process.
    pub held: Arc<Mutex<ClaimIds>>,
    /// Whether the process prefetches.
    pub takes_ahead: bool,
    /// Whether the process runs another release.
    pub is_of_release: bool,
}

impl Caller {
    /// Makes calls until faults are over.
    pub async fn run(self) {
        while !self.world.are_faults_over() {
            let comes_in_a_burst = self.world.rng().u32(..4) == 0;
            let pause = if comes_in_a_burst {
                self.until_burst()
            } else {
                self.below(self.world.scenario().pause)
            };
            self.world.pass(pause).await;
            let call = Call::draw(&self.world, comes_in_a_burst);
            let buckets = [Some(call.bucket), call.other].into_iter().flatten();
            if buckets.into_iter().any(|bucket| self.world.is_closed(bucket)) {
                continue;
            }
            let polls = self.world.threatens(Kind::CallerLeft).then(|| self.world.rng().u32(1..12));
            let sent = self.world.now().0;
            let asked = self.asked(&call);
            self.ledger.lock().asks(&asked);
            match cancel_after(self.ask(&call), polls).await {
                Some(Ok(Some(grants))) => {
                    // It may have been counted, or may yet be.
                    let is_uncounted = grants.iter().any(|grant| grant.degraded().is_some());
                    if is_uncounted {
                        self.world.happened(Event::GrantedUncounted);
                    } else {
                        self.ledger.lock().answered(&asked);
                    }
                    self.hold(&call, grants, sent).await;
                }
                // One of several parallel requests, or one whose level was stopped meanwhile, may have
                // been granted, and its rollback may be unconfirmed.
                Some(Ok(None)) if self.is_of_several(&call) => {}
                Some(Ok(None)) if self.world.scenario().stops() => {}
                Some(Ok(None)) => self.ledger.lock().answered(&asked),
                Some(Err(error)) => {
                    self.world.happened(Event::Unanswered);
                    self.world.note(|| format!("error {error}"));
                }
                None => {
                    self.world.count(Kind::CallerLeft);
                    self.world.note(|| "left".to_owned());
                }
            }
        }
    }

    fn below(&self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.world.rng().u64(0..=most))
    }

    /// Returns the time until the next burst. In a burst all callers call at once, as schedules do,
    /// perhaps on an idle bucket.
    fn until_burst(&self) -> Duration {
        const EVERY: i64 = 7_000;
        let left = EVERY - self.world.now().0.rem_euclid(EVERY);
        Duration::from_millis(left.unsigned_abs())
    }

    /// Returns where the caller's release has its limits.
    fn source(&self) -> Source {
        self.world.scenario().sources[usize::from(self.is_of_release)]
    }

    fn request(&self, bucket: usize, call: &Call, is_bypass: bool) -> Acquire<'_> {
        let scenario = self.world.scenario();
        let plan = &scenario.buckets[bucket];
        let mut request = self
            .limiter
            .acquire(&plan.entity, &plan.resource)
            .take("rate", self.rate(bucket, call));
        let later = plan.later.as_ref().filter(|_| self.is_of_release);
        let limits = later.unwrap_or(&plan.limits);
        let source = self.source();
        request = source.ask(request, limits);
        // Limits of the table may be others by now.
        if !limits[0].classes().is_empty()
            && matches!(source, Source::Code(_))
            && self.world.operator_rng().bool()
        {
            request = request.class(CLASS);
        }
        if call.slots > 0 && limits.len() > 1 {
            request = request
                .take("slots", call.slots.min(plan.limits[1].rule().capacity.whole_tokens()));
        }
        if is_bypass {
            return request.bypass();
        }
        if let Some(lease) = call.lease {
            request = request.lease(lease);
        }
        request
    }

    /// Sends the call's request. Returns its grants, or `None` if it was denied.
    async fn ask(&self, call: &Call) -> Result<Option<Vec<Grant>>, Error> {
        let Some(other) = call.other else {
            let decision = self
                .request(call.bucket, call, call.bypasses[0])
                .wait_up_to(call.wait)
                .send()
                .await?;
            self.answered(&decision);
            return Ok(decision.granted().map(|grant| vec![grant]));
        };
        let [first, second] = call.bypasses;
        let both = [(call.bucket, first), (other, second)]
            .map(|(bucket, is_bypass)| self.request(bucket, call, is_bypass));
        let both = self.limiter.acquire_all(both).wait_up_to(call.wait);
        let decision = both.send().await?;
        self.answered(&decision);
        Ok(decision.granted().map(|grants| {
            self.world.happened(Event::GrantedTogether);
            grants.into_iter().collect()
        }))
    }

    fn answered<G>(&self, decision: &Decision<G>) {
        match decision {
            Decision::Granted(_) if self.source() == Source::File => {
                self.world.happened(Event::GrantedByFile)
            }
            Decision::Granted(_) if self.is_of_release => {
                self.world.happened(Event::GrantedByRelease)
            }
            Decision::Granted(_) if self.takes_ahead => self.world.happened(Event::GrantedAhead),
            Decision::Granted(_) => self.world.happened(Event::Granted),
            _ => self.world.happened(Event::Denied),
        }
        self.world.note(|| match decision {
            Decision::Granted(_) => "granted".to_owned(),
            Decision::Denied(denied) => format!("{denied}"),
            Decision::NeverFits(never) => format!("{never}"),
            Decision::Disabled(disabled) => format!("{disabled}"),
        });
    }

    /// Returns the amounts that are taken if the call is granted, including those of parents.
    fn asked(&self, call: &Call) -> Vec<(LimitIndex, i64)> {
        let plans = &self.world.scenario().buckets;
        let buckets = [Some(call.bucket), call.other].into_iter().flatten();
        let charged = buckets.flat_map(|bucket| {
            let slots = plans[bucket]
                .limits
                .get(1)
                .map_or(0, |limit| call.slots.min(limit.rule().capacity.whole_tokens()));
            let amounts = [self.rate(bucket, call) * 1000, slots * 1000];
            [Some(bucket), plans[bucket].parent].into_iter().flatten().flat_map(move |of| {
                (0..plans[of].limits.len()).map(move |at| ((of, at), amounts[at]))
            })
        });
        charged.collect()
    }

    fn is_of_several(&self, call: &Call) -> bool {
        call.other.is_some() || self.world.scenario().buckets[call.bucket].parent.is_some()
    }

    /// Returns the number of rate tokens that the call takes from `bucket`.
    fn rate(&self, bucket: usize, call: &Call) -> i64 {
        call.rate
            .min(self.world.scenario().buckets[bucket].limits[0].rule().capacity.whole_tokens())
    }

    /// Returns the amounts that a grant of `bucket` stands for, including those of its parent. What
    /// the parent's limits lacked at that time was not taken of it.
    fn amounts(&self, bucket: usize, grant: &Grant) -> Vec<(LimitIndex, i64)> {
        let plans = &self.world.scenario().buckets;
        let seen = grant.limits();
        let is_taken = |of: usize, name: &str| {
            let is_of = |limit: &&LimitStatus| limit.entity.as_str() == plans[of].entity;
            let mut of_entity = seen.iter().filter(is_of).peekable();
            of_entity.peek().is_none()
                || of_entity.any(|limit| limit.limit == name && limit.is_requested)
        };
        let mut amounts = vec![];
        for of in [Some(bucket), plans[bucket].parent].into_iter().flatten() {
            for (at, limit) in plans[of].limits.iter().enumerate() {
                let name = limit.name().as_str();
                let amount = grant.amount(name).0;
                if amount > 0 && is_taken(of, name) {
                    amounts.push(((of, at), amount));
                }
            }
        }
        amounts
    }

    async fn hold(&self, call: &Call, grants: Vec<Grant>, sent: i64) {
        let buckets = [Some(call.bucket), call.other];
        let mut all = vec![];
        let requests = buckets.into_iter().flatten().zip(call.bypasses);
        for ((bucket, is_bypass), grant) in requests.zip(grants) {
            if is_bypass && grant.degraded().is_none() {
                self.world.happened(Event::GrantedByBypass);
            }
            let now = self.world.now().0;
            let amounts = self.amounts(bucket, &grant);
            let lease =
                grant.lease_id().zip(grant.expires_at()).map(|(id, at)| (id.to_owned(), at.0));
            let ids = self.ledger.lock().granted(&amounts, is_bypass, (sent, now), lease.as_ref());
            self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(&ids);
            self.world.note(|| format!("told {amounts:?} {ids:?}"));
            all.push((grant, ids));
        }
        if let Some(lease) = call.lease {
            let overruns = self.world.strikes(Kind::LeaseOverrun);
            let held = self.below(lease) + if overruns { lease } else { Duration::ZERO };
            self.world.pass(held).await;
        } else if self.world.scenario().deletes() {
            let held = self.world.operator_rng().u64(0..8_000);
            self.world.pass(Duration::from_millis(held)).await;
        }
        for (grant, ids) in all {
            self.settle(grant, ids).await;
        }
    }

    async fn settle(&self, mut grant: Grant, ids: ClaimIds) {
        let polls = self.world.threatens(Kind::CallerLeft).then(|| self.world.rng().u32(1..6));
        if self.world.strikes(Kind::GrantDropped) {
            self.ledger.lock().ends(&ids, self.world.now().0);
            drop(grant);
            return;
        }
        let what = self.world.rng().u32(..6);
        if what == 0 {
            // Slots have leases; another rate that was taken may be adjusted too.
            let has_second = grant.lease_id().is_none() && grant.amount("slots").0 > 0;
            let limit = usize::from(has_second && self.world.operator_rng().bool());
            let name = ["rate", "slots"][limit];
            let actual = self.world.rng().i64(0..=2 * grant.amount(name).whole_tokens().max(1));
            self.ledger.lock().adjusts(&ids, limit, actual * 1000, self.world.now().0);
            let done = cancel_after(grant.adjust(name, actual), polls).await;
            self.world.note(|| format!("adjusted {ids:?} to {actual} {done:?}"));
            self.ended(Event::Adjusted, &ids, done.as_ref());
        }
        if what == 1 && grant.lease_id().is_some() {
            let lasts = Duration::from_millis(self.world.rng().u64(1000..10_000));
            let done = cancel_after(grant.renew(lasts), polls).await;
            self.world.note(|| format!("renewed {ids:?} {done:?}"));
            if let (Some(Ok(Settlement::Applied)), Some(expires)) = (done, grant.expires_at()) {
                self.world.happened(Event::Renewed);
                self.ledger.lock().renewed(&ids, expires.0);
                let held = self.below(lasts);
                self.world.pass(held).await;
            }
        }
        let now = self.world.now().0;
        self.ledger.lock().ends(&ids, now);
        let has_lease = grant.lease_id().is_some();
        let done = if what == 2 {
            self.ledger.lock().goes_back(&ids, now);
            cancel_after(grant.roll_back(), polls).await
        } else {
            cancel_after(grant.release(), polls).await
        };
        self.world.note(|| format!("ended {ids:?} {done:?}"));
        let event = if what == 2 { Event::RolledBack } else { Event::Released };
        self.ended(event, &ids, done.as_ref());
        if matches!(done, Some(Ok(Settlement::Applied))) || !has_lease {
            self.ledger.lock().settled(&ids);
        }
    }

    /// Records the end of a grant. Confirmed returns cannot happen again. While processes prefetch,
    /// this cannot be said, because returned tokens may go to a process's pool.
    fn ended(&self, event: Event, ids: &ClaimIds, done: Option<&Result<Settlement, Error>>) {
        match done {
            None => self.world.count(Kind::CallerLeft),
            Some(Ok(Settlement::Applied)) => {
                self.world.happened(event);
                // A release returns nothing to a rate. An earlier, unconfirmed return may still
                // arrive.
                if event != Event::Released && self.world.scenario().prefetching == 0 {
                    self.ledger.lock().went_back(ids, self.world.now().0);
                }
            }
            Some(_) => {}
        }
    }
}

//! Kuadrant's calls: check, report, reserve, commit.
//!
//! A reservation is an acquire under a lease, and its id is the grant as text. So the reservation is
//! in the balance itself, and nothing is kept here.

use std::time::Duration;

use tokio::time::Instant;
use tonic::{Request, Response, Status};
use weirgate::{Error, Grant, Settlement};

use super::facts::record;
use super::failure::status_of;
use super::messages::{
    Code, CommitRequest, CommitResponse, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    ReserveRequest, ReserveResponse,
};
use super::plan::{Plan, Purpose, Step};
use super::service::{RateLimitService, outcome};
use crate::decide::{Call, Outcome, join_grants, restore_grants};
use crate::rules::Amount;

/// How long a reservation without a time is held, a minute.
const DEFAULT_TTL: Duration = Duration::from_secs(60);
/// Longest time of a lease, a day.
const MAX_TTL: Duration = Duration::from_secs(86_400);

impl RateLimitService {
    /// Answers `CheckRateLimit`: whether there is as much. Takes nothing.
    pub(super) async fn check(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.measured(request, Purpose::Check).await
    }

    /// Answers `Report`: debits what was used, into debt.
    pub(super) async fn report(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.measured(request, Purpose::Report).await
    }

    async fn measured(
        &self,
        request: Request<RateLimitRequest>,
        purpose: Purpose,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let started = Instant::now();
        let answer = self.answer(request, purpose).await;
        let outcome = outcome(answer.as_ref().map(|(_, decided)| decided));
        self.measure(Call::Kuadrant, outcome, started);
        answer.map(|(response, _)| response)
    }

    /// Answers `Reserve`: takes the amount of every descriptor under a lease, or nothing.
    pub(super) async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let started = Instant::now();
        let reserved = self.take(request).await;
        let outcome = match &reserved {
            Ok(response) if response.get_ref().code == i32::from(Code::OverLimit) => {
                Outcome::Denied
            }
            Ok(_) => Outcome::Granted,
            Err(status) => outcome(Err(status)),
        };
        self.measure(Call::Kuadrant, outcome, started);
        reserved
    }

    async fn take(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let (deadline, _permit) = self.admit(&request)?;
        let mut request = request.into_inner();
        let plan = self.plan(
            &request.domain,
            &mut request.descriptors,
            request.amount,
            Purpose::Reserve,
        )?;
        let ttl = request.ttl.map_or(Ok(DEFAULT_TTL), |ttl| {
            let time = u64::try_from(ttl.seconds)
                .ok()
                .zip(u32::try_from(ttl.nanos).ok());
            let time = time.map(|(seconds, nanos)| Duration::new(seconds, nanos.min(999_999_999)));
            time.filter(|time| *time >= Duration::from_millis(1) && *time <= MAX_TTL)
                .ok_or_else(|| {
                    let (seconds, nanos) = (ttl.seconds, ttl.nanos);
                    Status::invalid_argument(format!(
                        "ttl must be 1 ms to a day, got {seconds} s and {nanos} ns"
                    ))
                })
        })?;
        let decided = self.decided(&plan, deadline, Some(ttl)).await?;
        let is_denied = decided.refusal.is_some();
        let code = if is_denied { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(ReserveResponse {
            code: code.into(),
            reservation_id: join_grants(decided.grants),
        }))
    }

    /// Answers `Commit`: sets the reservation to what was used, and ends it. One that has ended
    /// already, or is unknown, is a report.
    pub(super) async fn commit(
        &self,
        request: Request<CommitRequest>,
    ) -> Result<Response<CommitResponse>, Status> {
        let started = Instant::now();
        let committed = self.settle(request).await;
        let outcome = committed
            .as_ref()
            .map_or_else(|status| outcome(Err(status)), |_| Outcome::Granted);
        self.measure(Call::Kuadrant, outcome, started);
        committed
    }

    async fn settle(
        &self,
        request: Request<CommitRequest>,
    ) -> Result<Response<CommitResponse>, Status> {
        let (deadline, _permit) = self.admit(&request)?;
        let mut request = request.into_inner();
        let plan = self.plan(
            &request.domain,
            &mut request.descriptors,
            request.actual_amount,
            Purpose::Report,
        )?;
        let used = i64::try_from(request.actual_amount).unwrap_or(i64::MAX);
        let ended = self.end(&plan, &request.reservation_id, used).await?;
        let is_released = ended.iter().all(|is_ended| *is_ended) && !ended.is_empty();
        // What was not held any more is debited now.
        let mut held = ended.into_iter().chain(std::iter::repeat(false));
        let mut steps = plan.steps;
        steps.retain(|step| !matches!(step, Step::Settle(_)) || held.next() == Some(false));
        record(&self.decider, &steps, deadline.at).await?;
        Ok(Response::new(CommitResponse {
            reservation_released: is_released,
        }))
    }

    /// Ends the grants of a reservation, of which the limits that count hits have `used`. Returns for
    /// each whether it was still held; nothing for an id that is none.
    async fn end(&self, plan: &Plan, reservation: &str, used: i64) -> Result<Vec<bool>, Status> {
        let Ok(grants) = restore_grants(&self.decider.limiter, reservation) else {
            return Ok(vec![]);
        };
        let mut ended = vec![];
        for (grant, step) in grants.into_iter().zip(asked(plan)) {
            let settlement = end(grant, step, used).await;
            ended.push(settlement.map_err(|error| status_of(&error))? == Settlement::Applied);
        }
        Ok(ended)
    }

    fn plan(
        &self,
        domain: &str,
        descriptors: &mut [RateLimitDescriptor],
        amount: u64,
        purpose: Purpose,
    ) -> Result<Plan, Status> {
        for descriptor in descriptors.iter_mut() {
            descriptor.hits_addend = Some(amount);
            descriptor.is_negative_hits = false;
        }
        Plan::with(&self.rules.rules(), domain, descriptors, 0, purpose)
            .map_err(Status::invalid_argument)
    }
}

/// Returns the steps of a report that a reservation took for.
fn asked(plan: &Plan) -> impl Iterator<Item = &Step> {
    plan.steps
        .iter()
        .filter(|step| matches!(step, Step::Settle(_)))
}

/// Sets what a grant has of the limits that count hits, and ends it.
async fn end(mut grant: Grant, step: &Step, used: i64) -> Result<Settlement, Error> {
    if let Step::Settle(parcel) = step {
        let takes = &parcel.bucket.terms.takes;
        for take in takes.iter().filter(|take| take.amount == Amount::Hits) {
            let settled = grant.adjust(&take.limit, used).await?;
            if settled == Settlement::LeaseGone {
                return Ok(settled);
            }
        }
    }
    grant.release().await
}

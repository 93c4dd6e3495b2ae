//! Kuadrant's calls: check, report, reserve, commit.
//!
//! A reservation is an acquire under a lease, and its id is the grant as text. So the reservation is
//! in the balance itself, and nothing is kept here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use weirgate::{Error, Grant, RateLimiter, Settlement};

use super::messages::{
    Code, CommitRequest, CommitResponse, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    ReserveRequest, ReserveResponse,
};
use super::plan::{MAX_HITS, Plan, Purpose, Step, too_large};
use super::reports::record;
use super::service::{RateLimitService, outcome};
use super::without_decision::status_of;
use crate::gated::{Call, GatedLimiter, Outcome, join_grants, restore_grants};
use crate::rules::{Amount, Bucket};

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
        let measuring = self.gated.measures.begin(Call::Kuadrant);
        let answer = self.answer(request, purpose).await;
        measuring.end(outcome(answer.as_ref().map(|(_, decided)| decided)));
        answer.map(|(response, _)| response)
    }

    /// Answers `Reserve`: takes the amount of every descriptor under a lease, or nothing.
    pub(super) async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let measuring = self.gated.measures.begin(Call::Kuadrant);
        let reserved = self.take(request).await;
        measuring.end(match &reserved {
            Ok(response) if response.get_ref().code == i32::from(Code::OverLimit) => {
                Outcome::Denied
            }
            Ok(_) => Outcome::Granted,
            Err(status) => outcome(Err(status)),
        });
        reserved
    }

    async fn take(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let (deadline, _permit) = self.admit(&request, &self.gated.gate)?;
        let mut request = request.into_inner();
        let plan =
            self.plan(&request.domain, &mut request.descriptors, request.amount, Purpose::Reserve)?;
        let ttl = request.ttl.map_or(Ok(DEFAULT_TTL), |ttl| {
            let time = u64::try_from(ttl.seconds).ok().zip(u32::try_from(ttl.nanos).ok());
            let time = time.map(|(seconds, nanos)| Duration::new(seconds, nanos.min(999_999_999)));
            time.filter(|time| *time >= Duration::from_millis(1) && *time <= MAX_TTL).ok_or_else(
                || {
                    let (seconds, nanos) = (ttl.seconds, ttl.nanos);
                    Status::invalid_argument(format!(
                        "ttl must be 1 ms to a day, got {seconds} s and {nanos} ns"
                    ))
                },
            )
        })?;
        let decided = self.decided(&plan, deadline, Some(ttl)).await?;
        let is_denied = decided.refusal.is_some();
        let code = if is_denied { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(ReserveResponse {
            code: code.into(),
            reservation_id: join(&plan, decided.grants),
        }))
    }

    /// Answers `Commit`: sets the reservation to what was used, and ends it. One that has expired, or
    /// is unknown, is a report. One that was committed before changes nothing.
    pub(super) async fn commit(
        &self,
        request: Request<CommitRequest>,
    ) -> Result<Response<CommitResponse>, Status> {
        let measuring = self.gated.measures.begin(Call::Kuadrant);
        let committed = self.settle(request).await;
        measuring.end(match &committed {
            Ok(_) => Outcome::Granted,
            Err(status) => outcome(Err(status)),
        });
        committed
    }

    async fn settle(
        &self,
        request: Request<CommitRequest>,
    ) -> Result<Response<CommitResponse>, Status> {
        let (deadline, permit) = self.admit(&request, &self.gated.settling)?;
        let mut request = request.into_inner();
        let plan = self.plan(
            &request.domain,
            &mut request.descriptors,
            request.actual_amount,
            Purpose::Report,
        )?;
        if request.actual_amount > MAX_HITS {
            return Err(Status::invalid_argument(too_large(request.actual_amount)));
        }
        let used = i64::try_from(request.actual_amount).unwrap_or(i64::MAX);
        let gated = Arc::clone(&self.gated);
        // In a task of its own, because a commit that has begun ends also if its caller leaves.
        let commit = tokio::spawn(async move {
            let id = &request.reservation_id;
            let committed = commit(&gated, plan, id, used, deadline.at).await;
            drop(permit);
            committed
        });
        match tokio::time::timeout_at(deadline.at, commit).await {
            Ok(Ok(committed)) => committed.map(|is_released| {
                Response::new(CommitResponse { reservation_released: is_released })
            }),
            Ok(Err(_)) => Err(Status::internal("the task of a commit failed")),
            Err(_) => Err(Status::aborted(
                "the commit was not done before the deadline, and is finished after it: do not repeat it",
            )),
        }
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

/// How the grant of a reservation ended.
enum Ended {
    /// By this commit.
    Now,
    /// By an earlier one.
    Before,
    /// By its expiry, with what was used.
    Expired(Step),
}

/// Stands before the key of each grant, behind the grants; no grant as text contains it.
const KEY: char = '~';
/// Bytes of a key's two parts.
const KEY_BYTES: usize = 6;

/// Returns the id of a reservation: the grants as text, and the key of what each was asked for. The text
/// alone does not tell that: an unlimited entity or a waived limit gives nothing.
fn join(plan: &Plan, grants: Vec<(usize, Grant)>) -> String {
    let keys = grants.iter().map(|(at, _)| key(&plan.steps[*at]));
    let keys: String = keys.flat_map(|key| [KEY.to_string(), key]).collect();
    join_grants(grants.into_iter().map(|(_, grant)| grant).collect()) + &keys
}

/// Returns the grants of a reservation with their keys; none if the id is unknown.
fn restore(limiter: &RateLimiter, id: &str) -> Vec<(Grant, String)> {
    let mut parts = id.split(KEY);
    let grants = restore_grants(limiter, parts.next().unwrap_or_default());
    let keys = parts.map(str::to_owned);
    grants.unwrap_or_default().into_iter().zip(keys).collect()
}

/// Returns a short text, whose first half is the same for steps of one bucket, and whose second half is for
/// those that take the same limits.
fn key(step: &Step) -> String {
    let (Step::Ask(part) | Step::Settle(part)) = step else {
        return String::new();
    };
    let Bucket { entity, resource, .. } = &part.bucket;
    let limits: BTreeSet<_> = part.amounts().map(|(limit, _)| limit).collect();
    // No name contains the separator.
    let half = |names: Vec<&str>| {
        let hash = Sha256::digest(names.join("#"));
        hash[..KEY_BYTES].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    half(vec![entity, resource]) + &half(limits.into_iter().collect())
}

/// Returns the place of the step that each grant is of, by its key. Rules that were edited meanwhile may take
/// other limits of the bucket.
fn places(steps: &[Step], grants: &[(Grant, String)]) -> Vec<Option<usize>> {
    let mut keys: Vec<_> = steps.iter().map(|step| Some(key(step))).collect();
    let mut places = vec![None; grants.len()];
    for length in [4 * KEY_BYTES, 2 * KEY_BYTES] {
        for (place, (grant, of_grant)) in places.iter_mut().zip(grants) {
            let half = of_grant.get(..length);
            let is_same = |key: &Option<String>| {
                half.is_some() && key.as_deref().and_then(|key| key.get(..length)) == half
            };
            // Nothing was counted of a decision without the table, so its usage is a report.
            if place.is_none() && grant.degraded().is_none() {
                *place = keys.iter().position(is_same);
                if let Some(at) = *place {
                    keys[at] = None;
                }
            }
        }
    }
    places
}

/// Ends all grants of a reservation, and debits what was used of those that have expired, and of what
/// no grant is of. Returns whether a grant was still held.
///
/// A repeated commit counts nothing twice: what an earlier one has ended is left alone.
async fn commit(
    gated: &GatedLimiter,
    plan: Plan,
    reservation: &str,
    used: i64,
    deadline: Instant,
) -> Result<bool, Status> {
    let grants = restore(&gated.limiter, reservation);
    let places = places(&plan.steps, &grants);
    let mut steps: Vec<_> = plan.steps.into_iter().map(Some).collect();
    let ends = grants.into_iter().zip(places);
    let ends = ends.map(|((grant, _), at)| end(grant, at.and_then(|at| steps[at].take()), used));
    let ends: Vec<_> = ends.collect();
    let mut steps: Vec<_> = steps.into_iter().flatten().collect();
    let (mut is_released, mut failed) = (false, None);
    for ended in join_all(ends).await {
        match ended {
            Ok(Ended::Now) => is_released = true,
            Ok(Ended::Before) => {}
            Ok(Ended::Expired(step)) => steps.push(step),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        return Err(status_of(&error));
    }
    match record(gated, &steps, 0, deadline).await?.refused {
        Some(refused) => Err(refused),
        None => Ok(is_released),
    }
}

/// Sets what a grant has of the limits that count hits, and ends it.
async fn end(mut grant: Grant, step: Option<Step>, used: i64) -> Result<Ended, Error> {
    if grant.has_expired()
        && let Some(step) = step
    {
        // Some of its buckets may have ended it and others not: what is held returns, and all is reported.
        let _ = grant.roll_back().await?;
        return Ok(Ended::Expired(step));
    }
    if let Some(Step::Settle(part)) = &step {
        let takes = &part.bucket.terms.takes;
        for take in takes.iter().filter(|take| take.amount == Amount::Hits) {
            // The lease also differs if an earlier commit has adjusted it and not ended it.
            let _ = grant.adjust(&take.limit, used).await?;
        }
    }
    let has_expired = grant.has_expired();
    Ok(match (grant.release().await?, step) {
        (Settlement::Applied, _) => Ended::Now,
        (Settlement::LeaseGone, Some(step)) if has_expired => Ended::Expired(step),
        (Settlement::LeaseGone, _) => Ended::Before,
    })
}

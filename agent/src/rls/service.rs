//! One call, before its deadline.

use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};
use weirgate::{Denied, Error, OnUnavailable, RateLimiter};

use super::answer::answer;
use super::deadline::Deadline;
use super::decide::{Decided, Refusal, decide};
use super::facts::Facts;
use super::messages::{RateLimitRequest, RateLimitResponse};
use super::plan::{Plan, Purpose};
use super::standing::Standing;
use crate::rules::RulesSource;

/// Options of the service.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Longest time for an answer, if the caller gives no earlier deadline.
    pub timeout: Duration,
    /// Answer if there is no decision in time, as the limiter has it.
    pub on_unavailable: OnUnavailable,
    /// Most calls at the same time; further ones are refused.
    pub max_in_flight: usize,
}

impl Default for Options {
    /// 1 s, an error, 10,000 calls.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1),
            on_unavailable: OnUnavailable::Error,
            max_in_flight: 10_000,
        }
    }
}

/// The rate limit service of Envoy, and that of Kuadrant.
#[derive(Debug)]
pub struct RateLimitService {
    pub(super) limiter: RateLimiter,
    pub(super) rules: RulesSource,
    pub(super) options: Options,
    pub(super) facts: Facts,
    in_flight: Semaphore,
}

impl RateLimitService {
    /// Creates the service.
    #[must_use]
    pub fn new(limiter: RateLimiter, rules: RulesSource, options: Options) -> Self {
        Self {
            limiter,
            rules,
            facts: Facts::new(),
            in_flight: Semaphore::new(options.max_in_flight.min(Semaphore::MAX_PERMITS)),
            options,
        }
    }

    /// Answers Envoy's `ShouldRateLimit`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a request that a caller must change, `UNAVAILABLE` if no decision could
    /// be made for now, `FAILED_PRECONDITION` and `INTERNAL` until a repair.
    pub async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.call(request, Purpose::Decide).await
    }

    pub(super) async fn call(
        &self,
        request: Request<RateLimitRequest>,
        purpose: Purpose,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (deadline, _permit) = self.admit(request.metadata())?;
        let RateLimitRequest {
            domain,
            descriptors,
            hits_addend,
        } = request.into_inner();
        let plan = Plan::with(
            &self.rules.rules(),
            &domain,
            &descriptors,
            hits_addend,
            purpose,
        )
        .map_err(Status::invalid_argument)?;
        let recorded = self
            .facts
            .record(&self.limiter, &plan.steps, deadline.at)
            .await;
        recorded?;
        let decided = self.decided(&plan, deadline, None).await?;
        Ok(Response::new(answer(&plan, &decided)))
    }

    /// Returns the deadline of a call, and the permit that it holds.
    pub(super) fn admit(
        &self,
        metadata: &MetadataMap,
    ) -> Result<(Deadline, tokio::sync::SemaphorePermit<'_>), Status> {
        let permit = self.in_flight.try_acquire().map_err(|_| {
            let most = self.options.max_in_flight;
            Status::unavailable(format!(
                "{most} calls are being answered, as many as may be: try again, or raise --max-in-flight"
            ))
        })?;
        Ok((Deadline::new(metadata, self.options.timeout), permit))
    }

    /// Returns the decision, or that of the option if there is none in time.
    pub(super) async fn decided(
        &self,
        plan: &Plan,
        deadline: Deadline,
        lease: Option<Duration>,
    ) -> Result<Decided, Status> {
        let decision = decide(&self.limiter, plan, deadline.decision, lease);
        match tokio::time::timeout_at(deadline.at, decision).await {
            Ok(decided) => decided.map_err(|error| status_of(&error)),
            Err(_) => self.undecided(plan),
        }
    }

    /// Returns the answer of the option to a call without a decision.
    fn undecided(&self, plan: &Plan) -> Result<Decided, Status> {
        let is_over = match self.options.on_unavailable {
            OnUnavailable::Allow => false,
            OnUnavailable::Deny => true,
            // A local bucket decides in the limiter, which had no time for it.
            OnUnavailable::Error | OnUnavailable::Local { .. } => {
                return Err(Status::unavailable(
                    "no decision before the deadline: nothing was taken; give the filter a timeout of 0.25s",
                ));
            }
        };
        let standing = |_| Standing {
            is_over,
            ..Standing::default()
        };
        let denied = Denied {
            retry_after: Some(Duration::from_secs(1)),
            limits: vec![],
            degraded: None,
        };
        Ok(Decided {
            standings: plan.steps.iter().map(standing).collect(),
            refusal: is_over.then_some(Refusal::Denied(denied)),
            limits: vec![],
            grants: vec![],
        })
    }
}

/// Returns the status for a call without a decision. Never a code that a proxy takes for a decision.
pub(super) fn status_of(error: &Error) -> Status {
    if error.is_transient() {
        return Status::unavailable(error.to_string());
    }
    tracing::warn!(%error, "no decision until a repair");
    match error {
        Error::Invalid(_) | Error::NotConfigured { .. } => {
            Status::failed_precondition(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

//! One call, before its deadline.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};
use weirgate::OnUnavailable;

use super::answers::answer;
use super::decision::{Decided, Refusal, decide};
use super::messages::{RateLimitRequest, RateLimitResponse};
use super::plan::{Plan, Purpose};
use super::reports::record;
use super::without_decision::{Deadline, OVERLOADED, overloaded, reported, status_of};
use crate::gated::{Call, Gate, GatedLimiter, Outcome, Permit};
use crate::rules::RulesSource;
use crate::token::Token;

/// Options of the service.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Longest time for an answer, 1 s by default, if the caller gives no earlier deadline.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(1) }
    }
}

/// The rate limit service of Envoy, and that of Kuadrant.
#[derive(Debug)]
pub struct RateLimitService {
    pub(super) gated: Arc<GatedLimiter>,
    pub(super) rules: RulesSource,
    options: Options,
    token: Option<Token>,
}

impl RateLimitService {
    /// Creates the service.
    #[must_use]
    pub const fn new(gated: Arc<GatedLimiter>, rules: RulesSource, options: Options) -> Self {
        Self { gated, rules, options, token: None }
    }

    /// Requires a secret of every call, in the metadata `x-weirgate-token`.
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token, ..self }
    }

    /// Checks that a call shows the secret, if there is one.
    pub(super) fn authenticate(&self, metadata: &http::HeaderMap) -> Result<(), Status> {
        match &self.token {
            Some(token) => token.check(metadata).map_err(Status::unauthenticated),
            None => Ok(()),
        }
    }

    /// Answers Envoy's `ShouldRateLimit`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a request that a caller must change, `UNAVAILABLE` if no decision could
    /// be made for now, `ABORTED` instead if reports of the call are written, `FAILED_PRECONDITION` and `INTERNAL` until a repair.
    pub async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let measuring = self.gated.measures.begin(Call::ShouldRateLimit);
        let answer = self.answer(request, Purpose::Decide).await;
        measuring.end(outcome(answer.as_ref().map(|(_, decided)| decided)));
        answer.map(|(response, _)| response)
    }

    /// Answers a call of this purpose, with the decision behind the answer.
    pub(super) async fn answer(
        &self,
        request: Request<RateLimitRequest>,
        purpose: Purpose,
    ) -> Result<(Response<RateLimitResponse>, Decided), Status> {
        let deadline = Deadline::new(&request, self.options.timeout);
        let bytes = request.get_ref().encoded_len();
        let RateLimitRequest { domain, descriptors, hits_addend } = request.into_inner();
        let rules = self.rules.rules();
        let plan = Plan::with(&rules, &domain, &descriptors, hits_addend, purpose)
            .map_err(Status::invalid_argument)?;
        let (_permit, of_reports, reports_until) = match plan.has_questions() {
            true => {
                let permit = self.gated.gate.enter(bytes).map_err(overloaded)?;
                (Some(permit), 0, Instant::now() + deadline.half())
            }
            // What frees tokens never waits for those that wait for tokens.
            false => (None, bytes, deadline.at),
        };
        let recorded = record(&self.gated, &plan.steps, of_reports, reports_until).await?;
        if let Some(refused) = recorded.refused.filter(|_| !plan.has_questions()) {
            return Err(refused);
        }
        let decided = self.decided(&plan, deadline, None).await;
        let decided = decided.map_err(|status| match recorded.is_written {
            true => reported(status),
            false => status,
        })?;
        Ok((Response::new(answer(&plan, &decided)), decided))
    }

    /// Returns the deadline of a call, and its permit.
    pub(super) fn admit<M: Message>(
        &self,
        request: &Request<M>,
        gate: &Gate,
    ) -> Result<(Deadline, Permit), Status> {
        let bytes = request.get_ref().encoded_len();
        let permit = gate.enter(bytes).map_err(overloaded)?;
        Ok((Deadline::new(request, self.options.timeout), permit))
    }

    /// Returns the decision, or that of the limiter for an outage if there is none in time.
    pub(super) async fn decided(
        &self,
        plan: &Plan,
        deadline: Deadline,
        lease: Option<Duration>,
    ) -> Result<Decided, Status> {
        let decision = decide(&self.gated.limiter, plan, deadline, lease);
        match tokio::time::timeout_at(deadline.at, decision).await {
            Ok(decided) => decided.map_err(|error| status_of(&error)),
            Err(_) => self.undecided(plan),
        }
    }

    /// Returns the answer to a call without a decision.
    fn undecided(&self, plan: &Plan) -> Result<Decided, Status> {
        let limiter = &self.gated.limiter;
        let mut decided = Decided::begin(plan, limiter);
        match limiter.on_unavailable() {
            OnUnavailable::Allow => {}
            OnUnavailable::Deny => decided.deny(plan, limiter),
            // A local bucket decides in the limiter, which had no time for it.
            OnUnavailable::Error | OnUnavailable::Local { .. } => {
                return Err(Status::unavailable(
                    "no decision before the deadline: nothing was taken; give the filter a timeout of 0.25s",
                ));
            }
        }
        Ok(decided)
    }
}

/// Returns how a call ended.
pub(super) fn outcome(answer: Result<&Decided, &Status>) -> Outcome {
    match answer {
        Ok(decided) => match decided.refusal {
            None => Outcome::Granted,
            Some(Refusal::Denied(_)) => Outcome::Denied,
            Some(Refusal::NeverFits(_)) => Outcome::NeverFits,
            Some(Refusal::Disabled(_)) => Outcome::Disabled,
        },
        Err(status) => match status.code() {
            Code::InvalidArgument => Outcome::Invalid,
            Code::Unavailable if status.metadata().contains_key(OVERLOADED) => Outcome::Overloaded,
            _ => Outcome::NoDecision,
        },
    }
}

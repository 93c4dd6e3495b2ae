//! One call, before its deadline.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::time::Instant;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Request, Response, Status};
use weirgate::{Error, OnUnavailable};

use super::decision::Refusal;
use super::decision::{Decided, decide};
use super::messages::{MAX_MESSAGE_BYTES, RateLimitRequest, RateLimitResponse};
use super::plan::{Plan, Purpose};
use super::reports::record;
use super::statuses::answer;
use crate::gated::{Call, Full, Gate, GatedLimiter, Outcome, Permit};
use crate::net::stream::{ARRIVAL, Unread};
use crate::rules::RulesSource;
use crate::token::Token;

/// Options of the service.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Longest time for an answer, 1 s by default, if the caller gives no earlier deadline.
    pub timeout: Duration,
    /// Answer if there is no decision in time: that of the limiter.
    pub on_unavailable: OnUnavailable,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1),
            on_unavailable: OnUnavailable::Error,
        }
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
        Self {
            gated,
            rules,
            options,
            token: None,
        }
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
        let gate = match purpose {
            Purpose::Report => &self.gated.settling,
            _ => &self.gated.gate,
        };
        let (deadline, _permit) = self.admit(&request, gate)?;
        let RateLimitRequest {
            domain,
            descriptors,
            hits_addend,
        } = request.into_inner();
        let rules = self.rules.rules();
        let plan = Plan::with(&rules, &domain, &descriptors, hits_addend, purpose)
            .map_err(Status::invalid_argument)?;
        let reports_until = match plan.has_questions() {
            true => Instant::now() + deadline.half(),
            false => deadline.at,
        };
        let recorded = record(&self.gated, &plan.steps, reports_until).await?;
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

    /// Returns the decision, or that of the option if there is none in time.
    pub(super) async fn decided(
        &self,
        plan: &Plan,
        deadline: Deadline,
        lease: Option<Duration>,
    ) -> Result<Decided, Status> {
        let on_unavailable = self.options.on_unavailable;
        let decision = decide(&self.gated.limiter, plan, deadline, lease, on_unavailable);
        match tokio::time::timeout_at(deadline.at, decision).await {
            Ok(decided) => decided.map_err(|error| status_of(&error)),
            Err(_) => self.undecided(plan),
        }
    }

    /// Returns the answer of the option to a call without a decision.
    fn undecided(&self, plan: &Plan) -> Result<Decided, Status> {
        let limiter = &self.gated.limiter;
        let mut decided = Decided::begin(plan, limiter);
        match self.options.on_unavailable {
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

/// Time for the call and its answer on their way, 5 ms, or a quarter of a short time.
const MARGIN: Duration = Duration::from_millis(5);
/// Time that the limiter waits beyond its timeout for a request that hangs, 20 ms.
const LIMITER_GRACE: Duration = Duration::from_millis(20);

/// When a call arrived, before its message was decoded: an extension of its request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival(pub(super) Instant);

/// Times of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    /// When the answer must leave.
    pub(super) at: Instant,
}

impl Deadline {
    /// Returns the deadline of a call: by the caller's `grpc-timeout`, less the time
    /// of the answer, or by `longest` if that is earlier.
    pub(super) fn new<M>(request: &Request<M>, longest: Duration) -> Self {
        let arrival = request.extensions().get::<Arrival>();
        let begun = arrival.map_or_else(Instant::now, |arrival| arrival.0);
        let given = request
            .metadata()
            .get("grpc-timeout")
            .and_then(|value| parse(value.to_str().ok()?))
            .map(|timeout| timeout - MARGIN.min(timeout / 4));
        let left = given.map_or(longest, |given| given.min(longest));
        Self { at: begun + left }
    }

    /// Returns the time for a decision from now on: the limiter takes a quarter more for the switches
    /// and 20 ms for a request that hangs, and then decides without DynamoDB. Less than 60 ms is too
    /// little for that.
    pub(super) fn decision(&self) -> Duration {
        let left = self.left();
        let is_long = left >= LIMITER_GRACE * 3;
        let grace = if is_long {
            LIMITER_GRACE
        } else {
            Duration::ZERO
        };
        (left - grace) / 5 * 3
    }

    /// Returns half of the time from now on, for what comes before a decision.
    pub(super) fn half(&self) -> Duration {
        self.left() / 2
    }

    fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}

/// Reads a `grpc-timeout`: up to eight digits and a unit.
fn parse(value: &str) -> Option<Duration> {
    let unit = value.chars().last()?;
    let number = &value[..value.len().checked_sub(unit.len_utf8())?];
    let is_number = (1..=8).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        'H' => Duration::from_secs(number * 3_600),
        'M' => Duration::from_secs(number * 60),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Metadata of the answer to a call too many.
pub(super) const OVERLOADED: &str = "weirgate-overloaded";

/// Returns the status for a call too many.
pub(super) fn overloaded(full: Full) -> Status {
    too_many(format!("{full}: try again, or raise --max-in-flight"))
}

/// Returns the status for a call that arrived so slowly that others took its room.
pub(super) fn gave_way() -> Status {
    too_many("too many calls are arriving at once: try again, or run more agents".to_owned())
}

/// Returns the status for a call whose message was not read.
pub(super) fn unread(unread: Unread) -> Status {
    match unread {
        Unread::TooLarge(length) => Status::out_of_range(format!(
            "the message is above its limit of {MAX_MESSAGE_BYTES} bytes, got {length}: send fewer descriptors"
        )),
        Unread::Late => Status::deadline_exceeded(format!(
            "the message must arrive within {ARRIVAL:?}: send it at once"
        )),
        Unread::GaveWay => gave_way(),
        Unread::Broken(error) => Status::internal(format!(
            "the message did not arrive whole: {error}; send it again"
        )),
    }
}

fn too_many(text: String) -> Status {
    let mut status = Status::unavailable(text);
    let metadata = status.metadata_mut();
    metadata.insert(OVERLOADED, AsciiMetadataValue::from_static("true"));
    status
}

/// Returns the status for a call of which reports are written, or may be: one that is not retried,
/// because a repeated call would count them twice.
pub(super) fn reported(status: Status) -> Status {
    if status.code() != Code::Unavailable {
        return status;
    }
    Status::aborted(format!(
        "{}; reports of this call may be written: do not repeat it",
        status.message()
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_a_grpc_timeout_is_read_and_nothing_else() {
        let ms = |value| parse(value).map(|time| time.as_millis());
        assert_eq!(ms("20m"), Some(20));
        assert_eq!(ms("1S"), Some(1_000));
        assert_eq!(ms("2M"), Some(120_000));
        assert_eq!(ms("1H"), Some(3_600_000));
        assert_eq!(ms("20000u"), Some(20));
        assert_eq!(ms("99999999n"), Some(99));
        for bad in ["", "m", "20", "123456789m", "-1m", "+1m", "1ms", "1é"] {
            assert_eq!(ms(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_answer_leaves_before_the_callers_deadline() {
        let ms = Duration::from_millis;
        let deadline = |timeout: Option<&'static str>| {
            let mut request = Request::new(());
            if let Some(timeout) = timeout {
                let metadata = request.metadata_mut();
                metadata.insert("grpc-timeout", timeout.parse().unwrap());
            }
            let arrival = Instant::now();
            request.extensions_mut().insert(Arrival(arrival));
            let deadline = Deadline::new(&request, Duration::from_secs(1));
            let most = deadline.decision() / 4 * 5;
            let is_long = deadline.at - arrival > ms(60);
            assert!(most + ms(if is_long { 20 } else { 0 }) < deadline.at - arrival);
            deadline.at - arrival
        };
        assert_eq!(deadline(Some("250m")), ms(245));
        assert_eq!(deadline(Some("20m")), ms(15));
        assert_eq!(deadline(Some("8m")), ms(6));
        for longest in [None, Some("5S"), Some("no")] {
            assert_eq!(deadline(longest), ms(1_000));
        }
    }
}

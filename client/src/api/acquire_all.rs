//! Several requests, all granted or none.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::time::Instant;
use weirgate_shared::{EpochMillis, PlanName};

use super::acquire::Acquire;
use super::limiter::RateLimiter;
use crate::config::Freshness;
use crate::decide::{
    Decision, Grant, Granted, ResolvedRequest, Uncounted, count_decision, decide, instrumented,
};
use crate::session::deadline;
use crate::values::{
    AcquireOptions, Disabled, Error, OnUnavailable, RequestSpec, Settlement, check_on_unavailable,
};

/// Most requests in one decision, 100.
const MAX_REQUESTS: usize = 100;

impl RateLimiter {
    /// Requests tokens of several buckets, all or none.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, limits: [weirgate::Limit; 1]) -> Result<(), weirgate::Error> {
    /// let both = [
    ///     limiter.acquire("user-123", "gpt-4").limits(&limits).take("tpm", 1_500),
    ///     limiter.acquire("user-123", "search").limits(&limits).take("tpm", 10),
    /// ];
    /// if let weirgate::Decision::Granted(mut grants) = limiter.acquire_all(both).send().await? {
    ///     let _ = grants[0].adjust("tpm", 1_213).await?;
    ///     let _ = grants.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all<'a>(
        &'a self,
        requests: impl IntoIterator<Item = Acquire<'a>>,
    ) -> AcquireAll<'a> {
        AcquireAll::new(self, requests.into_iter().collect())
    }
}

/// Requests on several buckets, all granted or none. Nothing happens until [`send`](Self::send).
///
/// Tokens are taken from all buckets at the same time. If one denies, the tokens of the others return, with one
/// write each; until then other requests may be denied those tokens.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct AcquireAll<'a> {
    limiter: &'a RateLimiter,
    requests: Vec<Acquire<'a>>,
    options: AcquireOptions,
    queue: Option<Duration>,
}

impl<'a> AcquireAll<'a> {
    pub(crate) fn new(limiter: &'a RateLimiter, requests: Vec<Acquire<'a>>) -> Self {
        let on_unavailable = limiter.session.settings.on_unavailable;
        let all = |is: fn(&AcquireOptions) -> bool| {
            let mut requests = requests.iter().map(Acquire::request);
            requests.all(|request| is(&request.options))
        };
        let is_bypass = all(|options| options.is_bypass);
        let is_shadow = all(|options| options.is_shadow);
        let needs_table = all(|options| options.needs_table);
        Self {
            limiter,
            requests,
            options: AcquireOptions {
                needs_table,
                is_bypass,
                is_shadow,
                ..AcquireOptions::of(on_unavailable)
            },
            queue: None,
        }
    }

    /// Waits up to this long for all the tokens before it denies. A wait that cannot succeed does
    /// not begin.
    pub const fn wait_up_to(mut self, wait: Duration) -> Self {
        self.options.wait = wait;
        self
    }

    /// Queues all requests for up to this long, as [`Acquire::queue_up_to`] does: all are granted,
    /// and start at the latest start of one, or none is.
    pub const fn queue_up_to(mut self, wait: Duration) -> Self {
        self.queue = Some(wait);
        self
    }

    /// Sets the decision if DynamoDB is unavailable, instead of the
    /// [limiter's](crate::Builder::on_unavailable) and the requests' settings.
    pub const fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.options.on_unavailable = on_unavailable;
        self
    }

    /// Sends the requests.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is sent: no request or more than 100, a request that is
    /// invalid, has its own `wait_up_to` or `queue_up_to`, or belongs to another limiter.
    /// The other errors if no decision could be made.
    pub async fn send(mut self) -> Result<Decision<Grants>, Error> {
        self.limiter.session.at_home(async {
        let invalid = |message: String| Err(Error::Invalid(message));
        let count = self.requests.len();
        if count == 0 || count > MAX_REQUESTS {
            return invalid(format!(
                "acquire_all needs 1 to {MAX_REQUESTS} requests, got {count}"
            ));
        }
        for request in &mut self.requests {
            if !Arc::ptr_eq(&request.limiter().session, &self.limiter.session) {
                return invalid(
                    "a request belongs to another limiter: create all requests with the limiter that sends them"
                        .to_owned(),
                );
            }
            if !request.request().options.wait.is_zero() {
                return invalid(
                    "a request of several has a time to wait of its own: set one for all of them"
                        .to_owned(),
                );
            }
            if self.queue.is_some() && !self.options.wait.is_zero() || !request.queue_with(self.queue) {
                return invalid(
                    "queue_up_to is set for one request of several, or beside wait_up_to: set one of them, for all requests"
                        .to_owned(),
                );
            }
            request.request().validate()?;
        }
        check_on_unavailable(self.options.on_unavailable)?;
        let (session, mut parts) = (&self.limiter.session, vec![]);
        let decision = {
            let decision = pin!(self.decision(&mut parts));
            instrumented(session, "several", "several", decision).await?
        };
        count_decision(session, &decision);
        Ok(decision.map(|given| {
            let mut all = given.by_bucket.into_iter();
            let grant = |part: RequestPart| {
                let uncounted = match given.uncounted {
                    Uncounted::Any => Uncounted::Any,
                    Uncounted::Limits(_) => part.uncounted,
                };
                let granted = Granted {
                    by_bucket: all.by_ref().take(part.buckets).collect(),
                    degraded: given.degraded.clone(),
                    uncounted,
                    missing_plan: part.missing_plan,
                };
                Grant::of(granted, session)
            };
            Grants(parts.into_iter().map(grant).collect())
        }))
        }).await
    }

    /// Sends the requests, and returns their grants at once, as [`Acquire::send_now`] does.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_now(mut self) -> Result<Decision<Grants>, Error> {
        self.options.is_now = true;
        self.send().await
    }

    /// Returns the decision, and what of it is of each request. A request in shadow mode on a level
    /// that is stopped or disabled takes nothing, and the others are decided without it.
    async fn decision(&self, parts: &mut Vec<RequestPart>) -> Result<Decision<Granted>, Error> {
        let mut left_out = vec![false; self.requests.len()];
        // The one with the least time counts.
        let timeouts = self.requests.iter().map(|request| request.request().timeout);
        let timeout = timeouts.min().unwrap_or_default();
        let can_wait = self.queue.is_some() || !self.options.wait.is_zero();
        let (mut answer_by, mut give_up) = (deadline(timeout), None);
        loop {
            let attempt = self.attempt(&left_out, parts, &mut give_up, answer_by);
            match attempt.await? {
                None => {}
                Some(Decision::Disabled(disabled)) if self.leave_out(&disabled, &mut left_out) => {}
                Some(decision) => return Ok(decision),
            }
            // A wait has ended, by what it was for or by a stop.
            if can_wait {
                answer_by = deadline(timeout);
            }
        }
    }

    async fn attempt(
        &self,
        left_out: &[bool],
        parts: &mut Vec<RequestPart>,
        give_up: &mut Option<Instant>,
        answer_by: Instant,
    ) -> Result<Option<Decision<Granted>>, Error> {
        let mut decide_by = async |targets| {
            let (session, local_buckets) = (&self.limiter.session, &self.limiter.local_buckets);
            let (options, give_up) = (self.options, &mut *give_up);
            decide(session, local_buckets, targets, options, give_up, answer_by).await
        };
        let age = Freshness::AnyAge;
        let targets = self.targets(age, left_out, parts, answer_by).await;
        let is_old = targets.as_ref().is_ok_and(|all| all.limits_may_be_stale);
        let attempt = decide_by(targets).await?;
        if is_old && matches!(attempt, Some(Decision::NeverFits(_))) {
            // A permanent denial must not rest on limits that may have been raised since.
            let age = Freshness::Recent;
            return decide_by(self.targets(age, left_out, parts, answer_by).await).await;
        }
        Ok(attempt)
    }

    /// Leaves out the requests in shadow mode on a disabled bucket: those of the bucket, or all in
    /// shadow mode if it is a parent's. Returns whether that changes the decision: not if an
    /// enforced request is on the bucket, or no other is left.
    fn leave_out(&self, disabled: &Disabled, left_out: &mut [bool]) -> bool {
        let is_on = |request: &RequestSpec| {
            request.entity == disabled.entity.as_str()
                && request.resource == disabled.resource.as_str()
        };
        let all = || self.requests.iter().map(Acquire::request);
        let is_parents = !all().any(is_on);
        let leaves =
            |request: &RequestSpec| request.options.is_shadow && (is_parents || is_on(request));
        let is_enforced_on = all().any(|request| is_on(request) && !request.options.is_shadow);
        let has_enforced = all().any(|request| !request.options.is_shadow);
        let mut has_changed = false;
        if is_enforced_on || !has_enforced {
            return has_changed;
        }
        for (request, is_left_out) in all().zip(left_out) {
            has_changed |= leaves(request) && !*is_left_out;
            *is_left_out |= leaves(request);
        }
        has_changed
    }

    /// Returns the buckets of all requests that are not left out, and what of them is of each.
    async fn targets(
        &self,
        age: Freshness,
        left_out: &[bool],
        parts: &mut Vec<RequestPart>,
        answer_by: Instant,
    ) -> Result<ResolvedRequest, Error> {
        parts.clear();
        parts.resize_with(self.requests.len(), RequestPart::default);
        let mut requests = vec![];
        for (request, is_left_out) in self.requests.iter().zip(left_out) {
            requests.push(async move {
                match is_left_out {
                    true => Ok(ResolvedRequest {
                        uncounted: Uncounted::Any,
                        ..ResolvedRequest::default()
                    }),
                    false => {
                        let (request, buckets) = (request.request(), &self.limiter.buckets);
                        request.targets(buckets, age, answer_by).await
                    }
                }
            });
        }
        let all = try_join_all(requests).await?;
        let part = |asked: &ResolvedRequest| RequestPart {
            buckets: asked.targets.len(),
            uncounted: asked.uncounted.clone(),
            missing_plan: asked.missing_plan.clone(),
        };
        *parts = all.iter().map(part).collect();
        Ok(all.into_iter().fold(ResolvedRequest::default(), ResolvedRequest::merge))
    }
}

/// What of a decision is of one request.
#[derive(Debug, Default)]
struct RequestPart {
    /// Number of its buckets.
    buckets: usize,
    uncounted: Uncounted,
    /// Plan of its entity or of an ancestor that does not exist.
    missing_plan: Option<PlanName>,
}

/// The grants of several requests, in their order. Each can be adjusted; all can be released or
/// rolled back together.
#[derive(Debug)]
#[must_use = "dropping a grant releases its slots"]
pub struct Grants(Vec<Grant>);

impl Grants {
    /// [Releases](Grant::release) all.
    ///
    /// # Errors
    /// The first error; the other grants are released anyway.
    pub async fn release(self) -> Result<Settlement, Error> {
        Settlement::all(join_all(self.0.into_iter().map(Grant::release)).await)
    }

    /// Returns when all start that queued: the latest [start](Grant::starts_at).
    #[must_use]
    pub fn starts_at(&self) -> Option<EpochMillis> {
        self.0.iter().filter_map(Grant::starts_at).max()
    }

    /// [Rolls back](Grant::roll_back) all.
    ///
    /// # Errors
    /// The first error; the other grants are rolled back anyway.
    pub async fn roll_back(self) -> Result<Settlement, Error> {
        Settlement::all(join_all(self.0.into_iter().map(Grant::roll_back)).await)
    }
}

impl Deref for Grants {
    type Target = [Grant];
    fn deref(&self) -> &[Grant] {
        &self.0
    }
}

impl DerefMut for Grants {
    fn deref_mut(&mut self) -> &mut [Grant] {
        &mut self.0
    }
}

impl IntoIterator for Grants {
    type Item = Grant;
    type IntoIter = std::vec::IntoIter<Grant>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

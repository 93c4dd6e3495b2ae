//! Peeks, and takes all that a call asks, or nothing.

use std::time::Duration;

use futures_util::future::join_all;
use weirgate::{
    Acquire, Balances, ConfigStatus, Decision, Denied, Disabled, EntityId, Error, Grant, LimitMode,
    LimitStatus, MilliTokens, NeverFits, OnUnavailable, Peek, RateLimiter, Resource,
};

use super::plan::{BucketAmounts, Plan, Step, asks};
use super::statuses::DescriptorResult;
use super::without_decision::Deadline;
use crate::rules::Bucket;

/// Age of what a peek may use, 100 ms: a gateway peeks for every request.
const PEEK_AGE: Duration = Duration::from_millis(100);
/// Retry time of a call that is denied because DynamoDB is unavailable, 1 s.
const UNAVAILABLE_RETRY: Duration = Duration::from_secs(1);
/// Age of what a denied call shows of the limits that did not deny, a minute.
const SHOWN_AGE: Duration = Duration::from_secs(60);

/// The decision on a call.
#[derive(Debug)]
pub(super) struct Decided {
    /// One per step.
    pub(super) results: Vec<DescriptorResult>,
    /// Why the call is denied.
    pub(super) refusal: Option<Refusal>,
    /// The limits that clients may see, if the call is allowed.
    pub(super) limits: Vec<LimitStatus>,
    /// What was taken, with the places of the steps that asked for it.
    pub(super) grants: Vec<(usize, Grant)>,
}

/// Decides a call before its `deadline`. With a `lease`, what is taken is held that long.
///
/// # Errors
/// Those of the limiter, if no decision could be made. Nothing is taken then.
pub(super) async fn decide(
    limiter: &RateLimiter,
    plan: &Plan,
    deadline: Deadline,
    lease: Option<Duration>,
) -> Result<Decided, Error> {
    let mut decided = Decided::begin(plan, limiter);
    let within = match (limiter.on_unavailable(), asks(plan).next()) {
        // Without an answer in time there is no decision.
        (OnUnavailable::Error, _) => Duration::MAX,
        (_, None) => deadline.decision(),
        (_, Some(_)) => deadline.half(),
    };
    decided.peek_all(limiter, plan, within).await?;
    if decided.refusal.is_none() {
        let timeout = deadline.decision();
        decided.ask_all(limiter, plan, timeout, lease).await?;
    }
    if decided.refusal.is_some() {
        let timeout = deadline.decision() / 4;
        decided.look_at_others(limiter, plan, timeout).await;
    }
    Ok(decided)
}

/// Returns the result of a step that nothing is known of yet.
fn result(step: &Step) -> DescriptorResult {
    DescriptorResult {
        is_unlimited: matches!(step, Step::Unlimited),
        ..DescriptorResult::default()
    }
}

impl Decided {
    /// Returns the decision before anything was asked: it denies what rules with a rate of 0 block.
    pub(super) fn begin(plan: &Plan, limiter: &RateLimiter) -> Self {
        let mut decided = Self {
            results: plan.steps.iter().map(result).collect(),
            refusal: None,
            limits: vec![],
            grants: vec![],
        };
        for (result, step) in decided.results.iter_mut().zip(&plan.steps) {
            let Step::Blocked(bucket, hits) = step else {
                continue;
            };
            // In shadow mode nothing is limited.
            let status = blocked(bucket, *hits).filter(|_| !limiter.is_shadow());
            let Some(status) = status else {
                continue;
            };
            let is_over = *hits > 0 && !bucket.terms.is_shadow;
            *result = DescriptorResult::of(std::slice::from_ref(&status), &bucket.terms, is_over);
            if is_over {
                merge(&mut decided.refusal, None, vec![status]);
            }
        }
        decided
    }

    /// Denies all that is asked and could be denied, because there is no decision.
    pub(super) fn deny(&mut self, plan: &Plan, limiter: &RateLimiter) {
        for (result, step) in self.results.iter_mut().zip(&plan.steps) {
            let is_question = match step {
                Step::Ask(part) | Step::Peek(part) => !part.bucket.terms.is_shadow,
                _ => false,
            };
            result.is_over |= is_question && !limiter.is_shadow();
        }
        if self.results.iter().any(|result| result.is_over) {
            merge(&mut self.refusal, Some(UNAVAILABLE_RETRY), vec![]);
        }
    }

    /// Peeks `within` this time. A peek that fails because DynamoDB is unavailable is answered as the limiter
    /// decides then; a local bucket has no debt, so it lets a peek pass.
    async fn peek_all(
        &mut self,
        limiter: &RateLimiter,
        plan: &Plan,
        within: Duration,
    ) -> Result<(), Error> {
        let peeks = plan.steps.iter().enumerate();
        let peeks = peeks.filter_map(|(at, step)| match step {
            // Nothing shows what a trial would find.
            Step::Peek(part) if !part.bucket.terms.is_shadow => Some(async move {
                let peek = peek(limiter, part).cached(PEEK_AGE).send();
                (at, part, tokio::time::timeout(within, peek).await)
            }),
            _ => None,
        });
        let peeks: Vec<_> = peeks.collect();
        if peeks.is_empty() {
            return Ok(());
        }
        let peeked = join_all(peeks).await;
        // A peek reads what is stored.
        let on_unavailable = limiter.on_unavailable();
        for (at, part, balances) in peeked {
            let balances = match balances {
                Ok(Err(error)) if on_unavailable == OnUnavailable::Error => return Err(error),
                Ok(Err(error)) if !error.is_transient() => return Err(error),
                Ok(Err(_)) | Err(_) => None,
                Ok(Ok(balances)) => Some(balances),
            };
            let Some(Balances { retry_after, status, limits }) = balances else {
                let is_over = on_unavailable == OnUnavailable::Deny && !limiter.is_shadow();
                self.results[at].is_over = is_over;
                if is_over {
                    merge(&mut self.refusal, Some(UNAVAILABLE_RETRY), vec![]);
                }
                continue;
            };
            let terms = &part.bucket.terms;
            let is_disabled = status == ConfigStatus::Disabled;
            let is_over = is_disabled || limits.iter().any(denies);
            self.results[at] = DescriptorResult::of(&limits, terms, is_over);
            match permanent(&part.bucket, is_disabled, &limits) {
                _ if !is_over => self.limits.extend(limits),
                Some(permanent) => self.refuse(permanent),
                None => merge(&mut self.refusal, retry_after, limits),
            }
        }
        Ok(())
    }

    /// Refuses for a reason that no time ends: the first one stands.
    fn refuse(&mut self, permanent: Refusal) {
        if matches!(self.refusal, None | Some(Refusal::Denied(_))) {
            self.refusal = Some(permanent);
        }
    }

    /// Takes all that is asked, or nothing.
    async fn ask_all(
        &mut self,
        limiter: &RateLimiter,
        plan: &Plan,
        timeout: Duration,
        lease: Option<Duration>,
    ) -> Result<(), Error> {
        let is_trial = |(_, part): &(usize, &BucketAmounts)| part.bucket.terms.is_shadow;
        let mut asked: Vec<_> = asks(plan).collect();
        if asked.is_empty() {
            return Ok(());
        }
        // A trial that cannot be decided is no reason to decide nothing: there is time left to leave it out.
        let (are_trials, has_trials) = (asked.iter().all(is_trial), asked.iter().any(is_trial));
        let timeout = match has_trials && !are_trials {
            true => timeout / 2,
            false => timeout,
        };
        let decision = match ask(limiter, &asked, timeout, lease).await {
            Err(error) if are_trials => {
                tracing::warn!(%error, "no decision on the trials of a call");
                return Ok(());
            }
            Err(error) if has_trials => {
                tracing::warn!(%error, "no decision with the trials of a call: it is made without them");
                asked.retain(|ask| !is_trial(ask));
                ask(limiter, &asked, timeout, lease).await?
            }
            decided => decided?,
        };
        if let (Some(slots), None) = (slots(&asked, &decision), lease) {
            if let Decision::Granted(grants) = decision {
                let _ = join_all(grants.into_iter().map(Grant::roll_back)).await;
            }
            return Err(Error::Invalid(format!(
                "limit {:?} of entity {} on resource {} has slots, which no later call of Envoy releases: take them with Reserve, or leave the limit out of the rule",
                slots.limit, slots.entity, slots.resource
            )));
        }
        if !matches!(decision, Decision::Granted(_)) && asked.iter().all(is_trial) {
            return Ok(());
        }
        let refusal = match decision {
            Decision::Granted(grants) => {
                self.granted(&asked, grants);
                return Ok(());
            }
            Decision::Denied(denied) => Refusal::Denied(denied),
            Decision::NeverFits(never) => Refusal::NeverFits(never),
            Decision::Disabled(disabled) => Refusal::Disabled(disabled),
        };
        self.blame(plan, &refusal);
        self.refusal = Some(refusal);
        Ok(())
    }

    fn granted(&mut self, asked: &[(usize, &BucketAmounts)], grants: Vec<Grant>) {
        for ((at, part), grant) in asked.iter().zip(grants) {
            let terms = &part.bucket.terms;
            let mut limits = grant.limits();
            self.results[*at] = DescriptorResult::of(&limits, terms, false);
            if !terms.is_shadow {
                self.limits.append(&mut limits);
            }
            self.grants.push((*at, grant));
        }
    }

    /// Marks the asks that the refusal is about; all of them if it is about none: then it comes from
    /// a parent's limit, or was made without DynamoDB.
    fn blame(&mut self, plan: &Plan, refusal: &Refusal) {
        for (at, part) in asks(plan) {
            let (is_over, limits) = refusal.about(&part.bucket);
            let terms = &part.bucket.terms;
            if is_over || !limits.is_empty() {
                let is_over = is_over && !terms.is_shadow;
                self.results[at] = DescriptorResult::of(&limits, terms, is_over);
            }
        }
        if self.results.iter().any(|result| result.is_over) {
            return;
        }
        for (at, part) in asks(plan) {
            let terms = &part.bucket.terms;
            self.results[at] = DescriptorResult::of(refusal.limits(), terms, !terms.is_shadow);
        }
    }

    /// Looks up what is left of the limits that did not deny. Without a view that is one read, and
    /// if it takes too long, they are left out.
    async fn look_at_others(&mut self, limiter: &RateLimiter, plan: &Plan, timeout: Duration) {
        let is_unknown = |(at, part): &(usize, &BucketAmounts)| {
            !part.bucket.terms.is_shadow && self.results[*at].status.is_none()
        };
        let unknown = asks(plan).filter(is_unknown);
        let peeks = unknown.map(|(at, part)| async move {
            (at, part, peek(limiter, part).cached(SHOWN_AGE).send().await)
        });
        let peeks: Vec<_> = peeks.collect();
        if peeks.is_empty() {
            return;
        }
        let Ok(found) = tokio::time::timeout(timeout, join_all(peeks)).await else {
            return;
        };
        for (at, part, balances) in found {
            if let Ok(balances) = balances {
                let is_over = self.results[at].is_over;
                self.results[at] =
                    DescriptorResult::of(&balances.limits, &part.bucket.terms, is_over);
            }
        }
    }
}

/// Returns the request for a part.
fn acquire<'l>(limiter: &'l RateLimiter, part: &BucketAmounts) -> Acquire<'l> {
    let bucket = &part.bucket;
    let mut request = limiter.acquire(&bucket.entity, &bucket.resource);
    if let Some(limits) = &bucket.terms.limits {
        request = request.shared_limits(limits);
    }
    for (limit, tokens) in part.amounts() {
        request = request.take(limit, tokens);
    }
    if bucket.terms.is_shadow {
        request = request.shadow();
    }
    request
}

/// Returns the peek for a part.
pub(super) fn peek<'l>(limiter: &'l RateLimiter, part: &BucketAmounts) -> Peek<'l> {
    let mut peek = limiter.peek(&part.bucket.entity, &part.bucket.resource);
    if let Some(limits) = &part.bucket.terms.limits {
        peek = peek.limits(limits);
    }
    for (limit, tokens) in part.amounts() {
        peek = peek.need(limit, tokens);
    }
    peek
}

/// Asks for these parts together.
pub(super) async fn ask(
    limiter: &RateLimiter,
    asked: &[(usize, &BucketAmounts)],
    timeout: Duration,
    lease: Option<Duration>,
) -> Result<Decision<Vec<Grant>>, Error> {
    let request = |(_, part): &(usize, &BucketAmounts)| {
        let request = acquire(limiter, part).timeout(timeout);
        match lease {
            Some(lasts) => request.lease(lasts),
            None => request,
        }
    };
    if let [only] = asked {
        return Ok(request(only).send().await?.map(|grant| vec![grant]));
    }
    let decision = limiter.acquire_all(asked.iter().map(request)).send().await?;
    Ok(decision.map(|grants| grants.into_iter().collect()))
}

/// Returns a limit with slots of which a part takes some.
pub(super) fn slots(
    asked: &[(usize, &BucketAmounts)],
    decision: &Decision<Vec<Grant>>,
) -> Option<LimitStatus> {
    let limits: Vec<_> = match decision {
        Decision::Granted(grants) => grants.iter().flat_map(Grant::limits).collect(),
        Decision::Denied(denied) => denied.limits.clone(),
        Decision::NeverFits(_) | Decision::Disabled(_) => vec![],
    };
    let is_taken = |status: &LimitStatus| {
        let takes = |(_, part): &(usize, &BucketAmounts)| {
            let mut takes = part.bucket.terms.takes.iter();
            !part.bucket.terms.is_shadow
                && *part.bucket.resource == *status.resource.as_str()
                && takes.any(|take| *take.limit == *status.limit)
        };
        status.kind().is_held() && asked.iter().any(takes)
    };
    limits.into_iter().find(is_taken)
}

/// Why a call is denied.
#[derive(Debug)]
pub(super) enum Refusal {
    Denied(Denied),
    NeverFits(NeverFits),
    Disabled(Disabled),
}

impl Refusal {
    /// Returns whether a bucket is the reason, and its limits among those of the refusal.
    pub(super) fn about(&self, bucket: &Bucket) -> (bool, Vec<LimitStatus>) {
        let is_of = |entity: &EntityId, resource: &Resource| {
            *entity.as_str() == *bucket.entity && *resource.as_str() == *bucket.resource
        };
        match self {
            Self::Denied(denied) => {
                let own = denied.limits.iter();
                let own = own.filter(|status| is_of(&status.entity, &status.resource));
                let own: Vec<_> = own.cloned().collect();
                (own.iter().any(denies), own)
            }
            Self::NeverFits(never) => (is_of(&never.entity, &never.resource), vec![]),
            Self::Disabled(disabled) => (is_of(&disabled.entity, &disabled.resource), vec![]),
        }
    }

    /// Returns the limits of a denial.
    pub(super) fn limits(&self) -> &[LimitStatus] {
        match self {
            Self::Denied(denied) => &denied.limits,
            Self::NeverFits(_) | Self::Disabled(_) => &[],
        }
    }
}

/// Returns whether a limit denies a request.
pub(super) fn denies(status: &LimitStatus) -> bool {
    status.is_short() && status.mode == LimitMode::Enforced
}

/// Returns the status of the limit of a bucket whose rule has a rate of 0: a rate that holds nothing
/// and refills nothing. `None` if its names are invalid.
pub(super) fn blocked(bucket: &Bucket, hits: i64) -> Option<LimitStatus> {
    let limit = bucket.terms.takes.first().map(|take| &*take.limit);
    Some(LimitStatus {
        entity: EntityId::new(&*bucket.entity).ok()?,
        resource: Resource::new(&*bucket.resource).ok()?,
        limit: limit.unwrap_or_default().to_owned(),
        mode: LimitMode::Enforced,
        capacity: MilliTokens::ZERO,
        refill_amount: MilliTokens::ZERO,
        refill_period: bucket.terms.period,
        available: MilliTokens::ZERO,
        requested: MilliTokens::from_tokens(hits),
        is_requested: true,
        retry_after: None,
        paused_for: None,
        window: None,
        window_end: None,
        resets_in: None,
    })
}

/// Returns why a take of what was peeked would be refused permanently; `None` if it would be denied for a time.
fn permanent(bucket: &Bucket, is_disabled: bool, limits: &[LimitStatus]) -> Option<Refusal> {
    if is_disabled {
        return Some(Refusal::Disabled(Disabled {
            entity: EntityId::new(&*bucket.entity).ok()?,
            resource: Resource::new(&*bucket.resource).ok()?,
            stopped_at: None,
        }));
    }
    let never = |status: &&LimitStatus| denies(status) && status.requested > status.capacity;
    let never = limits.iter().find(never)?;
    Some(Refusal::NeverFits(NeverFits {
        entity: never.entity.clone(),
        resource: never.resource.clone(),
        limit: never.limit.clone(),
        requested: never.requested,
        capacity: never.capacity,
        missing_plan: None,
    }))
}

/// Adds a denial to the refusal, unless that is a permanent one.
pub(super) fn merge(
    refusal: &mut Option<Refusal>,
    retry_after: Option<Duration>,
    limits: Vec<LimitStatus>,
) {
    match refusal {
        Some(Refusal::Denied(denied)) => {
            let both = denied.retry_after.zip(retry_after);
            denied.retry_after = both.map(|(one, other)| one.max(other));
            denied.limits.extend(limits);
        }
        Some(Refusal::NeverFits(_) | Refusal::Disabled(_)) => {}
        None => {
            *refusal = Some(Refusal::Denied(Denied {
                retry_after,
                starts_in: None,
                limits,
                degraded: None,
                missing_plan: None,
            }));
        }
    }
}

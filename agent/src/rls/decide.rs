//! Peeks, and takes all that a call asks, or nothing.

use std::time::Duration;

use futures_util::future::join_all;
use weirgate::{
    Acquire, Balances, ConfigStatus, Decision, Denied, Disabled, EntityId, Error, Grant, LimitMode,
    LimitStatus, MilliTokens, NeverFits, Peek, RateLimiter, Resource,
};

use super::plan::{Parcel, Plan, Step};
use super::standing::Standing;

/// Age of what a peek may use, 100 ms: a gateway peeks for every request.
const PEEK_AGE: Duration = Duration::from_millis(100);
/// Age of what a denied call shows of the limits that did not deny, a minute.
const SHOWN_AGE: Duration = Duration::from_secs(60);

/// The decision on a call.
#[derive(Debug)]
pub(super) struct Decided {
    /// One per step.
    pub(super) standings: Vec<Standing>,
    /// Why the call is denied.
    pub(super) refusal: Option<Refusal>,
    /// The limits that clients may see, if the call is allowed.
    pub(super) limits: Vec<LimitStatus>,
    /// What was taken, one per ask.
    pub(super) grants: Vec<Grant>,
}

/// Why a call is denied.
#[derive(Debug)]
pub(super) enum Refusal {
    Denied(Denied),
    NeverFits(NeverFits),
    Disabled(Disabled),
}

/// Returns the request for a parcel.
fn acquire<'l>(limiter: &'l RateLimiter, parcel: &Parcel) -> Acquire<'l> {
    let bucket = &parcel.bucket;
    let mut request = limiter.acquire(&bucket.entity, &bucket.resource);
    if let Some(limits) = &bucket.terms.limits {
        request = request.shared_limits(limits);
    }
    for (limit, tokens) in parcel.amounts() {
        request = request.take(limit, tokens);
    }
    if bucket.terms.is_shadow {
        request = request.shadow();
    }
    request
}

fn peek<'l>(limiter: &'l RateLimiter, parcel: &Parcel) -> Peek<'l> {
    let mut peek = limiter.peek(&parcel.bucket.entity, &parcel.bucket.resource);
    if let Some(limits) = &parcel.bucket.terms.limits {
        peek = peek.limits(limits);
    }
    for (limit, tokens) in parcel.amounts() {
        peek = peek.need(limit, tokens);
    }
    peek
}

/// Decides a call within `timeout`, which a hanging request may exceed by an eighth. With a `lease`,
/// what is taken is held that long.
///
/// # Errors
/// Those of the limiter, if no decision could be made. Nothing is taken then.
pub(super) async fn decide(
    limiter: &RateLimiter,
    plan: &Plan,
    timeout: Duration,
    lease: Option<Duration>,
) -> Result<Decided, Error> {
    let mut decided = Decided {
        standings: plan.steps.iter().map(standing).collect(),
        refusal: None,
        limits: vec![],
        grants: vec![],
    };
    decided.refuse_blocked(plan);
    decided.peek_all(limiter, plan).await?;
    if decided.refusal.is_none() {
        decided.ask_all(limiter, plan, timeout, lease).await?;
    }
    if decided.refusal.is_some() {
        decided.look_at_others(limiter, plan, timeout / 4).await;
    }
    Ok(decided)
}

/// Returns the standing of a step that nothing is known of yet.
fn standing(step: &Step) -> Standing {
    Standing {
        is_unlimited: matches!(step, Step::Unlimited),
        ..Standing::default()
    }
}

impl Decided {
    /// Denies what rules with a rate of 0 block.
    fn refuse_blocked(&mut self, plan: &Plan) {
        for (standing, step) in self.standings.iter_mut().zip(&plan.steps) {
            let Step::Blocked(bucket, hits) = step else {
                continue;
            };
            let ids = EntityId::new(&*bucket.entity).ok();
            let ids = ids.zip(Resource::new(&*bucket.resource).ok());
            let Some((entity, resource)) = ids else {
                continue;
            };
            let limit = bucket
                .terms
                .takes
                .first()
                .map(|take| take.limit.to_string());
            let status = LimitStatus {
                entity,
                resource,
                limit: limit.unwrap_or_default(),
                mode: LimitMode::Enforced,
                capacity: MilliTokens::ZERO,
                refill_amount: MilliTokens::ZERO,
                refill_period: Duration::from_secs(1),
                available: MilliTokens::ZERO,
                requested: MilliTokens::from_tokens(*hits),
                is_requested: true,
                retry_after: None,
            };
            let is_over = *hits > 0 && !bucket.terms.is_shadow;
            *standing = Standing::of(std::slice::from_ref(&status), &bucket.terms, is_over);
            if is_over {
                merge(&mut self.refusal, None, vec![status]);
            }
        }
    }

    async fn peek_all(&mut self, limiter: &RateLimiter, plan: &Plan) -> Result<(), Error> {
        let peeks = plan.steps.iter().enumerate();
        let peeks = peeks.filter_map(|(at, step)| match step {
            Step::Peek(parcel) => Some(async move {
                let balances = peek(limiter, parcel).cached(PEEK_AGE).send().await;
                (at, parcel, balances)
            }),
            _ => None,
        });
        let peeks: Vec<_> = peeks.collect();
        if peeks.is_empty() {
            return Ok(());
        }
        for (at, parcel, balances) in join_all(peeks).await {
            let Balances {
                retry_after,
                status,
                limits,
            } = balances?;
            let terms = &parcel.bucket.terms;
            let is_disabled = status == ConfigStatus::Disabled;
            let denies =
                |status: &LimitStatus| status.is_short() && status.mode == LimitMode::Enforced;
            let is_over = !terms.is_shadow && (is_disabled || limits.iter().any(denies));
            self.standings[at] = Standing::of(&limits, terms, is_over);
            if is_over {
                merge(&mut self.refusal, retry_after, limits);
            } else if !terms.is_shadow {
                self.limits.extend(limits);
            }
        }
        Ok(())
    }

    /// Takes all that is asked, or nothing.
    async fn ask_all(
        &mut self,
        limiter: &RateLimiter,
        plan: &Plan,
        timeout: Duration,
        lease: Option<Duration>,
    ) -> Result<(), Error> {
        let request = |(_, parcel): (usize, &Parcel)| {
            let request = acquire(limiter, parcel).timeout(timeout);
            match lease {
                Some(lasts) => request.lease(lasts),
                None => request,
            }
        };
        let mut requests = asks(plan).map(request);
        let decision = match (requests.next(), requests.next()) {
            (None, _) => return Ok(()),
            (Some(only), None) => only.send().await?.map(|grant| vec![grant]),
            (Some(one), Some(other)) => {
                let all = [one, other].into_iter().chain(requests);
                let decision = limiter.acquire_all(all).send().await?;
                decision.map(|grants| grants.into_iter().collect())
            }
        };
        match decision {
            Decision::Granted(grants) => self.granted(plan, grants),
            Decision::Denied(denied) => {
                self.over(plan, |parcel| {
                    let is_of = |status: &&LimitStatus| {
                        *status.entity.as_str() == *parcel.bucket.entity
                            && *status.resource.as_str() == *parcel.bucket.resource
                    };
                    let own: Vec<_> = denied.limits.iter().filter(is_of).cloned().collect();
                    let denies = |status: &LimitStatus| {
                        status.is_short() && status.mode == LimitMode::Enforced
                    };
                    (own.iter().any(denies), own)
                });
                self.blame_all(plan, &denied.limits);
                self.refusal = Some(Refusal::Denied(denied));
            }
            Decision::NeverFits(never) => {
                self.over(plan, |parcel| {
                    let is_own = *never.entity.as_str() == *parcel.bucket.entity
                        && *never.resource.as_str() == *parcel.bucket.resource;
                    (is_own, vec![])
                });
                self.blame_all(plan, &[]);
                self.refusal = Some(Refusal::NeverFits(never));
            }
            Decision::Disabled(disabled) => {
                self.over(plan, |parcel| {
                    let is_own = *disabled.entity.as_str() == *parcel.bucket.entity
                        && *disabled.resource.as_str() == *parcel.bucket.resource;
                    (is_own, vec![])
                });
                self.blame_all(plan, &[]);
                self.refusal = Some(Refusal::Disabled(disabled));
            }
        }
        Ok(())
    }

    fn granted(&mut self, plan: &Plan, grants: Vec<Grant>) {
        for ((at, parcel), grant) in asks(plan).zip(&grants) {
            let terms = &parcel.bucket.terms;
            let mut limits = grant.limits();
            if let Some(waived) = grant.would_deny() {
                limits.extend(waived.limits.iter().cloned());
            }
            self.standings[at] = Standing::of(&limits, terms, false);
            if !terms.is_shadow {
                self.limits.append(&mut limits);
            }
        }
        self.grants = grants;
    }

    /// Marks the asks that `judge` finds over, with the limits that it returns.
    fn over(&mut self, plan: &Plan, judge: impl Fn(&Parcel) -> (bool, Vec<LimitStatus>)) {
        for (at, parcel) in asks(plan) {
            let (is_over, limits) = judge(parcel);
            let terms = &parcel.bucket.terms;
            if is_over || !limits.is_empty() {
                let is_over = is_over && !terms.is_shadow;
                self.standings[at] = Standing::of(&limits, terms, is_over);
            }
        }
    }

    /// Marks all asks, if none is over although the call is denied: by a parent's limit, or without
    /// DynamoDB.
    fn blame_all(&mut self, plan: &Plan, limits: &[LimitStatus]) {
        if self.standings.iter().any(|standing| standing.is_over) {
            return;
        }
        for (at, parcel) in asks(plan) {
            let terms = &parcel.bucket.terms;
            self.standings[at] = Standing::of(limits, terms, !terms.is_shadow);
        }
    }

    /// Looks up what is left of the limits that did not deny. Without a view that is one read, and
    /// if it takes too long, they are left out.
    async fn look_at_others(&mut self, limiter: &RateLimiter, plan: &Plan, timeout: Duration) {
        let unknown = asks(plan).filter(|(at, _)| self.standings[*at].status.is_none());
        let peeks = unknown.map(|(at, parcel)| async move {
            (
                at,
                parcel,
                peek(limiter, parcel).cached(SHOWN_AGE).send().await,
            )
        });
        let peeks: Vec<_> = peeks.collect();
        if peeks.is_empty() {
            return;
        }
        let Ok(found) = tokio::time::timeout(timeout, join_all(peeks)).await else {
            return;
        };
        for (at, parcel, balances) in found {
            if let Ok(balances) = balances {
                let is_over = self.standings[at].is_over;
                self.standings[at] = Standing::of(&balances.limits, &parcel.bucket.terms, is_over);
            }
        }
    }
}

fn asks(plan: &Plan) -> impl Iterator<Item = (usize, &Parcel)> {
    plan.steps
        .iter()
        .enumerate()
        .filter_map(|(at, step)| match step {
            Step::Ask(parcel) => Some((at, parcel)),
            _ => None,
        })
}

/// Adds a denial to the refusal.
fn merge(refusal: &mut Option<Refusal>, retry_after: Option<Duration>, limits: Vec<LimitStatus>) {
    if let Some(Refusal::Denied(denied)) = refusal {
        let both = denied.retry_after.zip(retry_after);
        denied.retry_after = both.map(|(one, other)| one.max(other));
        denied.limits.extend(limits);
    } else {
        *refusal = Some(Refusal::Denied(Denied {
            retry_after,
            limits,
            degraded: None,
        }));
    }
}

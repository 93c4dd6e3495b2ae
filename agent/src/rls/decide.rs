//! Peeks, and takes all that a call asks, or nothing.

use std::time::Duration;

use futures_util::future::join_all;
use weirgate::{
    Balances, ConfigStatus, Decision, Error, Grant, LimitStatus, OnUnavailable, RateLimiter,
};

use super::deadline::Deadline;
use super::plan::{Parcel, Plan, Step, asks};
use super::refusal::{Refusal, blocked, denies, merge};
use super::requests::{ask, peek, slots};
use super::standing::Standing;

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
    pub(super) standings: Vec<Standing>,
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
    on_unavailable: OnUnavailable,
) -> Result<Decided, Error> {
    let mut decided = Decided::begin(plan, limiter);
    let within = match (on_unavailable, asks(plan).next()) {
        // Without an answer in time there is no decision.
        (OnUnavailable::Error, _) => Duration::MAX,
        (_, None) => deadline.decision(),
        (_, Some(_)) => deadline.half(),
    };
    decided
        .peek_all(limiter, plan, within, on_unavailable)
        .await?;
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

/// Returns the standing of a step that nothing is known of yet.
fn standing(step: &Step) -> Standing {
    Standing {
        is_unlimited: matches!(step, Step::Unlimited),
        ..Standing::default()
    }
}

impl Decided {
    /// Returns the decision before anything was asked: it denies what rules with a rate of 0 block.
    pub(super) fn begin(plan: &Plan, limiter: &RateLimiter) -> Self {
        let mut decided = Self {
            standings: plan.steps.iter().map(standing).collect(),
            refusal: None,
            limits: vec![],
            grants: vec![],
        };
        for (standing, step) in decided.standings.iter_mut().zip(&plan.steps) {
            let Step::Blocked(bucket, hits) = step else {
                continue;
            };
            // In shadow mode nothing is limited.
            let status = blocked(bucket, *hits).filter(|_| !limiter.is_shadow());
            let Some(status) = status else {
                continue;
            };
            let is_over = *hits > 0 && !bucket.terms.is_shadow;
            *standing = Standing::of(std::slice::from_ref(&status), &bucket.terms, is_over);
            if is_over {
                merge(&mut decided.refusal, None, vec![status]);
            }
        }
        decided
    }

    /// Denies all that is asked and could be denied, because there is no decision.
    pub(super) fn deny(&mut self, plan: &Plan, limiter: &RateLimiter) {
        for (standing, step) in self.standings.iter_mut().zip(&plan.steps) {
            let is_question = match step {
                Step::Ask(parcel) | Step::Peek(parcel) => !parcel.bucket.terms.is_shadow,
                _ => false,
            };
            standing.is_over |= is_question && !limiter.is_shadow();
        }
        if self.standings.iter().any(|standing| standing.is_over) {
            merge(&mut self.refusal, Some(UNAVAILABLE_RETRY), vec![]);
        }
    }

    /// Peeks `within` this time. A peek that fails because DynamoDB is unavailable is answered by the
    /// option; a local bucket has no debt, so it lets a peek pass.
    async fn peek_all(
        &mut self,
        limiter: &RateLimiter,
        plan: &Plan,
        within: Duration,
        on_unavailable: OnUnavailable,
    ) -> Result<(), Error> {
        let peeks = plan.steps.iter().enumerate();
        let peeks = peeks.filter_map(|(at, step)| match step {
            // Nothing shows what a trial would find.
            Step::Peek(parcel) if !parcel.bucket.terms.is_shadow => Some(async move {
                let peek = peek(limiter, parcel).cached(PEEK_AGE).send();
                (at, parcel, tokio::time::timeout(within, peek).await)
            }),
            _ => None,
        });
        let peeks: Vec<_> = peeks.collect();
        if peeks.is_empty() {
            return Ok(());
        }
        for (at, parcel, balances) in join_all(peeks).await {
            let balances = match balances {
                Ok(Err(error)) if on_unavailable == OnUnavailable::Error => return Err(error),
                Ok(Err(error)) if !error.is_transient() => return Err(error),
                Ok(Err(_)) | Err(_) => None,
                Ok(Ok(balances)) => Some(balances),
            };
            let Some(Balances {
                retry_after,
                status,
                limits,
            }) = balances
            else {
                let is_over = on_unavailable == OnUnavailable::Deny && !limiter.is_shadow();
                self.standings[at].is_over = is_over;
                if is_over {
                    merge(&mut self.refusal, Some(UNAVAILABLE_RETRY), vec![]);
                }
                continue;
            };
            let terms = &parcel.bucket.terms;
            let is_disabled = status == ConfigStatus::Disabled;
            let is_over = is_disabled || limits.iter().any(denies);
            self.standings[at] = Standing::of(&limits, terms, is_over);
            if is_over {
                merge(&mut self.refusal, retry_after, limits);
            } else {
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
        let is_trial = |(_, parcel): &(usize, &Parcel)| parcel.bucket.terms.is_shadow;
        let mut asked: Vec<_> = asks(plan).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let decision = match ask(limiter, &asked, timeout, lease).await {
            // A trial that cannot be decided is no reason to decide nothing.
            Err(error) if asked.iter().all(is_trial) => {
                tracing::warn!(%error, "no decision on the trials of a call");
                return Ok(());
            }
            Err(error) if !error.is_transient() && asked.iter().any(is_trial) => {
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

    fn granted(&mut self, asked: &[(usize, &Parcel)], grants: Vec<Grant>) {
        for ((at, parcel), grant) in asked.iter().zip(grants) {
            let terms = &parcel.bucket.terms;
            let mut limits = grant.limits();
            self.standings[*at] = Standing::of(&limits, terms, false);
            if !terms.is_shadow {
                self.limits.append(&mut limits);
            }
            self.grants.push((*at, grant));
        }
    }

    /// Marks the asks that the refusal is about; all of them if it is about none: then it comes from
    /// a parent's limit, or was made without DynamoDB.
    fn blame(&mut self, plan: &Plan, refusal: &Refusal) {
        for (at, parcel) in asks(plan) {
            let (is_over, limits) = refusal.about(&parcel.bucket);
            let terms = &parcel.bucket.terms;
            if is_over || !limits.is_empty() {
                let is_over = is_over && !terms.is_shadow;
                self.standings[at] = Standing::of(&limits, terms, is_over);
            }
        }
        if self.standings.iter().any(|standing| standing.is_over) {
            return;
        }
        for (at, parcel) in asks(plan) {
            let terms = &parcel.bucket.terms;
            self.standings[at] = Standing::of(refusal.limits(), terms, !terms.is_shadow);
        }
    }

    /// Looks up what is left of the limits that did not deny. Without a view that is one read, and
    /// if it takes too long, they are left out.
    async fn look_at_others(&mut self, limiter: &RateLimiter, plan: &Plan, timeout: Duration) {
        let is_unknown = |(at, parcel): &(usize, &Parcel)| {
            !parcel.bucket.terms.is_shadow && self.standings[*at].status.is_none()
        };
        let unknown = asks(plan).filter(is_unknown);
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

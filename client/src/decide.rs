//! Decides over all buckets of a request: takes from all of them, or from none.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;
use weirgate_shared::{BucketKey, LimitMode, LimitName, MilliTokens};

use crate::bucket::{
    AllOrNone, BucketRequest, BucketState, acquire, cached_denial, take_in_transaction,
};
use crate::clock::deadline;
use crate::decision::{self, Denied, LimitStatus, NeverFits};
use crate::hold::Hold;
use crate::inner::Inner;
use crate::queue::{Amounts, ShardDecision, merge_amounts};
use crate::stats::count;
use crate::unavailable::{self, LocalHold, Permit};
use crate::{Decision, Degraded, Disabled, Error, OnUnavailable};

/// One bucket of a request.
#[derive(Debug)]
pub(crate) struct BucketTarget {
    pub(crate) bucket: Arc<BucketState>,
    pub(crate) request: BucketRequest,
    /// Whether its limits never deny, whatever their mode.
    pub(crate) is_shadow: bool,
}

impl BucketTarget {
    /// Returns the amounts of all limits, soft ones included.
    pub(crate) fn needs(&self) -> Amounts {
        merge_amounts(&self.request.amounts, &self.request.soft_amounts)
    }
}

/// The buckets of a request, resolved from its limits.
#[derive(Debug, Default)]
pub(crate) struct ResolvedRequest {
    pub(crate) targets: Vec<BucketTarget>,
    /// Set if the configuration disables the request.
    pub(crate) disabled: Option<Disabled>,
    /// Whether the entity itself is unlimited.
    pub(crate) has_unlimited: bool,
    /// Whether the limits may have changed since they were read.
    pub(crate) limits_may_be_stale: bool,
}

impl ResolvedRequest {
    /// Merges two resolved requests.
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.targets.extend(other.targets);
        let disabled = self.disabled.or(other.disabled);
        Self {
            disabled,
            has_unlimited: self.has_unlimited || other.has_unlimited,
            limits_may_be_stale: self.limits_may_be_stale || other.limits_may_be_stale,
            ..self
        }
    }
}

/// Tokens taken for a request.
#[derive(Debug)]
pub(crate) struct Granted {
    /// One per bucket, in order; empty if nothing is counted.
    pub(crate) by_bucket: Vec<BucketGrant>,
    /// Reason for a decision without DynamoDB.
    pub(crate) degraded: Option<Degraded>,
    /// Whether some limits are not enforced, so that nothing is counted for them.
    pub(crate) has_unlimited: bool,
}

/// Tokens taken from one bucket.
#[derive(Debug, Default)]
pub(crate) struct BucketGrant {
    /// `None` if shadow mode waived all amounts.
    pub(crate) hold: Option<Hold>,
    /// Tokens taken from a local bucket instead.
    pub(crate) local: Option<LocalHold>,
    /// Denial that shadow mode waived.
    pub(crate) would_deny: Option<Denied>,
}

/// Options of a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireOptions {
    /// Longest wait for tokens.
    pub(crate) wait: Duration,
    pub(crate) take_mode: TakeMode,
    pub(crate) on_unavailable: OnUnavailable,
}

/// How to take from several buckets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TakeMode {
    /// Concurrently; if one bucket denies, the tokens of the others return.
    #[default]
    Concurrent,
    /// In one transaction.
    Transaction,
}

/// Decides a request, or falls back if DynamoDB is unavailable.
pub(crate) async fn decide(
    inner: &Arc<Inner>,
    asked: Result<ResolvedRequest, Error>,
    manner: AcquireOptions,
) -> Result<Decision<Granted>, Error> {
    let ResolvedRequest {
        targets,
        disabled,
        has_unlimited: is_free,
        ..
    } = match asked {
        Ok(asked) => asked,
        Err(error) => return unavailable::fall_back(inner, manner.on_unavailable, None, error),
    };
    if let Some(disabled) = disabled {
        return Ok(Decision::Disabled(disabled));
    }
    inner.remember_runtime();
    let would_deny = targets.iter().map(|_| None).collect();
    let mut deciding = Decider {
        inner,
        targets,
        would_deny,
        take_mode: manner.take_mode,
    };
    let decision = match inner.breaker.admit() {
        Ok(permit) => deciding.run(manner.wait, Some(permit)).await,
        Err(_) if deciding.is_prefetched() => deciding.run(manner.wait, None).await,
        Err(open) => Err(open.into()),
    };
    match decision {
        Err(error) => {
            unavailable::fall_back(inner, manner.on_unavailable, Some(&deciding.targets), error)
        }
        Ok(decision) => Ok(decision.map(|given| Granted {
            has_unlimited: is_free,
            ..given
        })),
    }
}

/// Counts a decision.
pub(crate) fn count_decision(inner: &Inner, decision: &Decision<Granted>) {
    let counters = &inner.counters;
    match decision {
        Decision::Granted(given) => {
            count(&counters.granted, 1);
            count(
                &counters.shadow_denied,
                u64::from(given.by_bucket.iter().any(|one| one.would_deny.is_some())),
            );
        }
        Decision::Denied(_) => count(&counters.denied, 1),
        Decision::NeverFits(_) | Decision::Disabled(_) => {}
    }
}

struct Decider<'a> {
    inner: &'a Arc<Inner>,
    targets: Vec<BucketTarget>,
    would_deny: Vec<Option<Denied>>,
    take_mode: TakeMode,
}

impl Decider<'_> {
    async fn run(
        &mut self,
        wait: Duration,
        mut permit: Option<Permit<'_>>,
    ) -> Result<Decision<Granted>, Error> {
        if let Some(never) = self.never_fits() {
            return Ok(Decision::NeverFits(never));
        }
        let give_up = deadline(wait);
        loop {
            // Subscribe before the request, or a release between its response and the wait would be
            // missed.
            let given_back = if wait.is_zero() {
                vec![]
            } else {
                self.subscribe_to_returns()
            };
            let answer = self.take().await?;
            // A request that waits for tokens must not hold the permit.
            permit.take();
            let denials = match answer {
                Ok(holds) => {
                    let would_deny = std::mem::take(&mut self.would_deny);
                    let one = |(hold, would_deny)| BucketGrant {
                        hold,
                        local: None,
                        would_deny,
                    };
                    let all = holds.into_iter().zip(would_deny).map(one).collect();
                    return Ok(Decision::Granted(Granted {
                        by_bucket: all,
                        degraded: None,
                        has_unlimited: false,
                    }));
                }
                Err(denials) => denials,
            };
            if self.waive_shadow_limits(&denials) {
                continue;
            }
            let left = give_up.saturating_duration_since(Instant::now());
            let denied = decision::merge_denials(denials.into_iter().map(|(_, denied)| denied));
            let Some(pause) = pause(&denied, left) else {
                return Ok(Decision::Denied(denied));
            };
            tokio::select! {
                // A fixed order, so that a run depends only on its inputs.
                biased;
                _ = select_all(given_back) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Returns whether the pools cover all amounts.
    fn is_prefetched(&self) -> bool {
        let has = |target: &BucketTarget| {
            target
                .bucket
                .pool
                .as_ref()
                .is_some_and(|pool| pool.covers(&target.request))
        };
        !self.targets.is_empty() && self.targets.iter().all(has)
    }

    /// Returns an amount above its limit's capacity, from one request or from several on the same
    /// bucket. In shadow mode, waives it instead.
    fn never_fits(&mut self) -> Option<NeverFits> {
        let sum = |key: &BucketKey, limit: &LimitName| -> MilliTokens {
            let same = self
                .targets
                .iter()
                .filter(|target| target.bucket.key == *key);
            same.filter_map(|target| target.request.amounts.get(limit))
                .copied()
                .sum()
        };
        let mut above = vec![];
        for (at, target) in self.targets.iter().enumerate() {
            let BucketTarget {
                request, bucket, ..
            } = target;
            for limit in request
                .limits
                .iter()
                .filter(|limit| request.amounts.contains_key(limit.name()))
            {
                let requested = sum(&bucket.key, limit.name());
                if requested > limit.rule().capacity {
                    above.push((at, limit.clone(), requested));
                }
            }
        }
        for (at, limit, requested) in above {
            let target = &mut self.targets[at];
            let (key, capacity) = (&target.bucket.key, limit.rule().capacity);
            if !target.is_shadow && limit.mode() != LimitMode::Shadow {
                let (entity, resource) = (key.entity.clone(), key.resource.clone());
                return Some(NeverFits {
                    entity,
                    resource,
                    limit: limit.name().to_string(),
                    requested,
                    capacity,
                });
            }
            let status = decision::never_status(key, &limit, requested);
            target.request.amounts.remove(limit.name());
            let known = self.would_deny[at].take();
            self.would_deny[at] =
                decision::merge_two(known, Some(decision::denial_of(vec![status])));
        }
        None
    }

    /// Takes from all buckets. Returns the holds, or the denials with their places if nothing was
    /// taken.
    async fn take(&self) -> Result<Result<Vec<Option<Hold>>, Vec<(usize, Denied)>>, Error> {
        let asked: Vec<_> = self
            .targets
            .iter()
            .enumerate()
            .filter(|(_, target)| target.request.has_amounts())
            .collect();
        let given = match &asked[..] {
            [] => vec![],
            [(at, only)] => match acquire(self.inner, &only.bucket, &only.request).await? {
                ShardDecision::Granted(delivery) => vec![delivery],
                ShardDecision::Denied(denied) => return Ok(Err(vec![(*at, denied)])),
            },
            several => {
                // If one denial is cached, the other buckets need no request.
                let remembered = |(at, target): &(usize, &BucketTarget)| {
                    Some((
                        *at,
                        cached_denial(self.inner, &target.bucket, &target.request)?,
                    ))
                };
                let known: Vec<_> = several.iter().filter_map(remembered).collect();
                if !known.is_empty() {
                    count(&self.inner.counters.local_denied, 1);
                    return Ok(Err(known));
                }
                let buckets: Vec<_> = several
                    .iter()
                    .map(|(_, target)| (&target.bucket, &target.request))
                    .collect();
                let answer = match self.take_mode {
                    TakeMode::Concurrent => take_concurrently(self.inner, &buckets).await?,
                    TakeMode::Transaction => take_in_transaction(self.inner, &buckets).await?,
                };
                match answer {
                    Ok(deliveries) => deliveries,
                    Err(denials) => {
                        return Ok(Err(denials
                            .into_iter()
                            .map(|(at, denied)| (several[at].0, denied))
                            .collect()));
                    }
                }
            }
        };
        let mut holds: Vec<_> = self.targets.iter().map(|_| None).collect();
        for ((at, _), delivery) in asked.iter().zip(given) {
            holds[*at] = Some(delivery.claim());
        }
        Ok(Ok(holds))
    }

    /// Waives the amounts that are short, if all of them are in shadow mode. Returns whether any
    /// was removed.
    fn waive_shadow_limits(&mut self, denials: &[(usize, Denied)]) -> bool {
        let is_shadow = |(at, denied): &(usize, Denied)| {
            denied
                .short()
                .all(|short| self.targets[*at].is_shadow || short.mode == LimitMode::Shadow)
        };
        if !denials.iter().all(is_shadow) {
            return false;
        }
        let mut asks_less = false;
        for (at, denied) in denials {
            let short: Vec<_> = denied.short().map(|status| status.limit.as_str()).collect();
            let amounts = &mut self.targets[*at].request.amounts;
            let before = amounts.len();
            amounts
                .retain(|limit: &LimitName, _: &mut MilliTokens| !short.contains(&limit.as_str()));
            if amounts.len() < before {
                asks_less = true;
                let known = self.would_deny[*at].take();
                self.would_deny[*at] = Some(decision::merge_denials(
                    known.into_iter().chain([denied.clone()]),
                ));
            }
        }
        // Without a change, the same attempt would repeat indefinitely.
        asks_less
    }

    fn subscribe_to_returns(&self) -> Vec<Pin<Box<OwnedNotified>>> {
        let listen = |target: &BucketTarget| {
            let mut given_back =
                Box::pin(Arc::clone(&target.bucket.summary().tokens_returned).notified_owned());
            given_back.as_mut().enable();
            given_back
        };
        self.targets.iter().map(listen).collect()
    }
}

/// Takes from all buckets concurrently. If one denies or fails, the tokens of the others return.
async fn take_concurrently(
    inner: &Arc<Inner>,
    asked: &[(&Arc<BucketState>, &BucketRequest)],
) -> Result<AllOrNone, Error> {
    let verdicts = join_all(
        asked
            .iter()
            .map(|(bucket, request)| acquire(inner, bucket, request)),
    )
    .await;
    let (mut deliveries, mut denials, mut failed) = (vec![], vec![], None);
    for (at, verdict) in verdicts.into_iter().enumerate() {
        match verdict {
            Ok(ShardDecision::Granted(delivery)) => deliveries.push(delivery),
            Ok(ShardDecision::Denied(denied)) => denials.push((at, denied)),
            Err(error) => failed = Some(error),
        }
    }
    if denials.is_empty() && failed.is_none() {
        return Ok(Ok(deliveries));
    }
    // Tasks of their own, so they finish even if the request is dropped.
    let tasks: Vec<_> = deliveries
        .into_iter()
        .map(|delivery| tokio::spawn(delivery.claim().roll_back()))
        .collect();
    for task in tasks {
        if let Ok(Err(error)) = task.await {
            tracing::warn!(%error, "tokens of a request that was denied elsewhere could not be given back");
        }
    }
    failed.map_or(Ok(Err(denials)), Err)
}

/// Returns the pause after a denial, with `left` of the wait; `None` if the wait cannot succeed.
/// Slots may return at any time, so they are polled, and once more at the end.
fn pause(denied: &Denied, left: Duration) -> Option<Duration> {
    let (slots, rates): (Vec<_>, Vec<_>) =
        decision::blocking_limits(&denied.limits).partition(|status| status.is_concurrent());
    let rates = rates
        .iter()
        .map(|status: &&LimitStatus| status.retry_after)
        .collect::<Option<Vec<_>>>()?;
    let poll =
        (!slots.is_empty()).then(|| Duration::from_millis(fastrand::u64(50..=150)).min(left));
    rates
        .into_iter()
        .chain(poll)
        .max()
        .filter(|pause| *pause <= left && !left.is_zero())
}

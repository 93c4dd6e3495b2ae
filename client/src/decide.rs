//! Decides about all buckets of a request together: all of them give, or none does.

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
    /// Its limits deny nobody, whatever their own mode.
    pub(crate) is_shadow: bool,
}

impl BucketTarget {
    /// What is asked of each limit.
    pub(crate) fn needs(&self) -> Amounts {
        merge_amounts(&self.request.amounts, &self.request.soft_amounts)
    }
}

/// Whom a request asks.
#[derive(Debug, Default)]
pub(crate) struct ResolvedRequest {
    pub(crate) targets: Vec<BucketTarget>,
    /// Nobody: it is disabled.
    pub(crate) disabled: Option<Disabled>,
    /// The entity itself is unlimited.
    pub(crate) has_unlimited: bool,
    /// By limits that may have changed since they were read.
    pub(crate) limits_may_be_stale: bool,
}

impl ResolvedRequest {
    /// All that both ask.
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

/// What all buckets of a request gave.
#[derive(Debug)]
pub(crate) struct Granted {
    /// Each in its place; none if nothing is counted.
    pub(crate) by_bucket: Vec<BucketGrant>,
    /// Why DynamoDB was not asked.
    pub(crate) degraded: Option<Degraded>,
    /// Nothing is counted of some limits, as they are not enforced.
    pub(crate) has_unlimited: bool,
}

/// What one bucket gave.
#[derive(Debug, Default)]
pub(crate) struct BucketGrant {
    /// Nothing, if all that was asked would have been denied in shadow mode.
    pub(crate) hold: Option<Hold>,
    /// What was taken of a bucket in this process instead.
    pub(crate) local: Option<LocalHold>,
    /// What would have been denied.
    pub(crate) would_deny: Option<Denied>,
}

/// How a request wants to be decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireOptions {
    /// Waits for tokens up to this long.
    pub(crate) wait: Duration,
    pub(crate) take_mode: TakeMode,
    pub(crate) on_unavailable: OnUnavailable,
}

/// How several buckets are taken from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TakeMode {
    /// Side by side, and what some gave goes back if another denies.
    #[default]
    Concurrent,
    /// In one transaction.
    Transaction,
}

/// Decides, or answers without DynamoDB if that is away.
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

/// Counts what was decided.
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
            // Listening begins before the request, or a release between its answer and the wait
            // would be missed.
            let given_back = if wait.is_zero() {
                vec![]
            } else {
                self.subscribe_to_returns()
            };
            let answer = self.take().await?;
            // Whoever waits for tokens does not keep others from asking.
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
                // What a process does then depends on nothing but what it meets.
                biased;
                _ = select_all(given_back) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Whether all that is asked has been taken ahead.
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

    /// What is asked for and is more than a limit ever holds, by one request or by several of the
    /// same bucket.
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

    /// Asks all buckets: what they gave, or who denied and why; then nothing is taken.
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
                // Where one is known to deny, nothing is asked of the others.
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

    /// Takes out what is short in shadow mode, if that is all that was; whether less is asked for
    /// now.
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
        // Asking the same again would not end.
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

/// Asks all buckets at the same time; what some gave goes back if another denies, or cannot say.
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
    // In tasks of their own: they come to an end also if the caller goes away.
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

/// How long to wait after a denial, with `left` to wait in all; `None` if the wait cannot succeed.
/// Slots may come back at any moment, so they are asked for again now and then, and at the end.
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

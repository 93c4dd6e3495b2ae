//! Decides about all buckets of a request together: all of them give, or none does.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;
use weirgate_shared::{BucketKey, LimitMode, LimitName, MilliTokens};

use crate::away::{self, LocalHold, Permit};
use crate::clock::deadline;
use crate::decision::{self, Denied, LimitStatus, NeverFits};
use crate::held::Held;
use crate::inner::Inner;
use crate::line::{Needs, Verdict, all};
use crate::shards::{Request, Shards, Together, ask, ask_together, remembered};
use crate::stats::count;
use crate::{Decision, Degraded, Disabled, Error, WhenAway};

/// One bucket of a request.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) shards: Arc<Shards>,
    pub(crate) request: Request,
    /// Its limits deny nobody, whatever their own mode.
    pub(crate) is_shadow: bool,
}

impl Target {
    /// What is asked of each limit.
    pub(crate) fn needs(&self) -> Needs {
        let Request { needs, soft, .. } = &self.request;
        all(needs, soft)
    }
}

/// Whom a request asks.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) targets: Vec<Target>,
    /// Nobody: it is disabled.
    pub(crate) disabled: Option<Disabled>,
    /// The entity itself is unlimited.
    pub(crate) is_free: bool,
    /// By limits that may have changed since they were read.
    pub(crate) is_old: bool,
}

impl Asked {
    /// All that both ask.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.targets.extend(other.targets);
        let disabled = self.disabled.or(other.disabled);
        Self {
            disabled,
            is_free: self.is_free || other.is_free,
            is_old: self.is_old || other.is_old,
            ..self
        }
    }
}

/// What all buckets of a request gave.
#[derive(Debug)]
pub(crate) struct Given {
    /// Each in its place; none if nothing is counted.
    pub(crate) all: Vec<GivenBy>,
    /// Why DynamoDB was not asked.
    pub(crate) degraded: Option<Degraded>,
    /// Nothing is counted of some limits, as they are not enforced.
    pub(crate) is_free: bool,
}

/// What one bucket gave.
#[derive(Debug, Default)]
pub(crate) struct GivenBy {
    /// Nothing, if all that was asked would have been denied in shadow mode.
    pub(crate) held: Option<Held>,
    /// What was taken of a bucket in this process instead.
    pub(crate) local: Option<LocalHold>,
    /// What would have been denied.
    pub(crate) would_deny: Option<Denied>,
}

/// How a request wants to be decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// Waits for tokens up to this long.
    pub(crate) wait: Duration,
    pub(crate) how: How,
    pub(crate) when_away: WhenAway,
}

/// How several buckets are taken from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum How {
    /// Side by side, and what some gave goes back if another denies.
    #[default]
    SideBySide,
    /// In one transaction.
    Together,
}

/// Decides, or answers without DynamoDB if that is away.
pub(crate) async fn decide(
    inner: &Arc<Inner>,
    asked: Result<Asked, Error>,
    manner: Manner,
) -> Result<Decision<Given>, Error> {
    let Asked {
        targets,
        disabled,
        is_free,
        ..
    } = match asked {
        Ok(asked) => asked,
        Err(error) => return away::answer(inner, manner.when_away, None, error),
    };
    if let Some(disabled) = disabled {
        return Ok(Decision::Disabled(disabled));
    }
    inner.runs_here();
    let would_deny = targets.iter().map(|_| None).collect();
    let mut deciding = Deciding {
        inner,
        targets,
        would_deny,
        how: manner.how,
    };
    let decision = match inner.breaker.admit() {
        Ok(permit) => deciding.run(manner.wait, Some(permit)).await,
        Err(_) if deciding.is_ahead() => deciding.run(manner.wait, None).await,
        Err(open) => Err(open.into()),
    };
    match decision {
        Err(error) => away::answer(inner, manner.when_away, Some(&deciding.targets), error),
        Ok(decision) => Ok(decision.map(|given| Given { is_free, ..given })),
    }
}

/// Counts what was decided.
pub(crate) fn tell(inner: &Inner, decision: &Decision<Given>) {
    let counters = &inner.counters;
    match decision {
        Decision::Granted(given) => {
            count(&counters.granted, 1);
            count(
                &counters.shadow_denied,
                u64::from(given.all.iter().any(|one| one.would_deny.is_some())),
            );
        }
        Decision::Denied(_) => count(&counters.denied, 1),
        Decision::NeverFits(_) | Decision::Disabled(_) => {}
    }
}

struct Deciding<'a> {
    inner: &'a Arc<Inner>,
    targets: Vec<Target>,
    would_deny: Vec<Option<Denied>>,
    how: How,
}

impl Deciding<'_> {
    async fn run(
        &mut self,
        wait: Duration,
        mut permit: Option<Permit<'_>>,
    ) -> Result<Decision<Given>, Error> {
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
                self.listen()
            };
            let answer = self.ask().await?;
            // Whoever waits for tokens does not keep others from asking.
            permit.take();
            let denials = match answer {
                Ok(holds) => {
                    let would_deny = std::mem::take(&mut self.would_deny);
                    let one = |(held, would_deny)| GivenBy {
                        held,
                        local: None,
                        would_deny,
                    };
                    let all = holds.into_iter().zip(would_deny).map(one).collect();
                    return Ok(Decision::Granted(Given {
                        all,
                        degraded: None,
                        is_free: false,
                    }));
                }
                Err(denials) => denials,
            };
            if self.overlook(&denials) {
                continue;
            }
            let left = give_up.saturating_duration_since(Instant::now());
            let denied = decision::all(denials.into_iter().map(|(_, denied)| denied));
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
    fn is_ahead(&self) -> bool {
        let has = |target: &Target| {
            target
                .shards
                .pool
                .as_ref()
                .is_some_and(|pool| pool.has(&target.request))
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
                .filter(|target| target.shards.key == *key);
            same.filter_map(|target| target.request.needs.get(limit))
                .copied()
                .sum()
        };
        let mut above = vec![];
        for (at, target) in self.targets.iter().enumerate() {
            let Target {
                request, shards, ..
            } = target;
            for limit in request
                .limits
                .iter()
                .filter(|limit| request.needs.contains_key(limit.name()))
            {
                let requested = sum(&shards.key, limit.name());
                if requested > limit.rule().capacity {
                    above.push((at, limit.clone(), requested));
                }
            }
        }
        for (at, limit, requested) in above {
            let target = &mut self.targets[at];
            let (key, capacity) = (&target.shards.key, limit.rule().capacity);
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
            let status = decision::never(key, &limit, requested);
            target.request.needs.remove(limit.name());
            let known = self.would_deny[at].take();
            self.would_deny[at] = decision::both(known, Some(decision::denied(vec![status])));
        }
        None
    }

    /// Asks all buckets: what they gave, or who denied and why; then nothing is taken.
    async fn ask(&self) -> Result<Result<Vec<Option<Held>>, Vec<(usize, Denied)>>, Error> {
        let asked: Vec<_> = self
            .targets
            .iter()
            .enumerate()
            .filter(|(_, target)| target.request.asks())
            .collect();
        let given = match &asked[..] {
            [] => vec![],
            [(at, only)] => match ask(self.inner, &only.shards, &only.request).await? {
                Verdict::Granted(delivery) => vec![delivery],
                Verdict::Denied(denied) => return Ok(Err(vec![(*at, denied)])),
            },
            several => {
                // Where one is known to deny, nothing is asked of the others.
                let remembered = |(at, target): &(usize, &Target)| {
                    Some((
                        *at,
                        remembered(self.inner, &target.shards, &target.request)?,
                    ))
                };
                let known: Vec<_> = several.iter().filter_map(remembered).collect();
                if !known.is_empty() {
                    count(&self.inner.counters.local_denied, 1);
                    return Ok(Err(known));
                }
                let buckets: Vec<_> = several
                    .iter()
                    .map(|(_, target)| (&target.shards, &target.request))
                    .collect();
                let answer = match self.how {
                    How::SideBySide => ask_side_by_side(self.inner, &buckets).await?,
                    How::Together => ask_together(self.inner, &buckets).await?,
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
            holds[*at] = Some(delivery.accept());
        }
        Ok(Ok(holds))
    }

    /// Takes out what is short in shadow mode, if that is all that was; whether less is asked for
    /// now.
    fn overlook(&mut self, denials: &[(usize, Denied)]) -> bool {
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
            let needs = &mut self.targets[*at].request.needs;
            let before = needs.len();
            needs.retain(|limit: &LimitName, _: &mut MilliTokens| !short.contains(&limit.as_str()));
            if needs.len() < before {
                asks_less = true;
                let known = self.would_deny[*at].take();
                self.would_deny[*at] =
                    Some(decision::all(known.into_iter().chain([denied.clone()])));
            }
        }
        // Asking the same again would not end.
        asks_less
    }

    fn listen(&self) -> Vec<Pin<Box<OwnedNotified>>> {
        let listen = |target: &Target| {
            let mut given_back =
                Box::pin(Arc::clone(&target.shards.overview().given_back).notified_owned());
            given_back.as_mut().enable();
            given_back
        };
        self.targets.iter().map(listen).collect()
    }
}

/// Asks all buckets at the same time; what some gave goes back if another denies, or cannot say.
async fn ask_side_by_side(
    inner: &Arc<Inner>,
    asked: &[(&Arc<Shards>, &Request)],
) -> Result<Together, Error> {
    let verdicts = join_all(
        asked
            .iter()
            .map(|(shards, request)| ask(inner, shards, request)),
    )
    .await;
    let (mut deliveries, mut denials, mut failed) = (vec![], vec![], None);
    for (at, verdict) in verdicts.into_iter().enumerate() {
        match verdict {
            Ok(Verdict::Granted(delivery)) => deliveries.push(delivery),
            Ok(Verdict::Denied(denied)) => denials.push((at, denied)),
            Err(error) => failed = Some(error),
        }
    }
    if denials.is_empty() && failed.is_none() {
        return Ok(Ok(deliveries));
    }
    // In tasks of their own: they come to an end also if the caller goes away.
    let tasks: Vec<_> = deliveries
        .into_iter()
        .map(|delivery| tokio::spawn(delivery.accept().rollback()))
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
        decision::in_the_way(&denied.limits).partition(|status| status.is_concurrent());
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

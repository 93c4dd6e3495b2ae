//! Decides about all buckets of a request together: all of them give, or none does (design, section 4).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;
use weirgate_shared::{Limit, LimitName, MilliTokens, Mode};

use crate::clock::deadline;
use crate::decision::{self, Denied, LimitStatus, NeverFits};
use crate::held::Held;
use crate::limiter::Inner;
use crate::line::{Delivery, Verdict};
use crate::shards::{Request, Shards, ask, remembered};
use crate::stats::count;
use crate::{Decision, Error};

/// One bucket of a request.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) shards: Arc<Shards>,
    pub(crate) request: Request,
    /// Its limits deny nobody, whatever their own mode.
    pub(crate) is_shadow: bool,
}

/// What all buckets of a request gave, in their order.
#[derive(Debug)]
pub(crate) struct Given {
    /// Nothing, where all that was asked of a bucket would have been denied in shadow mode.
    pub(crate) holds: Vec<Option<Held>>,
    /// What would have been denied.
    pub(crate) would_deny: Vec<Option<Denied>>,
}

/// Decides, waiting for tokens up to `wait`.
pub(crate) async fn decide(inner: &Arc<Inner>, targets: Vec<Target>, wait: Duration) -> Result<Decision<Given>, Error> {
    let would_deny = targets.iter().map(|_| None).collect();
    let decision = Deciding { inner, targets, would_deny }.run(wait).await?;
    let counters = &inner.counters;
    match &decision {
        Decision::Granted(given) => {
            count(&counters.granted, 1);
            count(&counters.shadow_denied, u64::from(given.would_deny.iter().any(Option::is_some)));
        }
        Decision::Denied(_) => count(&counters.denied, 1),
        Decision::NeverFits(_) | Decision::Disabled(_) => {}
    }
    Ok(decision)
}

struct Deciding<'a> {
    inner: &'a Arc<Inner>,
    targets: Vec<Target>,
    would_deny: Vec<Option<Denied>>,
}

impl Deciding<'_> {
    async fn run(mut self, wait: Duration) -> Result<Decision<Given>, Error> {
        if let Some(never) = self.never_fits() {
            return Ok(Decision::NeverFits(never));
        }
        let give_up = deadline(wait);
        loop {
            // Listening begins before the request, or a release between its answer and the wait would be missed.
            let given_back = if wait.is_zero() { vec![] } else { self.listen() };
            let denials = match self.ask().await? {
                Ok(holds) => return Ok(Decision::Granted(Given { holds, would_deny: self.would_deny })),
                Err(denials) => denials,
            };
            if self.overlook(&denials) {
                continue;
            }
            let left = give_up.saturating_duration_since(Instant::now());
            let denied = decision::all(denials.into_iter().map(|(_, denied)| denied));
            let Some(pause) = pause(&denied, left) else { return Ok(Decision::Denied(denied)) };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = select_all(given_back) => {}
            }
        }
    }

    /// What is asked for and is more than a limit ever holds.
    fn never_fits(&mut self) -> Option<NeverFits> {
        for (target, would_deny) in self.targets.iter_mut().zip(&mut self.would_deny) {
            let request = &target.request;
            let above =
                |limit: &&Limit| request.needs.get(limit.name()).is_some_and(|need| *need > limit.rule().capacity);
            let above: Vec<_> = request.limits.iter().filter(above).cloned().collect();
            for limit in above {
                let (key, capacity) = (&target.shards.key, limit.rule().capacity);
                let requested = target.request.needs[limit.name()];
                if !target.is_shadow && limit.mode() != Mode::Shadow {
                    let (entity, resource) = (key.entity.clone(), key.resource.clone());
                    return Some(NeverFits { entity, resource, limit: limit.name().to_string(), requested, capacity });
                }
                target.request.needs.remove(limit.name());
                let status = decision::never(key, &limit, requested);
                *would_deny =
                    Some(decision::all(would_deny.take().into_iter().chain([decision::denied(vec![status])])));
            }
        }
        None
    }

    /// Asks all buckets at once: what they gave, or who denied and why. What the others gave then goes back.
    async fn ask(&self) -> Result<Result<Vec<Option<Held>>, Vec<(usize, Denied)>>, Error> {
        if let [only] = &self.targets[..]
            && only.request.asks()
        {
            return Ok(match ask(self.inner, &only.shards, &only.request).await? {
                Verdict::Granted(delivery) => Ok(vec![Some(delivery.accept())]),
                Verdict::Denied(denied) => Err(vec![(0, denied)]),
            });
        }
        let asked = || self.targets.iter().enumerate().filter(|(_, target)| target.request.asks());
        // Where one is known to deny, nothing is asked of the others.
        let remembered =
            |(at, target): (usize, &Target)| Some((at, remembered(self.inner, &target.shards, &target.request)?));
        let known: Vec<_> = asked().filter_map(remembered).collect();
        if !known.is_empty() {
            return Ok(Err(known));
        }
        let verdicts = join_all(asked().map(|(_, target)| ask(self.inner, &target.shards, &target.request))).await;
        let mut holds: Vec<_> = self.targets.iter().map(|_| None).collect();
        let (mut denials, mut failed) = (vec![], None);
        for ((at, _), verdict) in asked().zip(verdicts) {
            match verdict {
                Ok(Verdict::Granted(delivery)) => holds[at] = Some(delivery),
                Ok(Verdict::Denied(denied)) => denials.push((at, denied)),
                Err(error) => failed = Some(error),
            }
        }
        if denials.is_empty() && failed.is_none() {
            return Ok(Ok(holds.into_iter().map(|delivery| delivery.map(Delivery::accept)).collect()));
        }
        roll_back(holds.into_iter().flatten()).await;
        failed.map_or(Ok(Err(denials)), Err)
    }

    /// Takes out what is short in shadow mode; whether that is all that was.
    fn overlook(&mut self, denials: &[(usize, Denied)]) -> bool {
        let is_shadow = |(at, denied): &(usize, Denied)| {
            denied.short().all(|short| self.targets[*at].is_shadow || short.mode == Mode::Shadow)
        };
        if !denials.iter().all(is_shadow) {
            return false;
        }
        for (at, denied) in denials {
            let short: Vec<_> = denied.short().map(|status| status.limit.as_str()).collect();
            self.targets[*at]
                .request
                .needs
                .retain(|limit: &LimitName, _: &mut MilliTokens| !short.contains(&limit.as_str()));
            let known = self.would_deny[*at].take();
            self.would_deny[*at] = Some(decision::all(known.into_iter().chain([denied.clone()])));
        }
        true
    }

    fn listen(&self) -> Vec<Pin<Box<OwnedNotified>>> {
        let listen = |target: &Target| {
            let mut given_back = Box::pin(Arc::clone(&target.shards.common().given_back).notified_owned());
            given_back.as_mut().enable();
            given_back
        };
        self.targets.iter().map(listen).collect()
    }
}

/// Gives back what was taken for nothing. In tasks of their own: they come to an end also if the caller goes away.
async fn roll_back(deliveries: impl Iterator<Item = Delivery>) {
    let tasks: Vec<_> = deliveries.map(|delivery| tokio::spawn(delivery.accept().rollback())).collect();
    for task in tasks {
        if let Ok(Err(error)) = task.await {
            tracing::warn!(%error, "tokens of a request that was denied elsewhere could not be given back");
        }
    }
}

/// How long to wait after a denial, with `left` to wait in all; `None` if the wait cannot succeed. Slots may come back at
/// any moment, so they are asked for again now and then, and at the end.
fn pause(denied: &Denied, left: Duration) -> Option<Duration> {
    let (slots, rates): (Vec<_>, Vec<_>) = denied.short().partition(|status| status.is_concurrent());
    let rates = rates.iter().map(|status: &&LimitStatus| status.retry_after).collect::<Option<Vec<_>>>()?;
    let poll = (!slots.is_empty()).then(|| Duration::from_millis(fastrand::u64(50..=150)).min(left));
    rates.into_iter().chain(poll).max().filter(|pause| *pause <= left && !left.is_zero())
}

//! Decides over all buckets of a request: takes from all of them, or from none.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, select_all, try_join_all};
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, timeout_at};
use weirgate_shared::{
    Ask, Asks, BucketKey, Effect, EpochMillis, LimitMode, LimitName, MilliTokens, Millis,
    ShardIndex,
};

use super::decision::Decision;
use super::fallback::fall_back;
use super::grant::{BucketGrant, Grant, Granted, Uncounted};
use super::local::LocalBuckets;
use super::stop::{Known, by_cache, by_table, stopped};
use super::targets::ResolvedRequest;
use super::targets::{check_parts, check_targets};
use crate::bucket::{
    Adjustment, AllOrNone, BucketState, BucketTarget, Hold, acquire, cached_denial, take_all,
};
use crate::config::check_functions;
use crate::session::{Permit, Session, deadline, quarter_left};
use crate::values::{
    AcquireOptions, BucketRequest, Denials, Denied, Disabled, Error, LimitStatus, NeverFits,
    Outcome, blocking_limits, count, denial_of, merge_denials, merge_two, never_status,
};

/// Decides a request until `answer_by`, or falls back if DynamoDB is unavailable. After a denial it waits
/// for tokens, if the request is to wait, until `give_up`, which the first attempt sets.
///
/// Returns `None` if it has waited: its limits may have changed meanwhile, so it is resolved again, and
/// the next attempt has its time again.
pub(crate) async fn decide(
    session: &Arc<Session>,
    local_buckets: &LocalBuckets,
    targets: Result<ResolvedRequest, Error>,
    options: AcquireOptions,
    give_up: &mut Option<Instant>,
    answer_by: Instant,
) -> Result<Option<Decision<Granted>>, Error> {
    let ResolvedRequest { targets, buckets, disabled, uncounted, missing_plan, held, .. } =
        match targets {
            Ok(resolved) => resolved,
            Err(error) => {
                let decision = fall_back(session, local_buckets, options, None, error)?;
                return Ok(Some(decision));
            }
        };
    if let Some(disabled) = disabled {
        return Ok(Some(Decision::Disabled(disabled)));
    }
    check_targets(&targets, held)?;
    let would_deny = targets.iter().map(|_| None).collect();
    let mut decider = Decider { session, targets, buckets: &buckets, would_deny, held, answer_by };
    if let Some(never) = decider.never_fits() {
        let never = NeverFits { missing_plan, ..never };
        return Ok(Some(Decision::NeverFits(never)));
    }
    // The decision needs most of the time, and can be made without the switches.
    let patience = quarter_left(answer_by);
    // Boxed, because these reads are rare, and every request would carry the space for them.
    let mut check = None;
    match by_cache(session, &buckets) {
        Known::Stopped(disabled) => return Ok(Some(Decision::Disabled(disabled))),
        Known::Running => {}
        Known::Due => check = Some(Box::pin(by_table(session, &buckets, patience))),
        Known::Unknown => {
            let disabled = Box::pin(by_table(session, &buckets, patience)).await;
            if let Some(disabled) = disabled {
                return Ok(Some(Decision::Disabled(disabled)));
            }
        }
    }
    let wait = (options.wait, give_up);
    let (decision, mut disabled) = match check {
        Some(check) => Box::pin(join(decider.admitted(wait), check)).await,
        None => (decider.admitted(wait).await, None),
    };
    if disabled.is_none()
        && !options.is_now
        && let Ok(Some(Decision::Granted(granted))) = &decision
        && let Some(at) = granted.starts_at()
    {
        disabled = Box::pin(decider.start(at)).await;
    }
    if let Some(disabled) = disabled {
        if let Ok(Some(Decision::Granted(granted))) = decision {
            // A task of its own, so it finishes even if the request is dropped, or has no time left.
            let back = session.spawn(give_back(granted, Arc::clone(session)));
            timeout_at(decider.answer_by, back).await.ok();
        }
        return Ok(Some(Decision::Disabled(disabled)));
    }
    let decision = match decision {
        Ok(None) => return Ok(None),
        Err(error) => {
            let targets = Some(&*decider.targets);
            fall_back(session, local_buckets, options, targets, error)?
        }
        Ok(Some(decision)) => decision,
    };
    Ok(Some(match decision {
        Decision::Granted(granted) => {
            Decision::Granted(Granted { uncounted, missing_plan, ..granted.claim() })
        }
        Decision::Denied(denied) => Decision::Denied(Denied { missing_plan, ..denied }),
        other => other,
    }))
}

/// Returns what was taken for a request that turned out to be stopped.
async fn give_back(granted: Granted, session: Arc<Session>) {
    let grant = Grant::of(granted, &session);
    if let Err(error) = grant.roll_back().await {
        tracing::debug!(%error, "tokens of a stopped request not returned: they count as taken");
    }
}

/// Outcome of one attempt: one hold per target, `None` where nothing was requested, or denials, and
/// nothing was taken.
type Taking = Outcome<Vec<Option<Hold>>, Infallible, Denials>;

struct Decider<'a> {
    session: &'a Arc<Session>,
    targets: Vec<BucketTarget>,
    /// The buckets that are requested, which an operator can stop.
    buckets: &'a [Arc<BucketState>],
    would_deny: Vec<Option<Denied>>,
    /// Parts of the grants within which it is requested.
    held: usize,
    answer_by: Instant,
}

impl Decider<'_> {
    /// Decides unless the circuit breaker is open, or the functions are too old for a limit.
    async fn admitted(
        &mut self,
        wait: (Duration, &mut Option<Instant>),
    ) -> Result<Option<Decision<Granted>>, Error> {
        let limits = self.targets.iter();
        let limits = limits.flat_map(|target| target.request.limits.iter());
        check_functions(self.session, limits, self.answer_by).await?;
        let permit = match self.session.breaker.admit() {
            Ok(permit) => Some(permit),
            Err(_) if self.is_prefetched() => None,
            Err(open) => return Err(open),
        };
        self.run(wait, permit).await
    }

    async fn run(
        &mut self,
        (wait, give_up): (Duration, &mut Option<Instant>),
        mut permit: Option<Permit<'_>>,
    ) -> Result<Option<Decision<Granted>>, Error> {
        let give_up = *give_up.get_or_insert_with(|| deadline(wait));
        loop {
            // Subscribe before the request, or a release between its response and the wait would be
            // missed. An attempt of several writes subscribes after it, and may miss a release:
            // otherwise its own rollback would end its wait.
            let is_one_write = !wait.is_zero() && self.is_one_write();
            let returns = is_one_write.then(|| self.subscribe_to_returns());
            let answer = self.take().await?;
            // A request that waits for tokens must not hold the permit.
            permit.take();
            let denials = match answer {
                Outcome::Granted(mut holds) => {
                    // Buckets may have been split meanwhile; a dropped hold returns what it took.
                    let taken = holds.iter().flatten().map(Hold::part_count);
                    check_parts(taken.sum::<usize>().saturating_add(self.held))?;
                    for (target, hold) in self.targets.iter().zip(&mut holds) {
                        if let Some(hold) = hold {
                            hold.set_shadow(target.is_shadow);
                        }
                    }
                    let ranges = self.ranges();
                    if !ranges.is_empty() {
                        Box::pin(self.level(&mut holds, ranges)).await?;
                    }
                    let would_deny = std::mem::take(&mut self.would_deny);
                    let one = |((target, hold), would_deny): ((&BucketTarget, Option<Hold>), _)| {
                        let nothing = match hold {
                            Some(_) => BucketGrant::default(),
                            None => BucketGrant::uncounted(target),
                        };
                        BucketGrant { hold, would_deny, ..nothing }
                    };
                    let holds = self.targets.iter().zip(holds);
                    let all = holds.zip(would_deny).map(one).collect();
                    let granted = Granted {
                        by_bucket: all,
                        degraded: None,
                        uncounted: Uncounted::default(),
                        missing_plan: None,
                    };
                    return Ok(Some(Decision::Granted(granted)));
                }
                Outcome::Denied(denials) => denials,
            };
            if self.waive_shadow_limits(&denials) || self.waive_shared_buckets(&denials) {
                continue;
            }
            let left = give_up.saturating_duration_since(Instant::now());
            let denied = merge_denials(self.enforced(denials));
            let Some(pause) = pause(&denied, left) else {
                return Ok(Some(Decision::Denied(denied)));
            };
            let returns = select_all(returns.unwrap_or_else(|| self.subscribe_to_returns()));
            let linger = if is_one_write { Duration::ZERO } else { poll_pause() };
            let stopped = self.wait(pause, linger, returns).await;
            return Ok(stopped.map(Decision::Disabled));
        }
    }

    /// Waits for the start of a request that queued. Returns whether it was stopped meanwhile.
    async fn start(&mut self, at: EpochMillis) -> Option<Disabled> {
        let wait = at.since(self.session.now());
        if wait == Millis(0) {
            return None;
        }
        self.renew_time();
        let stopped = self.wait(wait.into(), Duration::ZERO, pending::<()>());
        let stopped = stopped.await;
        self.renew_time();
        stopped
    }

    /// Gives the reads and writes during a wait, or after it, the request's time again.
    fn renew_time(&mut self) {
        let timeouts = self.targets.iter().map(|target| target.request.timeout);
        self.answer_by = deadline(timeouts.min().unwrap_or_default());
    }

    /// Waits for the pause, or until some time after tokens return. Returns whether the request was
    /// stopped meanwhile: the switches are read as often as without a wait.
    async fn wait(
        &self,
        pause: Duration,
        linger: Duration,
        returned: impl Future,
    ) -> Option<Disabled> {
        let (mut until, patience) = (Instant::now() + pause, quarter_left(self.answer_by));
        let switches = &self.session.config_cache.switches;
        let (interval, mut is_returned) = (switches.max_age(self.session), false);
        let mut returned = pin!(returned);
        loop {
            // Subscribe before the check, or a stop in between would be missed.
            let mut changed = pin!(switches.changed.notified());
            changed.as_mut().enable();
            let stopped = stopped(self.session, self.buckets, patience);
            if let Some(disabled) = Box::pin(stopped).await {
                return Some(disabled);
            }
            if Instant::now() >= until {
                return None;
            }
            let next_check = until.min(Instant::now() + interval);
            tokio::select! {
                // A fixed order, so that a run depends only on its inputs.
                biased;
                _ = &mut returned, if !is_returned => {
                    // Two that wait would wake each other by what they give back.
                    (is_returned, until) = (true, until.min(Instant::now() + linger));
                }
                () = tokio::time::sleep_until(next_check) => {}
                () = changed => {}
            }
        }
    }

    /// Returns whether an attempt is one write, which takes all or nothing.
    fn is_one_write(&self) -> bool {
        let asks = |target: &&BucketTarget| !target.request.asks.is_empty();
        let mut asked = self.targets.iter().filter(asks).map(|target| &target.bucket);
        let first = asked.next();
        let is_whole = |bucket: &Arc<BucketState>| {
            bucket.pool.is_none() && bucket.summary().max_shards_seen() == 1
        };
        first.is_some_and(is_whole) && asked.next().is_none()
    }

    /// Returns whether the pools cover all amounts.
    fn is_prefetched(&self) -> bool {
        let has = |target: &BucketTarget| {
            let pool = target.bucket.serving_pool(&self.session.env);
            pool.is_some_and(|pool| pool.covers(&target.request))
        };
        !self.targets.is_empty() && self.targets.iter().all(has)
    }

    /// Takes from all buckets, or from none.
    async fn take(&self) -> Result<Taking, Error> {
        let requested: Vec<_> = self
            .targets
            .iter()
            .enumerate()
            .filter(|(_, target)| !target.request.asks.is_empty())
            .collect();
        let taken = match &requested[..] {
            [] => Outcome::Granted(vec![]),
            [(_, only)] => {
                match acquire(self.session, &only.bucket, &only.request, self.answer_by).await? {
                    Outcome::Granted(hold) => Outcome::Granted(vec![hold]),
                    Outcome::Denied(denied) => Outcome::Denied(vec![(0, denied)]),
                }
            }
            several => Box::pin(self.take_several(several)).await?,
        };
        Ok(match taken {
            Outcome::Granted(taken) => {
                let mut holds: Vec<_> = self.targets.iter().map(|_| None).collect();
                for ((at, _), hold) in requested.iter().zip(taken) {
                    holds[*at] = Some(hold);
                }
                Outcome::Granted(holds)
            }
            Outcome::Denied(denials) => Outcome::Denied(
                denials.into_iter().map(|(at, denied)| (requested[at].0, denied)).collect(),
            ),
        })
    }

    async fn take_several(&self, several: &[(usize, &BucketTarget)]) -> Result<AllOrNone, Error> {
        // If one denial is cached, the other buckets need no request.
        let cached = |(at, (_, target)): (usize, &(usize, &BucketTarget))| {
            Some((at, cached_denial(&self.session.env, &target.bucket, &target.request)?))
        };
        let cached: Vec<_> = several.iter().enumerate().filter_map(cached).collect();
        if !cached.is_empty() {
            count(&self.session.env.counters.local_denied, 1);
            return Ok(Outcome::Denied(cached));
        }
        let buckets: Vec<_> =
            several.iter().map(|(_, target)| (&target.bucket, &target.request)).collect();
        take_all(self.session, &buckets, self.answer_by).await
    }

    /// Returns the limits of which as much is taken as there is, each with the place of its request.
    fn ranges(&self) -> BTreeSet<(usize, &str)> {
        let ranges = self.targets.iter().flat_map(|target| {
            let asks = target.request.asks.iter();
            let ranges = asks.filter(|ask| ask.most > ask.amount);
            ranges.map(|ask| (target.request_at, ask.limit.base()))
        });
        ranges.collect()
    }

    /// Returns what a bucket gave of a range above what another one of its request gave that enforces it: the
    /// caller uses no more than that. What is not claimed yet returns as a whole if this fails, or has no time
    /// left.
    async fn level(
        &self,
        holds: &mut [Option<Hold>],
        ranges: BTreeSet<(usize, &str)>,
    ) -> Result<(), Error> {
        for (request_at, limit) in ranges {
            let of_request = self.targets.iter().zip(&mut *holds);
            let of_request = of_request.filter(|(target, _)| target.request_at == request_at);
            let given: Vec<_> = of_request.filter_map(|(_, hold)| hold.as_mut()).collect();
            let enforcing = given.iter().filter(|hold| hold.enforces(limit));
            let Some(least) = enforcing.map(|hold| hold.amount(limit)).min() else {
                continue;
            };
            let above = given.into_iter().filter(|hold| hold.amount(limit) > least);
            let level = above.map(|hold| hold.adjust(limit, Adjustment::AtMost(least)));
            let level: Vec<_> = level.collect();
            let Some(first) = self.targets.first().filter(|_| !level.is_empty()) else {
                continue;
            };
            let Ok(leveled) = timeout_at(self.answer_by, Box::pin(try_join_all(level))).await
            else {
                let (key, within) = (&first.bucket.key, first.request.timeout);
                return Err(Error::timeout(key, within, None));
            };
            leveled?;
        }
        Ok(())
    }

    fn subscribe_to_returns(&self) -> Vec<Pin<Box<OwnedNotified>>> {
        let listen = |target: &BucketTarget| {
            let mut returns =
                Box::pin(Arc::clone(&target.bucket.summary().tokens_returned).notified_owned());
            returns.as_mut().enable();
            returns
        };
        self.targets.iter().map(listen).collect()
    }
}

/// Returns a random time after which slots are looked for again, 50 to 150 ms.
fn poll_pause() -> Duration {
    Duration::from_millis(fastrand::u64(50..=150))
}

/// Returns the pause after a denial, with `left` of the wait; `None` if the wait cannot succeed.
/// Slots may return at any time, so they are polled, and once more at the end.
fn pause(denied: &Denied, left: Duration) -> Option<Duration> {
    let (slots, rates): (Vec<_>, Vec<_>) =
        blocking_limits(&denied.limits).partition(|status| status.may_return());
    let rates =
        rates.iter().map(|status: &&LimitStatus| status.retry_after).collect::<Option<Vec<_>>>()?;
    let poll = (!slots.is_empty()).then(|| poll_pause().min(left));
    rates.into_iter().chain(poll).max().filter(|pause| *pause <= left && !left.is_zero())
}

impl Decider<'_> {
    /// Returns an amount above its limit's capacity, from one request or from several on the same
    /// bucket. In shadow mode, waives it instead. An enforced amount counts without those in shadow
    /// mode.
    pub(super) fn never_fits(&mut self) -> Option<NeverFits> {
        for target in &mut self.targets {
            leave_out_small_pools(&mut target.request);
        }
        let sum = |key: &BucketKey, limit: &LimitName, is_shadow: bool| -> MilliTokens {
            let counts = |target: &&BucketTarget| {
                let has_choice = !target.request.others.is_empty();
                target.bucket.key == *key && (is_shadow || !target.is_shadow) && !has_choice
            };
            let same = self.targets.iter().filter(counts);
            same.filter_map(|target| target.request.asks.enforced(limit.as_str())).sum()
        };
        let mut above = vec![];
        for (at, target) in self.targets.iter().enumerate() {
            let BucketTarget { request, bucket, .. } = target;
            for limit in request
                .limits
                .iter()
                .filter(|limit| request.asks.enforced(limit.name().as_str()).is_some())
            {
                // What one pool lacks for several requests, another one may have.
                let requested = match request.others.is_empty() {
                    true => sum(&bucket.key, limit.name(), target.is_shadow),
                    false => request.asks.enforced(limit.name().as_str()).unwrap_or_default(),
                };
                let capacity = limit.rule().capacity
                    - request.asks.floor(limit.name().as_str(), ShardIndex::UNSPLIT);
                if requested > capacity {
                    above.push((at, limit.clone(), requested, capacity));
                }
            }
        }
        for (at, limit, requested, capacity) in above {
            let target = &mut self.targets[at];
            let key = &target.bucket.key;
            if !target.is_shadow && limit.mode() != LimitMode::Shadow {
                let (entity, resource) = (key.entity.clone(), key.resource.clone());
                return Some(NeverFits {
                    entity,
                    resource,
                    limit: limit.name().base().to_owned(),
                    requested,
                    capacity,
                    missing_plan: None,
                });
            }
            let status = never_status(key, &limit, requested);
            waive(&mut target.request, |name| name == limit.name().base());
            let known = self.would_deny[at].take();
            self.would_deny[at] = merge_two(known, Some(denial_of(vec![status])));
        }
        None
    }

    /// Waives the amounts that are short, if all of them are in shadow mode. Returns whether any
    /// was removed.
    pub(super) fn waive_shadow_limits(&mut self, denials: &[(usize, Denied)]) -> bool {
        let is_shadow = |(at, denied): &(usize, Denied)| {
            denied
                .short()
                .all(|short| self.targets[*at].is_shadow || short.mode == LimitMode::Shadow)
        };
        if !denials.iter().all(is_shadow) {
            return false;
        }
        let mut has_waived = false;
        for (at, denied) in denials {
            let short: Vec<_> = denied.short().map(|status| status.limit.as_str()).collect();
            let request = &mut self.targets[*at].request;
            if waive(request, |name| short.contains(&name)) {
                has_waived = true;
                let known = self.would_deny[*at].take();
                self.would_deny[*at] =
                    Some(merge_denials(known.into_iter().chain([denied.clone()])));
            }
        }
        // Without a change, the same attempt would repeat indefinitely.
        has_waived
    }

    /// Waives what requests in shadow mode ask of buckets that deny an enforced request, because
    /// they may have taken what it lacks. Returns whether any amount was removed.
    pub(super) fn waive_shared_buckets(&mut self, denials: &[(usize, Denied)]) -> bool {
        let mut has_waived = false;
        for (at, denied) in denials {
            if self.targets[*at].is_shadow {
                continue;
            }
            let key = self.targets[*at].bucket.key.clone();
            for (other, target) in self.targets.iter_mut().enumerate() {
                if target.is_shadow && target.bucket.key == key && !target.request.asks.is_empty() {
                    target.request.asks = Asks::default();
                    target.request.others.clear();
                    let known = self.would_deny[other].take();
                    self.would_deny[other] = merge_two(known, Some(denied.clone()));
                    has_waived = true;
                }
            }
        }
        has_waived
    }

    /// Returns the denials of enforced requests: those in shadow mode are no part of the answer, and
    /// prolong no wait.
    pub(super) fn enforced(&self, denials: Vec<(usize, Denied)>) -> Vec<Denied> {
        let is_enforced = |(at, _): &(usize, Denied)| !self.targets[*at].is_shadow;
        let has_enforced = denials.iter().any(is_enforced);
        let counts = |denial: &(usize, Denied)| is_enforced(denial) || !has_enforced;
        let denials = denials.into_iter().filter(counts);
        denials.map(|(_, denied)| denied).collect()
    }
}

/// Leaves out the enforced amounts of some limits. Returns whether there were any.
fn waive(request: &mut BucketRequest, is_waived: impl Fn(&str) -> bool) -> bool {
    let has_waived = Cell::new(false);
    request.retain(|ask| {
        let waives = ask.effect == Effect::Enforce && is_waived(ask.limit.base());
        has_waived.set(has_waived.get() || waives);
        !waives
    });
    has_waived.get()
}

/// Leaves out the choices of pools that the amounts exceed. If all are exceeded, the one with the most
/// room stays.
fn leave_out_small_pools(request: &mut BucketRequest) {
    if request.others.is_empty() {
        return;
    }
    let limits = request.limits.clone();
    let room = |asks: &Asks| {
        let room = |ask: &Ask| {
            let mut limits = limits.iter();
            let limit = limits.find(|limit| *limit.name() == ask.limit)?;
            Some(limit.rule().capacity - ask.floor - ask.amount)
        };
        let enforced = asks.iter().filter(|ask| ask.effect.must_be_covered());
        enforced.filter_map(room).min().unwrap_or_default()
    };
    let mut all = vec![std::mem::take(&mut request.asks)];
    all.append(&mut request.others);
    let most = all.iter().map(room).max().unwrap_or_default();
    all.retain(|asks| room(asks) >= most.min(MilliTokens::ZERO));
    request.asks = all.remove(0);
    request.others = all;
}

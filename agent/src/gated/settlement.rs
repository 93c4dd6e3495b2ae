//! What a request was given, and what its caller does with that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use weirgate::{
    Degraded, Denied, EpochMillis, Error, Grant, LimitName, LimitStatus, MilliTokens, PlanName,
    RateLimiter, Settlement, VendorReport,
};

use super::grants::{join, restore};
use super::measures::{Call, Measures, Outcome};

/// The grants of one request, one per bucket in their order. Dropping them releases their slots;
/// their rate tokens stay consumed.
#[derive(Debug)]
#[must_use = "dropping grants releases their slots"]
pub struct Granted(pub Vec<Grant>);

impl Granted {
    /// Returns the amounts taken from each bucket.
    #[must_use]
    pub fn amounts(&self) -> Vec<BTreeMap<LimitName, MilliTokens>> {
        self.0.iter().map(Grant::amounts).collect()
    }

    /// Returns every limit of the buckets, right after the take.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStatus> {
        self.0.iter().flat_map(Grant::limits).collect()
    }

    /// Returns the earliest expiry of the leases.
    #[must_use]
    pub fn expires_at(&self) -> Option<EpochMillis> {
        self.0.iter().filter_map(Grant::expires_at).min()
    }

    /// Returns when all start that queued: the latest start.
    #[must_use]
    pub fn starts_at(&self) -> Option<EpochMillis> {
        self.0.iter().filter_map(Grant::starts_at).max()
    }

    /// Returns the denial that shadow mode waived, of all buckets together.
    #[must_use]
    pub fn would_deny(&self) -> Option<Denied> {
        let waived: Vec<_> = self.0.iter().filter_map(Grant::would_deny).collect();
        if waived.is_empty() {
            return None;
        }
        let waits: Option<Vec<Duration>> = waived.iter().map(|denied| denied.retry_after).collect();
        Some(Denied {
            retry_after: waits.and_then(|waits| waits.into_iter().max()),
            starts_in: None,
            limits: waived.iter().flat_map(|denied| denied.limits.iter().cloned()).collect(),
            degraded: waived.iter().find_map(|denied| denied.degraded.clone()),
            missing_plan: None,
        })
    }

    /// Returns why the decision was made without DynamoDB.
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        self.0.iter().find_map(Grant::degraded)
    }

    /// Returns the plan of an entity, or of an ancestor, that does not exist: the first one.
    #[must_use]
    pub fn missing_plan(&self) -> Option<&PlanName> {
        self.0.iter().find_map(Grant::missing_plan)
    }

    /// Turns the grants into one token, which alone can settle them from now on.
    #[must_use = "only the token can still settle the grants"]
    pub fn into_token(self) -> String {
        join(self.0)
    }
}

/// Changes of a grant, in the order of the fields, and how it ends.
#[derive(Debug, Clone, Default)]
pub struct Settle {
    /// The grant's token.
    pub grant: String,
    /// Place of the one bucket that changes. Default: each that has the limit, or a lease.
    pub bucket: Option<usize>,
    /// What the vendor said of the buckets. It is reported beside the changes, because a pause is
    /// urgent, and a report that fails is no error of the settlement.
    pub vendor: Option<VendorReport>,
    /// Amounts that were really used.
    pub adjust: Vec<(String, MilliTokens)>,
    /// Amounts to be returned.
    pub give_back: Vec<(String, MilliTokens)>,
    /// How long the lease lasts from now.
    pub renew: Option<Duration>,
    /// How the grant ends. Default: it does not.
    pub end: Option<End>,
}

/// How a grant ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Slots return, rate tokens stay consumed.
    Release,
    /// All tokens return.
    RollBack,
}

/// A grant after its changes.
#[derive(Debug)]
pub struct Settled {
    /// The grant as it is now; `None` if it has ended.
    pub granted: Option<Granted>,
    /// Whether all changes were applied.
    pub settlement: Settlement,
    /// Last end of the buckets' pauses by `vendor`; `None` without one.
    pub paused_until: Option<EpochMillis>,
    /// Amounts of each bucket, as settled.
    pub amounts: Vec<BTreeMap<LimitName, MilliTokens>>,
}

/// A settlement that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct SettleError {
    /// The reason.
    pub error: Box<Error>,
    /// Whether some change was applied, or may have been.
    pub may_be_applied: bool,
    /// The grant as it is now, if it has changed and may not have ended, and going on with it counts once.
    pub grant: Option<String>,
}

/// Settles a grant. All changes are checked before the first write.
pub(super) async fn settle(
    limiter: &RateLimiter,
    measures: &Arc<Measures>,
    settle: Settle,
) -> Result<Settled, SettleError> {
    let granted = Granted(restore(limiter, &settle.grant).map_err(before)?);
    let steps = Steps::check(&granted.0, &settle).map_err(before)?;
    // In a task, so that it goes on beside a settlement that fails first.
    let reported = settle.vendor.is_some().then(|| {
        let reported = report(&granted.0, measures, &settle);
        tokio::spawn(timeout(limiter.timeout(), reported))
    });
    let settled = change_and_end(limiter, granted, steps, settle.end).await?;
    let paused_until = match reported {
        Some(reported) => reported.await.ok().and_then(|in_time| {
            in_time.unwrap_or_else(|late| {
                tracing::warn!(error = %late, "a bucket may not be paused");
                None
            })
        }),
        None => None,
    };
    Ok(Settled { paused_until, ..settled })
}

/// Reports what the vendor said to the buckets. Returns the last end of their pauses.
fn report(
    grants: &[Grant],
    measures: &Arc<Measures>,
    settle: &Settle,
) -> impl Future<Output = Option<EpochMillis>> + Send + use<> {
    let is_meant = |at: &usize| settle.bucket.is_none_or(|bucket| bucket == *at);
    let vendor = settle.vendor.iter();
    let reports = vendor.flat_map(|vendor| {
        let meant = grants.iter().enumerate().filter(|(at, _)| is_meant(at));
        meant.map(|(_, grant)| (grant.report_vendor(vendor), Arc::clone(measures)))
    });
    let reports = join_all(reports.map(|(report, measures)| async move {
        let measuring = measures.begin(Call::Report);
        let reported = report.await;
        let outcome = reported.as_ref().map_or(Outcome::NoDecision, |_| Outcome::Granted);
        measuring.end(outcome);
        reported
            .inspect_err(|error| tracing::warn!(%error, "a bucket was not paused"))
            .unwrap_or_default()
    }));
    async { reports.await.into_iter().flatten().max() }
}

/// Makes the changes and ends the grants, first those with a lease: only a lease remembers that the text
/// was settled before. If one is gone, the grants without one stay as they are, so that a repeated
/// settlement counts once in their buckets too. A change of a grant that ends is a part of its end.
async fn change_and_end(
    limiter: &RateLimiter,
    granted: Granted,
    steps: Steps,
    end: Option<End>,
) -> Result<Settled, SettleError> {
    let mut progress = Progress::default();
    let mut amounts = granted.amounts();
    let mut grants: Vec<_> = granted.0.into_iter().map(Some).collect();
    for is_leased in [true, false] {
        let places: Vec<_> = (0..grants.len())
            .filter(|at| {
                let grant = grants[*at].as_ref();
                grant.is_some_and(|grant| grant.expires_at().is_some() == is_leased)
            })
            .collect();
        let is_changed = end.is_none() || end == Some(End::Release) && !is_leased;
        let mut settled = Ok(());
        if is_changed {
            settled = change(&mut grants, &places, &steps, &mut progress).await;
        }
        for at in &places {
            if let Some(grant) = &grants[*at] {
                amounts[*at] = grant.amounts();
            }
        }
        if let (Ok(()), Some(end)) = (&settled, end) {
            let ended = end_all(limiter, (&mut grants, &places), &steps, end).await;
            for (at, corrected, _) in &ended {
                amounts[*at].clone_from(corrected);
            }
            settled = progress.add(ended.into_iter().map(|(_, _, written)| written));
        }
        if let Err(mut error) = settled {
            // The text that the client has is of the amounts before.
            let left: Vec<_> = grants.into_iter().flatten().collect();
            let is_changed = error.may_be_applied && !left.is_empty();
            error.grant = (is_changed && !progress.is_in_doubt).then(|| join(left));
            return Err(error);
        }
        if progress.settlement == Settlement::LeaseGone {
            break;
        }
    }
    let left = grants.into_iter().flatten().collect();
    Ok(Settled {
        granted: end.is_none().then_some(Granted(left)),
        settlement: progress.settlement,
        paused_until: None,
        amounts,
    })
}

/// Makes the changes at these places that do not end the grants.
async fn change(
    grants: &mut [Option<Grant>],
    places: &[usize],
    steps: &Steps,
    progress: &mut Progress,
) -> Result<(), SettleError> {
    for (of_step, limit, actual) in &steps.adjust {
        let changes = at(grants, |at| places.contains(at) && of_step.contains(at));
        let changes = changes.map(|grant| async {
            let changed = grant.adjust_milli(limit, *actual).await;
            Written::of(grant, changed)
        });
        progress.add(join_all(changes).await)?;
    }
    for (of_step, limit, back) in &steps.give_back {
        for grant in at(grants, |at| places.contains(at) && of_step == at) {
            let changed = grant.give_back_milli(limit, *back).await;
            progress.add([Written::of(grant, changed)])?;
        }
    }
    if let Some((of_step, lasts)) = &steps.renew {
        let renewals = at(grants, |at| places.contains(at) && of_step.contains(at));
        let renewals = renewals.map(|grant| async {
            // One that is repeated counts once.
            Written::repeatable(grant.parts(), grant.renew(*lasts).await)
        });
        progress.add(join_all(renewals).await)?;
    }
    Ok(())
}

/// An end of the grant at a place: its amounts after it, and the outcome.
type Ended = (usize, BTreeMap<LimitName, MilliTokens>, Written);

/// Ends the grants at these places. Of those that fail, the ones stay that can be ended again.
async fn end_all(
    limiter: &RateLimiter,
    (grants, places): (&mut [Option<Grant>], &[usize]),
    steps: &Steps,
    end: End,
) -> Vec<Ended> {
    let ending = places.iter().filter_map(|at| Some((*at, grants[*at].take()?)));
    let ended = ending.map(|(at, grant)| ended(limiter, (at, grant), steps, end));
    let ended = join_all(ended).await.into_iter().map(|(left, ended)| {
        grants[ended.0] = left;
        ended
    });
    ended.collect()
}

/// Ends the grant at a place. Returns it if it failed and another end cannot count twice: a release without
/// a lease writes nothing, and one with a lease ends once.
async fn ended(
    limiter: &RateLimiter,
    (at, grant): (usize, Grant),
    steps: &Steps,
    end: End,
) -> (Option<Grant>, Ended) {
    let (parts, has_lease) = (grant.parts(), grant.expires_at().is_some());
    let mut amounts = grant.amounts();
    if end == End::Release && !has_lease {
        let released = Written::repeatable(0, grant.release().await);
        return (None, (at, amounts, released));
    }
    let token = grant.into_token();
    let restored = || limiter.restore_grant(&token);
    let outcome = match (restored(), end) {
        (Ok(grant), End::Release) => {
            let (adjust, give_back) = steps.of(at);
            grant.release_with(&adjust, &give_back).await
        }
        (Ok(grant), End::RollBack) => grant.roll_back().await,
        (Err(error), _) => Err(error),
    };
    if let Ok(Settlement::Applied) = outcome {
        steps.correct(at, &mut amounts);
    }
    let can_repeat = |error: &Error| has_lease || !may_be_applied(error);
    let left = outcome.as_ref().err().filter(|error| can_repeat(error));
    let left = left.and_then(|_| restored().ok());
    (left, (at, amounts, Written::repeatable(parts, outcome)))
}

/// Returns the grants whose places are meant.
fn at<'a>(
    grants: &'a mut [Option<Grant>],
    is_meant: impl Fn(&usize) -> bool + 'a,
) -> impl Iterator<Item = &'a mut Grant> + 'a {
    let grants = grants.iter_mut().enumerate();
    let meant = grants.filter(move |(at, _)| is_meant(at));
    meant.filter_map(|(_, grant)| grant.as_mut())
}

/// A settlement of one grant.
struct Written {
    /// Number of its writes.
    writes: usize,
    outcome: Result<Settlement, Error>,
    /// Whether the grant may have other amounts than it says.
    is_in_doubt: bool,
}

impl Written {
    /// Returns the change of a grant.
    fn of(grant: &Grant, outcome: Result<Settlement, Error>) -> Self {
        let error = outcome.as_ref().err();
        Self {
            is_in_doubt: error.is_some_and(|error| counts_twice(error, grant)),
            ..Self::repeatable(grant.parts(), outcome)
        }
    }

    /// Returns a settlement that leaves nothing which another one counts twice.
    const fn repeatable(writes: usize, outcome: Result<Settlement, Error>) -> Self {
        Self { writes, outcome, is_in_doubt: false }
    }
}

/// Returns whether a change that failed counts twice if it is made again: it may be applied, and no lease
/// tells. One that stopped halfway goes on.
pub(super) fn counts_twice(error: &Error, grant: &Grant) -> bool {
    may_be_applied(error) && !matches!(error, Error::Halfway(_)) && !grant.is_leased()
}

/// What was settled so far.
struct Progress {
    settlement: Settlement,
    is_begun: bool,
    is_in_doubt: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self { settlement: Settlement::Applied, is_begun: false, is_in_doubt: false }
    }
}

impl Progress {
    /// Adds the outcomes of one step. Returns the first error.
    fn add(&mut self, done: impl IntoIterator<Item = Written>) -> Result<(), SettleError> {
        let mut failed = None;
        for written in done {
            self.is_in_doubt |= written.is_in_doubt;
            match written.outcome {
                Ok(settlement) => {
                    self.is_begun |= written.writes > 0;
                    if settlement == Settlement::LeaseGone {
                        self.settlement = settlement;
                    }
                }
                Err(error) => {
                    self.is_begun |= may_be_applied(&error);
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            None => Ok(()),
            Some(error) => Err(SettleError::of(error, self.is_begun)),
        }
    }
}

impl SettleError {
    /// Returns the error of a change, after which others were applied or not.
    pub(super) fn of(error: Error, is_begun: bool) -> Self {
        Self {
            may_be_applied: is_begun || may_be_applied(&error),
            error: Box::new(error),
            grant: None,
        }
    }
}

/// Returns whether a write of a change that failed may be applied. One whose time ran out may have
/// been sent.
pub(super) fn may_be_applied(error: &Error) -> bool {
    error.is_unknown() || matches!(error, Error::Timeout { .. })
}

/// Returns the error of a request before anything was sent.
pub(super) fn before(error: Error) -> SettleError {
    SettleError { error: Box::new(error), may_be_applied: false, grant: None }
}

/// Returns the places of the grants that a change is for.
pub(super) fn targets(grants: &[Grant], bucket: Option<usize>) -> Result<Vec<usize>, Error> {
    match bucket {
        None => Ok((0..grants.len()).collect()),
        Some(at) if at < grants.len() => Ok(vec![at]),
        Some(at) => Err(Error::Invalid(format!(
            "bucket must be below {}, the number of the grant's buckets, got {at}: count from 0",
            grants.len()
        ))),
    }
}

/// Returns the targets that have taken a limit, or all of them if none has.
pub(super) fn holders(grants: &[Grant], targets: &[usize], limit: &str) -> Vec<usize> {
    let has = |at: &&usize| grants[**at].amounts().contains_key(limit);
    let holders: Vec<_> = targets.iter().filter(has).copied().collect();
    if holders.is_empty() { targets.to_vec() } else { holders }
}

/// Changes that were checked, each with the places of its grants.
struct Steps {
    adjust: Vec<(Vec<usize>, String, MilliTokens)>,
    give_back: Vec<(usize, String, MilliTokens)>,
    renew: Option<(Vec<usize>, Duration)>,
}

impl Steps {
    /// Checks all changes, before anything is sent.
    fn check(grants: &[Grant], settle: &Settle) -> Result<Self, Error> {
        let targets = targets(grants, settle.bucket)?;
        let mut adjust = vec![];
        for (limit, actual) in &settle.adjust {
            let holders = holders(grants, &targets, limit);
            let places = possible(grants, &holders, |grant| grant.check_adjust(limit))?;
            for at in &places {
                grants[*at].check_adjust_milli(limit, *actual)?;
            }
            adjust.push((places, limit.clone(), *actual));
        }
        let renew = match settle.renew {
            None => None,
            Some(lasts) => {
                let check = |grant: &Grant| grant.check_renew(lasts).map(|()| true);
                let places = possible(grants, &targets, check)?;
                Some((places, lasts))
            }
        };
        Ok(Self { give_back: checked(grants, &targets, settle)?, adjust, renew })
    }
}

/// Returns the places of the grants that a change concerns by a check. An error of one counts only if no
/// other passes.
pub(super) fn possible(
    grants: &[Grant],
    places: &[usize],
    check: impl Fn(&Grant) -> Result<bool, Error>,
) -> Result<Vec<usize>, Error> {
    let (mut possible, mut passes, mut refused) = (vec![], false, None);
    for at in places {
        match check(&grants[*at]) {
            Ok(is_changed) => {
                passes = true;
                possible.extend(is_changed.then_some(*at));
            }
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        Some(error) if !passes => Err(error),
        _ => Ok(possible),
    }
}

/// Amounts by limit, borrowed.
type Amounts<'a> = Vec<(&'a str, MilliTokens)>;

impl Steps {
    /// Returns what changes of the grant at a place: the amounts used, and those returned.
    fn of(&self, at: usize) -> (Amounts<'_>, Amounts<'_>) {
        let adjust = self.adjust.iter().filter(|(places, ..)| places.contains(&at));
        let give_back = self.give_back.iter().filter(|(place, ..)| *place == at);
        (
            adjust.map(|(_, limit, actual)| (limit.as_str(), *actual)).collect(),
            give_back.map(|(_, limit, back)| (limit.as_str(), *back)).collect(),
        )
    }

    /// Changes the amounts of the grant at a place as its end does.
    fn correct(&self, at: usize, amounts: &mut BTreeMap<LimitName, MilliTokens>) {
        let (adjust, give_back) = self.of(at);
        for (limit, actual) in adjust {
            amounts.extend(LimitName::new(limit).ok().map(|limit| (limit, actual)));
        }
        for (limit, back) in give_back {
            if let Some(amount) = amounts.get_mut(limit) {
                *amount -= back;
            }
        }
    }
}

/// Checks the amounts to be returned, before anything is sent. Returns the place, limit and amount of each.
fn checked(
    grants: &[Grant],
    targets: &[usize],
    settle: &Settle,
) -> Result<Vec<(usize, String, MilliTokens)>, Error> {
    let mut all = vec![];
    for (limit, back) in &settle.give_back {
        let adjusted = settle.adjust.iter().find(|(name, _)| name == limit);
        let mut is_counted = false;
        for at in holders(grants, targets, limit) {
            let amounts = grants[at].amounts();
            let Some(held) = amounts.get(limit.as_str()) else {
                continue;
            };
            is_counted = true;
            let held = adjusted.map_or(*held, |(_, actual)| *actual);
            if *back > held || back.0 < 0 {
                return Err(Error::Invalid(format!(
                    "give_back of {limit:?} must be 0 to {held}, what the grant holds, got {back}: give back at most {held}"
                )));
            }
            all.push((at, limit.clone(), *back));
        }
        // Nothing is counted of a limit that is not enforced.
        let is_uncounted = |at: &usize| {
            grants[*at].amounts().is_empty() && grants[*at].check_adjust(limit).is_ok()
        };
        if !is_counted && !targets.iter().any(is_uncounted) {
            return Err(Error::Invalid(format!(
                "give_back names {limit:?}, of which the grant holds nothing: name a limit that it took"
            )));
        }
    }
    Ok(all)
}

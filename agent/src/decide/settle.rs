//! What a caller does with a grant.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use weirgate::{Error, Grant, LimitName, MilliTokens, RateLimiter, Settlement};

use super::grant_token;
use super::granted::Granted;

/// Changes of a grant, in the order of the fields, and how it ends.
#[derive(Debug, Clone, Default)]
pub struct Settle {
    /// The grant's token.
    pub grant: String,
    /// Place of the one bucket whose amounts change. Default: each that has the limit.
    pub bucket: Option<usize>,
    /// Amounts that were really used.
    pub adjust: Vec<(String, MilliTokens)>,
    /// Amounts to be returned.
    pub give_back: Vec<(String, MilliTokens)>,
    /// How long the lease lasts from now.
    pub renew: Option<Duration>,
    /// How the grant ends. Default: it does not.
    pub end: Option<End>,
}

/// More tokens within a grant, all or nothing.
#[derive(Debug, Clone, Default)]
pub struct TakeMore {
    /// The grant's token.
    pub grant: String,
    /// Place of the one bucket to take from. Default: each that has the limit.
    pub bucket: Option<usize>,
    /// Whole tokens per limit.
    pub amounts: Vec<(String, i64)>,
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
    /// Amounts of each bucket, as settled.
    pub amounts: Vec<BTreeMap<LimitName, MilliTokens>>,
}

/// A settlement that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct SettleError {
    /// The reason.
    pub error: Error,
    /// Whether some change was applied, or may have been.
    pub may_be_applied: bool,
}

/// Settles a grant.
pub(super) async fn settle(limiter: &RateLimiter, settle: Settle) -> Result<Settled, SettleError> {
    let mut grants = grant_token::restore(limiter, &settle.grant).map_err(before)?;
    let targets = targets(&grants, settle.bucket).map_err(before)?;
    let give_back = checked(&grants, &targets, &settle).map_err(before)?;
    let mut progress = Progress::default();
    for (limit, actual) in &settle.adjust {
        let places = holders(&grants, &targets, limit);
        let done = adjust(&mut grants, &places, limit, *actual).await;
        progress.add(done)?;
    }
    for (at, limit, rest) in give_back {
        let done = grants[at].adjust_milli(&limit, rest).await;
        progress.add(done)?;
    }
    if let Some(lasts) = settle.renew {
        let renewals = grants.iter_mut().map(|grant| grant.renew(lasts));
        progress.add(all(join_all(renewals).await))?;
    }
    let mut granted = Granted(grants);
    let amounts = granted.amounts();
    let ended = match settle.end {
        None => None,
        Some(End::Release) => Some(all(join_all(granted.0.drain(..).map(Grant::release)).await)),
        Some(End::RollBack) => Some(all(
            join_all(granted.0.drain(..).map(Grant::roll_back)).await
        )),
    };
    let has_ended = ended.is_some();
    if let Some(ended) = ended {
        progress.add(ended)?;
    }
    Ok(Settled {
        granted: (!has_ended).then_some(granted),
        settlement: progress.settlement,
        amounts,
    })
}

/// What was settled so far.
struct Progress {
    settlement: Settlement,
    is_begun: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            settlement: Settlement::Applied,
            is_begun: false,
        }
    }
}

impl Progress {
    fn add(&mut self, done: Result<Settlement, Error>) -> Result<(), SettleError> {
        match done {
            Ok(Settlement::Applied) => {}
            Ok(Settlement::LeaseGone) => self.settlement = Settlement::LeaseGone,
            Err(error) => return Err(SettleError::of(error, self.is_begun)),
        }
        self.is_begun = true;
        Ok(())
    }
}

impl SettleError {
    /// Returns the error of a change, after which others were applied or not. A change whose time
    /// ran out may have been sent.
    pub(super) fn of(error: Error, is_begun: bool) -> Self {
        let may_be_sent = error.is_unknown() || matches!(error, Error::Timeout { .. });
        Self {
            error,
            may_be_applied: is_begun || may_be_sent,
        }
    }
}

/// Returns the error of a request before anything was sent.
pub(super) const fn before(error: Error) -> SettleError {
    SettleError {
        error,
        may_be_applied: false,
    }
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
    if holders.is_empty() {
        targets.to_vec()
    } else {
        holders
    }
}

/// Adjusts a limit of some grants. One that cannot have the limit counts only if all cannot.
async fn adjust(
    grants: &mut [Grant],
    places: &[usize],
    limit: &str,
    actual: MilliTokens,
) -> Result<Settlement, Error> {
    let grants = grants.iter_mut().enumerate();
    let grants = grants.filter(|(at, _)| places.contains(at));
    let done = join_all(grants.map(|(_, grant)| grant.adjust_milli(limit, actual))).await;
    let is_invalid = |done: &Result<_, Error>| matches!(done, Err(Error::Invalid(_)));
    if done.iter().all(is_invalid) {
        return all(done);
    }
    all(done.into_iter().filter(|done| !is_invalid(done)))
}

/// Checks the amounts to be returned, before anything is sent. Returns the place, limit and
/// remaining amount of each.
fn checked(
    grants: &[Grant],
    targets: &[usize],
    settle: &Settle,
) -> Result<Vec<(usize, String, MilliTokens)>, Error> {
    let mut rests = vec![];
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
            rests.push((at, limit.clone(), held - *back));
        }
        let is_empty = targets.iter().all(|at| grants[*at].amounts().is_empty());
        if !is_counted && !is_empty {
            return Err(Error::Invalid(format!(
                "give_back names {limit:?}, of which the grant holds nothing: name a limit that it took"
            )));
        }
    }
    Ok(rests)
}

/// Combines several outcomes: `Applied` only if all were applied.
pub(super) fn all(
    done: impl IntoIterator<Item = Result<Settlement, Error>>,
) -> Result<Settlement, Error> {
    let mut combined = Ok(Settlement::Applied);
    for done in done {
        combined = match (combined, done) {
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok(Settlement::LeaseGone), _) | (_, Ok(Settlement::LeaseGone)) => {
                Ok(Settlement::LeaseGone)
            }
            _ => Ok(Settlement::Applied),
        };
    }
    combined
}

//! Takes more of limits within grants.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::{Effect, MilliTokens};

use super::decider::decide;
use super::decision::Decision;
use super::grant::{Grant, Granted};
use super::local::LocalBuckets;
use super::targets::ResolvedRequest;
use crate::bucket::{BucketTarget, Hold};
use crate::session::{Session, deadline};
use crate::values::{AcquireOptions, Error, OnUnavailable, invalid, parse_amount};

impl Grant {
    /// Takes `tokens` more of a limit, or nothing: where [`adjust`](Self::adjust) goes into debt,
    /// this is denied. It counts as part of the same acquire, and takes from every bucket of the
    /// grant that has the limit. Under a lease, the tokens are held as long as the others.
    ///
    /// ```no_run
    /// # async fn example(mut grant: weirgate::Grant) -> Result<(), weirgate::Error> {
    /// // Before each further part of an answer that is streamed:
    /// if !grant.take_more("tpm", 500).await?.is_granted() {
    ///     println!("stop after {}", grant.amount("tpm"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grant's buckets have no such limit, if it counts slots and the
    /// grant has no lease, if the lease has expired, if the grant was made without DynamoDB, or if
    /// `tokens` is negative or above 10^12. The other errors if no decision could be made: the grant
    /// is as before then, unless [`is_unknown`](Error::is_unknown).
    pub async fn take_more(&mut self, limit: &str, tokens: i64) -> Result<Decision<()>, Error> {
        Self::take_more_of(std::slice::from_mut(self), &[(0, limit, tokens)]).await
    }

    /// Takes more of several limits of several grants, as [`take_more`](Self::take_more) does: all of it,
    /// or nothing, in one decision. `more` has the place of the grant, the limit, and the tokens.
    ///
    /// # Errors
    /// As [`take_more`](Self::take_more); [`Error::Invalid`] also if a limit of a grant is named twice, if
    /// there is no grant at a place, or if the grants are of different limiters.
    pub async fn take_more_of(
        grants: &mut [Self],
        more: &[(usize, &str, i64)],
    ) -> Result<Decision<()>, Error> {
        grants.iter().for_each(Self::begin);
        let mut taken = Self::taken_more_of(grants, more).await;
        for grant in grants {
            taken = grant.ended(taken);
        }
        taken
    }

    async fn taken_more_of(
        grants: &mut [Self],
        more: &[(usize, &str, i64)],
    ) -> Result<Decision<()>, Error> {
        let mut by_hold = BTreeMap::<_, Vec<_>>::new();
        for (at, (place, limit, tokens)) in more.iter().enumerate() {
            let amount = parse_amount(limit, *tokens)?;
            if more[..at].iter().any(|(of, known, _)| (of, known) == (place, limit)) {
                return invalid(format!(
                    "limit {limit:?} is taken twice within a grant: take the sum at once"
                ));
            }
            let Some(grant) = grants.get(*place) else {
                let count = grants.len();
                return invalid(format!(
                    "the place of a grant must be below {count}, their number, got {place}: count from 0"
                ));
            };
            if grant.degraded().is_some() {
                return invalid(format!(
                    "this grant was made without the table, so no more of {limit:?} can be taken within it: acquire again"
                ));
            }
            for hold in grant.places(limit)? {
                by_hold.entry((*place, hold)).or_default().push((*limit, amount));
            }
        }
        let hold = |(grant, hold): &(usize, usize)| &grants[*grant].holds[*hold];
        let Some(session) = by_hold.keys().next().map(hold).map(Hold::session) else {
            // Nothing is counted for the limits.
            return Ok(Decision::Granted(()));
        };
        if !by_hold.keys().all(|at| Arc::ptr_eq(hold(at).session(), session)) {
            return invalid(
                "a grant belongs to another limiter: take more within grants of one limiter"
                    .to_owned(),
            );
        }
        let session = Arc::clone(session);
        let held = grants.iter().map(Self::parts).sum();
        let decision = loop {
            let targets = by_hold.iter().map(|(at, more)| hold(at).more(more));
            let targets = targets.collect::<Result<Vec<_>, _>>()?;
            let decided = session.at_home(decide_more(&session, targets, held)).await?;
            if let Some(decision) = decided {
                break decision;
            }
        };
        Ok(decision.map(|granted| {
            for ((grant, at), given) in by_hold.into_keys().zip(granted.by_bucket) {
                grants[grant].merge_hold(at, given.hold);
                grants[grant].add_would_deny(given.would_deny);
            }
        }))
    }
}

/// Decides over more of the buckets that grants have, with `held` parts so far.
async fn decide_more(
    session: &Arc<Session>,
    targets: Vec<BucketTarget>,
    held: usize,
) -> Result<Option<Decision<Granted>>, Error> {
    let buckets = targets.iter().map(|target| Arc::clone(&target.bucket));
    let request =
        ResolvedRequest { buckets: buckets.collect(), targets, held, ..ResolvedRequest::default() };
    let options = AcquireOptions { needs_table: true, ..AcquireOptions::of(OnUnavailable::Error) };
    let answer_by = deadline(session.settings.timeout);
    let buckets = LocalBuckets::default();
    decide(session, &buckets, Ok(request), options, &mut None, answer_by).await
}

impl Hold {
    /// Returns the request for more of limits, under a lease that lasts as long as the hold's.
    fn more(&self, more: &[(&str, MilliTokens)]) -> Result<BucketTarget, Error> {
        if let Some((limit, _)) = more.iter().find(|(limit, _)| !self.brings(limit)) {
            return invalid(format!(
                "limit {limit:?} is not among the limits of this acquire, so no more of it can be taken: acquire it"
            ));
        }
        let Some((_, expires)) = self.lease() else {
            return self.within_debt(self.target(more, None));
        };
        let now = self.session().now();
        if expires <= now {
            let (limit, _) = more[0];
            return invalid(format!(
                "the lease of this grant has expired, so no more of {limit:?} can be taken within it: acquire again"
            ));
        }
        self.within_debt(self.target(more, Some(expires.since(now).into())))
    }

    /// Requires that what goes into debt with the target is not too much.
    fn within_debt(&self, target: BucketTarget) -> Result<BucketTarget, Error> {
        for (limit, amount) in target.request.asks.with(Effect::IntoDebt) {
            self.check_adjust(limit.as_str(), self.amount(limit.as_str()) + amount)?;
        }
        Ok(target)
    }
}

//! Takes more of a limit within a grant, and returns a part of it.

use std::sync::Arc;

use weirgate_shared::{Effect, MilliTokens};

use super::decider::decide;
use super::decision::Decision;
use super::grant::{Grant, Granted};
use super::local::LocalBuckets;
use super::targets::ResolvedRequest;
use super::targets::check_targets;
use crate::bucket::{BucketTarget, Hold};
use crate::session::{Session, deadline};
use crate::values::{AcquireOptions, Error, OnUnavailable, Settlement, parse_amount};

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
        let amount = parse_amount(limit, tokens)?;
        if self.degraded().is_some() {
            return Err(Error::Invalid(format!(
                "this grant was made without the table, so no more of {limit:?} can be taken within it: acquire again"
            )));
        }
        let places = self.places(limit)?;
        let Some(first) = places.first().map(|at| &self.holds[*at]) else {
            // Nothing is counted for the limit.
            return Ok(Decision::Granted(()));
        };
        let session = Arc::clone(first.session());
        let decision = loop {
            let targets = places.iter().map(|at| self.holds[*at].more(limit, amount));
            let targets = targets.collect::<Result<Vec<_>, _>>()?;
            check_targets(&targets, self.parts())?;
            let decided = session.at_home(decide_more(&session, targets)).await?;
            if let Some(decision) = decided {
                break decision;
            }
        };
        match decision {
            Decision::Granted(granted) => {
                for (at, given) in places.into_iter().zip(granted.by_bucket) {
                    self.merge_hold(at, given.hold);
                    self.add_would_deny(given.would_deny);
                }
                Ok(Decision::Granted(()))
            }
            other => Ok(other.map(|_| ())),
        }
    }

    /// Returns `tokens` of a limit that were taken and are not needed: slots, or tokens of a rate.
    /// The grant keeps the rest.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grant holds fewer; the others as [`adjust`](Self::adjust).
    pub async fn give_back(&mut self, limit: &str, tokens: i64) -> Result<Settlement, Error> {
        let (back, held) = (parse_amount(limit, tokens)?, self.amount(limit));
        if back > held {
            return Err(Error::Invalid(format!(
                "grant holds {held} of {limit:?}, {back} were to be given back: give back at most {held}"
            )));
        }
        self.adjust_milli(limit, held - back).await
    }
}

/// Decides over more of the buckets that a grant has.
async fn decide_more(
    session: &Arc<Session>,
    targets: Vec<BucketTarget>,
) -> Result<Option<Decision<Granted>>, Error> {
    let buckets = targets.iter().map(|target| Arc::clone(&target.bucket));
    let request = ResolvedRequest {
        buckets: buckets.collect(),
        targets,
        ..ResolvedRequest::default()
    };
    let options = AcquireOptions {
        needs_table: true,
        ..AcquireOptions::of(OnUnavailable::Error)
    };
    let answer_by = deadline(session.settings.timeout);
    let buckets = LocalBuckets::default();
    decide(
        session,
        &buckets,
        Ok(request),
        options,
        &mut None,
        answer_by,
    )
    .await
}

impl Hold {
    /// Returns the request for more of a limit, under a lease that lasts as long as the hold's.
    fn more(&self, limit: &str, amount: MilliTokens) -> Result<BucketTarget, Error> {
        if !self.brings(limit) {
            return Err(Error::Invalid(format!(
                "limit {limit:?} is not among the limits of this acquire, so no more of it can be taken: acquire it"
            )));
        }
        let Some((_, expires)) = self.lease() else {
            return self.within_debt(self.target(limit, amount, None));
        };
        let now = self.session().now();
        if expires <= now {
            return Err(Error::Invalid(format!(
                "the lease of this grant has expired, so no more of {limit:?} can be taken within it: acquire again"
            )));
        }
        self.within_debt(self.target(limit, amount, Some(expires.since(now).into())))
    }

    /// Requires that what goes into debt with the target is not too much.
    fn within_debt(&self, target: BucketTarget) -> Result<BucketTarget, Error> {
        for (limit, amount) in target.request.asks.with(Effect::IntoDebt) {
            self.check_adjust(limit.as_str(), self.amount(limit.as_str()) + amount)?;
        }
        Ok(target)
    }
}

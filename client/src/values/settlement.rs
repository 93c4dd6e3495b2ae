//! Outcome of a settlement.

use super::error::Error;

/// Outcome of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[must_use = "a lease that has ended settles nothing"]
pub enum Settlement {
    /// Applied exactly once.
    Applied,
    /// A lease had already ended: it was released, or it expired and its tokens returned. Or
    /// the bucket was deleted, and has no such limit since. Nothing of that bucket changed, nor of buckets
    /// without a lease. Of several buckets, those whose lease was there are settled.
    LeaseGone,
}

impl Settlement {
    /// Combines the outcomes of several settlements, as [`HoldSettlement::all`] does.
    ///
    /// # Errors
    /// As [`HoldSettlement::all`].
    pub(crate) fn all(
        settled: impl IntoIterator<Item = Result<Self, Error>>,
    ) -> Result<Self, Error> {
        let settled = settled.into_iter().map(|one| Ok(one?.into()));
        HoldSettlement::all(settled).map(Self::from)
    }
}

/// Outcome of a settlement of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HoldSettlement {
    Applied,
    /// Applied, by the lease's amounts: the grant had others. So it was settled by an older token, and what
    /// it knows of buckets without a lease is not true either.
    Outdated,
    LeaseGone,
}

impl From<HoldSettlement> for Settlement {
    fn from(settled: HoldSettlement) -> Self {
        match settled {
            HoldSettlement::Applied | HoldSettlement::Outdated => Self::Applied,
            HoldSettlement::LeaseGone => Self::LeaseGone,
        }
    }
}

impl From<Settlement> for HoldSettlement {
    fn from(settled: Settlement) -> Self {
        match settled {
            Settlement::Applied => Self::Applied,
            Settlement::LeaseGone => Self::LeaseGone,
        }
    }
}

impl HoldSettlement {
    /// Combines the outcomes of several writes: `Applied` only if all were applied. None stops the
    /// others.
    ///
    /// # Errors
    /// The first one that is unconfirmed, or else the first one; that is [`Error::Halfway`] if other writes
    /// were applied.
    pub(crate) fn all(
        settled: impl IntoIterator<Item = Result<Self, Error>>,
    ) -> Result<Self, Error> {
        let (mut worst, mut failed, mut is_begun) = (Self::Applied, None, false);
        for one in settled {
            match one {
                Ok(settled) => {
                    is_begun |= settled != Self::LeaseGone;
                    worst = worst.max(settled);
                }
                Err(error) => {
                    is_begun |= error.is_unknown();
                    let is_first = failed.as_ref().is_none_or(|known: &Error| {
                        error.is_unconfirmed() && !known.is_unconfirmed()
                    });
                    if is_first {
                        failed = Some(error);
                    }
                }
            }
        }
        match failed {
            Some(error) => Err(error.halfway(is_begun)),
            None => Ok(worst),
        }
    }
}

//! How much a client prefetches.

use std::time::Duration;

use weirgate_shared::{MilliTokens, Millis, exact_span};

use super::error::Error;

/// Longest time whose demand one block covers, 1 s.
const HORIZON: Millis = Millis(1_000);
/// Time that the remaining tokens last when the next block is fetched, 100 ms: a response takes
/// some 10 ms, with a margin.
const REFETCH_LEAD: Millis = Millis(100);

/// How many tokens of a bucket one client prefetches, and for how long it keeps them. A block
/// covers about one second of the client's observed demand.
///
/// In the table, prefetched tokens count as consumed until they return, so the limit holds there as
/// always. Within any interval, clients spend at most the capacity, its refill, and the tokens that
/// were outstanding at its beginning. Each client has at most `max_outstanding_percent` of the
/// capacity outstanding, none of it for longer than `max_age`. A client that dies forfeits that
/// amount.
///
/// Only enforced rates are prefetched. A request that takes of a quota writes to the table, and the log
/// says so once a bucket: tokens that return after the end of their window would return to none.
///
/// ```
/// # use std::time::Duration;
/// # use weirgate::Prefetch;
/// let prefetch = Prefetch::default().max_outstanding_percent(20).max_age(Duration::from_secs(5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefetch {
    max_outstanding_percent: u32,
    pub(crate) max_age: Duration,
}

impl Default for Prefetch {
    /// 10 % of the capacity, for 2 s.
    fn default() -> Self {
        Self { max_outstanding_percent: 10, max_age: Duration::from_secs(2) }
    }
}

impl Prefetch {
    /// Sets the largest part of each limit's capacity that one client has outstanding, in percent:
    /// 1 to 100, 10 by default. A request for more goes to the table, as without prefetch.
    #[must_use]
    pub const fn max_outstanding_percent(mut self, percent: u32) -> Self {
        self.max_outstanding_percent = percent;
        self
    }

    /// Sets how long a prefetched token can be spent: 100 ms to a minute, 2 s by default. Then it
    /// returns.
    #[must_use]
    pub const fn max_age(mut self, keep: Duration) -> Self {
        self.max_age = keep;
        self
    }

    /// Checks the settings for `resource`.
    pub(crate) fn check(self, resource: &str) -> Result<Self, Error> {
        let Self { max_outstanding_percent: share_percent, max_age: keep } = self;
        if !(1..=100).contains(&share_percent) {
            return Err(Error::Invalid(format!(
                "prefetch of {resource:?}: max_outstanding_percent must be 1 to 100, got {share_percent}"
            )));
        }
        if keep < Duration::from_millis(100) || keep > Duration::from_secs(60) {
            return Err(Error::Invalid(format!(
                "prefetch of {resource:?}: max_age must be 100ms to 1m, got {}; correct it",
                exact_span(keep)
            )));
        }
        Ok(self)
    }

    /// Returns the most that may be outstanding of a limit with this capacity.
    pub(crate) fn max_outstanding(self, capacity: MilliTokens) -> MilliTokens {
        MilliTokens(capacity.0.saturating_mul(i64::from(self.max_outstanding_percent))) / 100
    }

    /// Returns the time whose demand a block covers: at most half of `max_age`, because demand may
    /// fall.
    pub(crate) fn horizon(self) -> Millis {
        HORIZON.min(Millis(Millis::from(self.max_age).0 / 2))
    }

    /// Returns how long the remaining tokens last when the next block is fetched.
    pub(crate) fn refetch_lead(self) -> Millis {
        REFETCH_LEAD.min(Millis(self.horizon().0 / 4))
    }
}

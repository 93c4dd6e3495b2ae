//! Tokens taken ahead: a client takes a block of tokens about every second, and serves acquires
//! from memory.
//!
//! A bucket of a resource with prefetch has a [`Pool`]. Whoever finds enough in it needs no write;
//! whoever does not waits for the next block, or goes the ordinary way. What is left of a block
//! goes back when it is too old. A block is never restored by anybody else, as it may have been
//! spent.

mod demand;
mod fetch;
mod pool;
mod state;

use std::time::Duration;

use weirgate_shared::{MilliTokens, Millis};

use crate::Error;

pub(crate) use fetch::{acquire, drain};
pub(crate) use pool::Pool;

/// The longest load that one block is meant for.
const HORIZON: Millis = Millis(1_000);
/// What is left when the next block is fetched lasts for this long: an answer takes some 10 ms,
/// with a margin.
const REFETCH_LEAD: Millis = Millis(100);

/// How many tokens of a bucket one client takes ahead, and for how long it keeps them. The size of
/// a block is what the client needs in about a second, as observed.
///
/// What was taken ahead counts as used in the table until it goes back. So at the table the limit
/// holds as always; what is spent in any interval is at most capacity and refill of that interval,
/// and what its clients had outstanding at its beginning: at most `share` of the capacity each,
/// none of it for longer than `keep`. A client that dies forfeits as much.
///
/// ```
/// # use std::time::Duration;
/// # use weirgate::Prefetch;
/// let prefetch = Prefetch::default().max_outstanding_percent(20).max_age(Duration::from_secs(5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefetch {
    max_outstanding_percent: u32,
    max_age: Duration,
}

impl Default for Prefetch {
    /// 10 % of the capacity, for 2 s.
    fn default() -> Self {
        Self {
            max_outstanding_percent: 10,
            max_age: Duration::from_secs(2),
        }
    }
}

impl Prefetch {
    /// The most of each limit's capacity that one client has outstanding at any time, in percent: 1
    /// to 100, 10 if not said. A request for more than this goes to the table, as if there were no
    /// prefetch.
    #[must_use]
    pub const fn max_outstanding_percent(mut self, percent: u32) -> Self {
        self.max_outstanding_percent = percent;
        self
    }

    /// How long after it was taken a token can be spent: 100 ms to a minute, 2 s if not said. Then
    /// it goes back.
    #[must_use]
    pub const fn max_age(mut self, keep: Duration) -> Self {
        self.max_age = keep;
        self
    }

    /// Checks the numbers given for `resource`.
    pub(crate) fn check(self, resource: &str) -> Result<Self, Error> {
        let Self {
            max_outstanding_percent: share_percent,
            max_age: keep,
        } = self;
        if !(1..=100).contains(&share_percent) {
            return Err(Error::Invalid(format!(
                "prefetch of {resource:?}: the share is {share_percent} % of the capacity, it takes 1 to 100"
            )));
        }
        if keep < Duration::from_millis(100) || keep > Duration::from_secs(60) {
            return Err(Error::Invalid(format!(
                "prefetch of {resource:?}: tokens are kept for {keep:?}, it takes 100 ms to a minute"
            )));
        }
        Ok(self)
    }

    /// The most that may be outstanding of a limit of this capacity.
    fn max_outstanding(self, capacity: MilliTokens) -> MilliTokens {
        MilliTokens(
            capacity
                .0
                .saturating_mul(i64::from(self.max_outstanding_percent)),
        ) / 100
    }

    /// The load that a block is meant for. Half of what it could be kept for: the other half is for
    /// a load that sinks.
    fn horizon(self) -> Millis {
        HORIZON.min(Millis(Millis::from(self.max_age).0 / 2))
    }

    /// When so much of the load is left, the next block is fetched.
    fn refetch_lead(self) -> Millis {
        REFETCH_LEAD.min(Millis(self.horizon().0 / 4))
    }
}

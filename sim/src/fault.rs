//! What can go wrong, and how often it did.

use std::fmt;

/// A kind of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A request never arrived; its sender was told at once.
    RequestLost,
    /// A request was applied, and its sender told that the connection broke.
    AnswerLost,
    /// A request was applied, and its sender told nothing.
    AnswerHung,
    /// A request arrived long after it was sent, perhaps after its sender had given up.
    Delayed,
    /// A request was applied twice.
    Repeated,
    /// A partition took no writes for a while.
    Throttled,
    /// The server failed before applying a request.
    ServerError,
    /// The server failed after applying a request.
    ServerErrorApplied,
    /// A request met a transaction.
    Conflict,
    /// A client's clock was off.
    ClockSkewed,
    /// A client's clock was set.
    ClockJumped,
    /// A process died with all its requests, grants and what it had taken ahead.
    ClientKilled,
    /// A caller stopped waiting, at any await.
    CallerLeft,
    /// A grant was dropped.
    GrantDropped,
    /// A grant was kept beyond its lease.
    LeaseOverrun,
    /// A function died at any await.
    FunctionKilled,
    /// A function ran into its deadline.
    FunctionTimedOut,
    /// A function ran twice at once.
    FunctionTwice,
    /// Records were delivered again after they had been counted.
    DeliveredTwice,
    /// A batch came again in other cuts.
    Recut,
    /// Records were delivered minutes late.
    StreamDelayed,
    /// A batch was split after a part of it had failed.
    PartialFailure,
    /// A batch was given up, and went to the failure file.
    Discarded,
    /// A failure file was replayed.
    Replayed,
    /// The schedule fired twice.
    ScheduleTwice,
    /// The schedule did not fire.
    ScheduleMissed,
    /// An item was deleted by TTL.
    TtlDeleted,
    /// Limits were changed.
    ConfigChanged,
    /// An operator split or merged a bucket.
    Resharded,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 29] = [
        Self::RequestLost,
        Self::AnswerLost,
        Self::AnswerHung,
        Self::Delayed,
        Self::Repeated,
        Self::Throttled,
        Self::ServerError,
        Self::ServerErrorApplied,
        Self::Conflict,
        Self::ClockSkewed,
        Self::ClockJumped,
        Self::ClientKilled,
        Self::CallerLeft,
        Self::GrantDropped,
        Self::LeaseOverrun,
        Self::FunctionKilled,
        Self::FunctionTimedOut,
        Self::FunctionTwice,
        Self::DeliveredTwice,
        Self::Recut,
        Self::StreamDelayed,
        Self::PartialFailure,
        Self::Discarded,
        Self::Replayed,
        Self::ScheduleTwice,
        Self::ScheduleMissed,
        Self::TtlDeleted,
        Self::ConfigChanged,
        Self::Resharded,
    ];
}

/// How often each kind of trouble happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts([u64; Kind::ALL.len()]);

impl Counts {
    /// One more.
    pub fn add(&mut self, kind: Kind) {
        self.0[place(kind)] += 1;
    }

    /// How often it happened.
    #[must_use]
    pub fn of(&self, kind: Kind) -> u64 {
        self.0[place(kind)]
    }

    /// Those of another run too.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

fn place(kind: Kind) -> usize {
    Kind::ALL.iter().position(|known| *known == kind).expect("every kind is listed")
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in Kind::ALL {
            writeln!(f, "{:>12}  {kind:?}", self.of(kind))?;
        }
        Ok(())
    }
}

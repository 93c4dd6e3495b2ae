//! What can go wrong, what must happen, and how often it did.

use std::collections::BTreeMap;
use std::fmt;

/// A kind of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A request never arrived; its sender was told at once.
    RequestLost,
    /// A request was applied, and its sender told that the connection broke.
    AnswerLost,
    /// A request arrived, and its sender was told nothing.
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
    /// All processes stood still for one second to one day: wall clocks went on, and connections
    /// died.
    Frozen,
    /// A request was sent on a connection that a freeze had killed.
    ConnectionDied,
    /// A hostile tenant wrote under its own keys.
    HostileWrite,
    /// A partition's balance was spent, so it refused a write.
    WriteSpent,
    /// The same for a read.
    ReadSpent,
    /// A read was answered without some of its keys.
    KeysKeptBack,
    /// A transaction, or a write beside one, was refused because they met.
    Met,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 36] = [
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
        Self::Frozen,
        Self::ConnectionDied,
        Self::HostileWrite,
        Self::WriteSpent,
        Self::ReadSpent,
        Self::KeysKeptBack,
        Self::Met,
    ];

    /// Those that a table as AWS runs it causes, and the scenario only makes likely.
    pub const BY_TABLE: [Self; 5] = [
        Self::ConnectionDied,
        Self::WriteSpent,
        Self::ReadSpent,
        Self::KeysKeptBack,
        Self::Met,
    ];
}

/// What a run is about; without it a run would show nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// A caller was granted what he asked for.
    Granted,
    /// He was granted it of two buckets, in one transaction or side by side.
    GrantedTogether,
    /// He was granted it by a process that takes ahead.
    GrantedAhead,
    /// A caller was denied.
    Denied,
    /// A caller was told nothing, or that nobody knows.
    Unanswered,
    /// A grant was adjusted.
    Adjusted,
    /// A lease was renewed.
    Renewed,
    /// A grant was rolled back.
    RolledBack,
    /// A grant was released.
    Released,
    /// A lease was ended before it expired.
    LeaseEnded,
    /// A lease was ended after it had expired.
    LeaseExpired,
    /// A shard was credited, and nothing was taken.
    Refilled,
    /// An operator split a shard while callers called.
    SplitByOperator,
    /// The aggregator split a shard.
    SplitByFunction,
    /// An operator merged shards while callers called.
    MergedByOperator,
    /// The reconciler merged shards.
    MergedByFunction,
    /// Usage was copied.
    Copied,
    /// A write began a new hour.
    Rolled,
    /// A caller of another release, with other limits in its code, was granted what it asked for.
    GrantedByRelease,
}

impl Event {
    /// All events.
    pub const ALL: [Self; 19] = [
        Self::Granted,
        Self::GrantedTogether,
        Self::GrantedAhead,
        Self::Denied,
        Self::Unanswered,
        Self::Adjusted,
        Self::Renewed,
        Self::RolledBack,
        Self::Released,
        Self::LeaseEnded,
        Self::LeaseExpired,
        Self::Refilled,
        Self::SplitByOperator,
        Self::SplitByFunction,
        Self::MergedByOperator,
        Self::MergedByFunction,
        Self::Copied,
        Self::Rolled,
        Self::GrantedByRelease,
    ];
}

/// How often each thing happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts<T>(BTreeMap<T, u64>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Copy> Counts<T> {
    /// One more.
    pub fn add(&mut self, what: T) {
        *self.0.entry(what).or_default() += 1;
    }

    /// How often it happened.
    #[must_use]
    pub fn of(&self, what: T) -> u64 {
        self.0.get(&what).copied().unwrap_or_default()
    }

    /// Those of another run too.
    pub fn merge(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(*what).or_default() += count;
        }
    }
}

impl<T: fmt::Debug> fmt::Display for Counts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{count:>12}  {what:?}")?;
        }
        Ok(())
    }
}

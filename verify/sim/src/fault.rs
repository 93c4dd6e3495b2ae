//! Faults, required events, and their counts.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! listed {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$of])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
        }
    };
}

listed! {
    /// Kind of fault.
    pub enum Kind {
        /// A request never arrived; its sender got an error at once.
        RequestLost,
        /// A request was applied, and its sender got a connection error.
        AnswerLost,
        /// A request arrived, and its sender got no response.
        AnswerHung,
        /// A request arrived long after it was sent, perhaps after its sender had given up.
        Delayed,
        /// A request was applied twice.
        Repeated,
        /// A partition refused writes for a while.
        Throttled,
        /// The server failed before applying a request.
        ServerError,
        /// The server failed after applying a request.
        ServerErrorApplied,
        /// A request conflicted with a transaction.
        Conflict,
        /// A client's clock was wrong.
        ClockSkewed,
        /// A client's clock was changed.
        ClockJumped,
        /// A process died with all its requests, grants and prefetched tokens.
        ClientKilled,
        /// A caller dropped its request at any await.
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
        /// Records were delivered again after they were counted.
        DeliveredTwice,
        /// A batch was delivered again with other boundaries.
        Recut,
        /// Records were delivered minutes late.
        StreamDelayed,
        /// A batch was split after a part of it failed.
        PartialFailure,
        /// A batch was discarded to the failure file.
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
        /// All processes were frozen for one second to one day: wall clocks continued, and connections
        /// broke.
        Frozen,
        /// A request was sent on a connection that a freeze had broken.
        ConnectionDied,
        /// A hostile tenant wrote under its own keys.
        HostileWrite,
        /// A partition refused a write because its throughput was used up.
        WriteSpent,
        /// A partition refused a read because its throughput was used up.
        ReadSpent,
        /// A response to a read lacked some of its keys.
        KeysKeptBack,
        /// A transaction, or a write beside one, was refused because they conflicted.
        Met,
        /// An operator reset, drained or topped up a bucket.
        BalanceEdited,
        /// A function stood still for up to 50 s, at any await.
        RunStalled,
        /// The stream's mapping was made again, and began with the oldest record.
        StreamBegunAgain,
        /// An operator deleted items of a bucket in use.
        ItemDeleted,
        /// An operator erased an entity after its callers had stopped.
        EntityErased,
        /// An operator purged the namespace and configured it again.
        NamespacePurged,
        /// Processes of a release that has its limits elsewhere replaced the others.
        LimitsMoved,
        /// An operator stopped a level for a while.
        LevelStopped,
    }
}

/// Random generators of a run. Each group of faults has its own, so that it leaves the draws of the
/// others unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dice {
    /// Callers, the network and the functions.
    Run,
    /// Faults of AWS.
    Aws,
    /// What operators do, and how long functions run.
    Operator,
}

impl Kind {
    /// Returns the generator that decides about the kind.
    pub const fn dice(self) -> Dice {
        match self {
            Self::Frozen | Self::HostileWrite | Self::BalanceEdited => Dice::Aws,
            Self::RunStalled
            | Self::StreamBegunAgain
            | Self::ItemDeleted
            | Self::EntityErased
            | Self::NamespacePurged
            | Self::LimitsMoved
            | Self::LevelStopped => Dice::Operator,
            _ => Dice::Run,
        }
    }

    /// Faults that the table causes as AWS does; the scenario only makes them likely.
    pub const BY_TABLE: [Self; 5] =
        [Self::ConnectionDied, Self::WriteSpent, Self::ReadSpent, Self::KeysKeptBack, Self::Met];
}

listed! {
    /// Events that runs must reach; otherwise they would prove nothing.
    pub enum Event {
        /// A request was granted.
        Granted,
        /// A request for two buckets was granted, in one transaction or in parallel.
        GrantedTogether,
        /// A request was granted by a process that prefetches.
        GrantedAhead,
        /// A request was denied.
        Denied,
        /// A request got no response, or its outcome is unknown.
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
        /// A shard was refilled, and nothing was taken.
        Refilled,
        /// An operator split a shard during calls.
        SplitByOperator,
        /// The aggregator split a shard.
        SplitByFunction,
        /// An operator merged shards during calls.
        MergedByOperator,
        /// The reconciler merged shards.
        MergedByFunction,
        /// A take began the next window of a quota.
        WindowBegun,
        /// A bucket with a quota was split.
        WindowSplit,
        /// Shards with a quota were merged.
        WindowMerged,
        /// A limit became a quota, or a quota of another window.
        WindowChanged,
        /// Tokens of a window that had ended were returned.
        ReturnedToNoWindow,
        /// Usage was copied.
        Copied,
        /// A write began a new hour.
        Rolled,
        /// A request of another release, with other limits in its code, was granted.
        GrantedByRelease,
        /// A request was granted whose limits are in a file.
        GrantedByFile,
        /// A request that bypasses the limits was granted and counted.
        GrantedByBypass,
        /// A request that bypasses the limits was granted, and perhaps not counted.
        GrantedUncounted,
    }
}

/// Number of times that each thing happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts<T>(BTreeMap<T, u64>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Copy> Counts<T> {
    /// Adds one.
    pub fn add(&mut self, what: T) {
        *self.0.entry(what).or_default() += 1;
    }

    /// Returns how often it happened.
    pub fn of(&self, what: T) -> u64 {
        self.0.get(&what).copied().unwrap_or_default()
    }

    /// Adds the counts of another run.
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

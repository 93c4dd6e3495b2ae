//! The sizes that are explored: each has what the protocol needs for a part of it, and all of it end in a minute.

use weirgate_shared::{Limit, Millis};

use crate::bounds::Bounds;
use crate::reached::Event::{
    AppliedLate, Created, FoundById, FoundByLease, Looked, MergeRefused, Merged, Missing, ReclaimRefused,
    ReclaimedByClient, ReclaimedByReconciler, RefillRefused, Refilled, RefusedLate, ReleaseRefused, Released,
    RenewRefused, Renewed, RolledBack, Split, SplitAgain, SplitRefused, TakeRefused, TakenOfCredit, TakenOfFull,
    TakenPlain,
};

/// A rate on one or two shards: takes of what is there, of what has flowed in and of what is full; refills by the
/// aggregator, splits and merges.
///
/// # Panics
/// Never: the limit is right.
#[must_use]
pub fn rate() -> Bounds {
    Bounds {
        limit: Limit::custom("rpm", 4, 3, 1000).expect("a limit"),
        tick: Millis(1000),
        ticks: 2,
        needs: vec![2],
        requests: [1, 1],
        attempts: 3,
        lease: None,
        renews: false,
        rolls_back: false,
        faults: 1,
        works: 2,
        refills: true,
        shards: true,
        happens: vec![
            Created,
            TakenPlain,
            TakenOfCredit,
            TakenOfFull,
            TakeRefused,
            Refilled,
            RefillRefused,
            Split,
            SplitRefused,
            Merged,
            MergeRefused,
            Missing,
            AppliedLate,
            RefusedLate,
            FoundById,
        ],
        keeps_stream: false,
        without: None,
    }
}

/// A rate whose tokens are held by leases, on one shard.
#[must_use]
pub fn leases() -> Bounds {
    Bounds {
        lease: Some(1),
        ticks: 2,
        renews: true,
        rolls_back: true,
        refills: false,
        shards: false,
        works: 1,
        happens: vec![
            Created,
            TakenPlain,
            TakenOfCredit,
            TakenOfFull,
            ReclaimedByClient,
            ReclaimedByReconciler,
            ReclaimRefused,
            Released,
            ReleaseRefused,
            RolledBack,
            Renewed,
            RenewRefused,
            FoundById,
            FoundByLease,
            AppliedLate,
            RefusedLate,
        ],
        ..rate()
    }
}

/// Slots on one or two shards.
///
/// # Panics
/// Never: the limit is right.
#[must_use]
pub fn slots() -> Bounds {
    Bounds {
        limit: Limit::concurrent("slots", 2).expect("a limit"),
        needs: vec![1],
        lease: Some(1),
        works: 2,
        refills: false,
        happens: vec![
            Created,
            TakenPlain,
            ReclaimedByClient,
            ReclaimedByReconciler,
            ReclaimRefused,
            Released,
            ReleaseRefused,
            Split,
            SplitRefused,
            Merged,
            MergeRefused,
            Looked,
            FoundById,
            FoundByLease,
        ],
        ..rate()
    }
}

/// A bucket that becomes two shards, one, and two again.
#[must_use]
pub fn again() -> Bounds {
    Bounds { works: 3, faults: 0, happens: vec![Split, Merged, SplitAgain], requests: [2, 1], ..rate() }
}

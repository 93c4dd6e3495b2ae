//! The sizes that are explored: each has what the protocol needs for a part of it, and all of it end in a minute.

use weirgate_shared::{Limit, Millis};

use crate::bounds::Bounds;
use crate::guard::Kind;
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
        releases: [true; 2],
        renews: false,
        rolls_back: false,
        faults: 1,
        works: 2,
        jobs: vec![Kind::Refill, Kind::Split, Kind::Merge],
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
        attempts: 2,
        jobs: vec![Kind::Expire],
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
            FoundById,
            FoundByLease,
            AppliedLate,
            RefusedLate,
        ],
        ..rate()
    }
}

/// One slot on one shard.
///
/// # Panics
/// Never: the limit is right.
#[must_use]
pub fn slots() -> Bounds {
    Bounds {
        limit: Limit::concurrent("slots", 1).expect("a limit"),
        needs: vec![1],
        lease: Some(1),
        works: 0,
        jobs: vec![],
        happens: vec![Created, TakenPlain, ReclaimedByClient, ReclaimedByReconciler, Released, ReleaseRefused],
        ..rate()
    }
}

/// A bucket that becomes two shards, one, and two again.
#[must_use]
pub fn again() -> Bounds {
    Bounds { works: 3, faults: 0, happens: vec![Split, Merged, SplitAgain], requests: [2, 1], ..rate() }
}

/// Shards that are looked at while they are used.
#[must_use]
pub fn looks() -> Bounds {
    Bounds { jobs: vec![Kind::Split, Kind::Look], happens: vec![Split, Looked, Missing, FoundById], ..rate() }
}

/// A rate whose leases are made to last longer, and given back unused.
#[must_use]
pub fn renewals() -> Bounds {
    Bounds {
        renews: true,
        rolls_back: true,
        faults: 0,
        happens: vec![Created, RolledBack, Renewed, RenewRefused, ReleaseRefused, ReclaimRefused],
        ..leases()
    }
}

/// Slots that are held while the bucket becomes two shards and one again.
///
/// # Panics
/// Never: the limit is right.
#[must_use]
pub fn moved_slots() -> Bounds {
    Bounds {
        limit: Limit::concurrent("slots", 2).expect("a limit"),
        ticks: 1,
        works: 2,
        releases: [true, false],
        jobs: vec![Kind::Split, Kind::Merge],
        happens: vec![Created, Split, SplitRefused, Merged, MergeRefused, ReclaimedByReconciler, Missing],
        ..slots()
    }
}

/// What leaves a stream to be counted: the second shard comes, goes and comes again.
#[must_use]
pub fn recorded() -> Bounds {
    Bounds {
        requests: [1, 1],
        ticks: 1,
        works: 3,
        faults: 0,
        jobs: vec![Kind::Split, Kind::Merge],
        keeps_stream: true,
        happens: vec![],
        ..rate()
    }
}

/// A bucket that rests, and is emptied as often as it goes.
#[must_use]
pub fn rested() -> Bounds {
    Bounds {
        needs: vec![1, 3],
        requests: [2, 1],
        ticks: 1,
        works: 1,
        faults: 0,
        jobs: vec![Kind::Refill, Kind::Split],
        happens: vec![Created, TakenPlain, TakenOfCredit, TakenOfFull, Refilled, RefillRefused],
        ..rate()
    }
}

/// A bucket that is given back to while it rests, behind the back of who has seen it empty.
#[must_use]
pub fn returned() -> Bounds {
    Bounds {
        needs: vec![1, 4],
        requests: [2, 2],
        attempts: 2,
        ticks: 3,
        lease: Some(2),
        releases: [false; 2],
        rolls_back: true,
        works: 0,
        faults: 0,
        jobs: vec![],
        happens: vec![Created, TakenOfCredit, TakenOfFull, TakeRefused, RolledBack],
        ..rate()
    }
}

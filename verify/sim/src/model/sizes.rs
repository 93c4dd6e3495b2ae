//! The sizes that are explored: each has what the protocol needs for a part of it, and all of it
//! end in a minute.

use weirgate_shared::{EpochMillis, Limit, Millis, WindowCode};

use crate::model::bounds::Bounds;
use crate::model::coverage::Event::{self, *};
use crate::model::guard::Kind::{self, *};

/// A day's end.
const DAY: EpochMillis = EpochMillis(1_700_006_400_000);
/// An hour's end, and not a day's.
const HOUR: EpochMillis = DAY.plus(Millis(3_600_000));

fn of(limit: Result<Limit, weirgate_shared::LimitError>) -> Limit {
    limit.expect("a limit")
}

/// Returns the events that must happen: writes that are applied, writes whose condition fails, and
/// others.
fn happens(done: &[Kind], lost: &[Kind], more: &[Event]) -> Vec<Event> {
    let (done, lost) = (done.iter().map(|kind| Done(*kind)), lost.iter().map(|kind| Lost(*kind)));
    done.chain(lost).chain(more.iter().copied()).collect()
}

/// A rate on one or two shards: takes of available tokens, of refill and of a full balance; refills
/// by the aggregator, splits and merges.
pub fn rate() -> Bounds {
    Bounds {
        limit: of(Limit::custom("rpm", 4, 3, 1000)),
        brings: None,
        start: DAY.plus(Millis(-1000)),
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
        jobs: vec![Refill, Split, Merge],
        splits_twice: false,
        splits_at_once: false,
        happens: happens(
            &[Create, Roll, Refill, Split, Make, Clear, Merge],
            &[Take, Refill, Split, Make, Merge],
            &[Plain, Credit, Full, LateDone, LateLost, FoundById],
        ),
        keeps_stream: false,
        without: None,
    }
}

/// A rate whose tokens are held by leases, on one shard.
pub fn leases() -> Bounds {
    Bounds {
        start: HOUR.plus(Millis(-1000)),
        lease: Some(1),
        attempts: 2,
        jobs: vec![Expire],
        works: 1,
        happens: happens(
            &[Roll, Expire],
            &[Expire, Release],
            &[Full, Reclaimed, FoundById, FoundLease, LateLost],
        ),
        ..rate()
    }
}

/// One slot on one shard.
pub fn slots() -> Bounds {
    Bounds {
        limit: of(Limit::concurrent("slots", 1)),
        needs: vec![1],
        lease: Some(1),
        works: 0,
        jobs: vec![],
        happens: happens(&[Create, Roll, Expire, Release], &[Release], &[Plain, Reclaimed]),
        ..rate()
    }
}

/// A bucket that becomes two shards, one, and two again.
pub fn again() -> Bounds {
    Bounds {
        works: 3,
        faults: 0,
        happens: happens(&[Split, Merge, Roll], &[], &[Revived]),
        requests: [2, 1],
        ..rate()
    }
}

/// Splits whose writes come late or twice, or are made by another function than the one that began,
/// with merges between them and splits after them.
pub fn late_splits() -> Bounds {
    Bounds {
        needs: vec![1],
        requests: [1, 0],
        attempts: 2,
        ticks: 1,
        works: 4,
        faults: 2,
        jobs: vec![Split, Merge],
        splits_twice: true,
        happens: happens(
            &[Create, Split, Make, Clear, Merge],
            &[Split, Make, Clear, Merge],
            &[Revived, LateDone, LateLost],
        ),
        ..rate()
    }
}

/// Shards that are looked at while they are used.
pub fn looks() -> Bounds {
    let (start, jobs) = (HOUR.plus(Millis(-1000)), vec![Split, Look]);
    Bounds { start, jobs, happens: happens(&[Split, Look, Roll], &[], &[FoundById]), ..rate() }
}

/// A rate whose leases are renewed, and rolled back.
pub fn renewals() -> Bounds {
    Bounds {
        renews: true,
        rolls_back: true,
        faults: 0,
        happens: happens(&[Create, RollBack, Renew, Roll], &[Renew, Release, Expire], &[]),
        ..leases()
    }
}

/// Slots that are held while the bucket becomes two shards and one again.
pub fn moved_slots() -> Bounds {
    Bounds {
        limit: of(Limit::concurrent("slots", 2)),
        ticks: 1,
        works: 2,
        releases: [true, false],
        jobs: vec![Split, Merge],
        happens: happens(&[Create, Split, Merge, Expire], &[Split, Merge], &[]),
        ..slots()
    }
}

/// A bucket that rests within an hour, and is emptied as often as it goes.
pub fn rested() -> Bounds {
    Bounds {
        start: HOUR,
        needs: vec![1, 3],
        requests: [2, 1],
        ticks: 1,
        works: 1,
        faults: 0,
        jobs: vec![Refill, Split],
        happens: happens(&[Create, Refill], &[Refill], &[Plain, Credit, Full]),
        ..rate()
    }
}

/// A rate whose balance an operator changes while it is taken from, split and merged.
pub fn edited() -> Bounds {
    Bounds {
        requests: [2, 0],
        ticks: 1,
        attempts: 2,
        works: 3,
        jobs: vec![Split, Merge, Reset, TopUp],
        happens: happens(
            &[Create, Split, Merge, Reset, TopUp],
            &[Take, Split, Merge, Reset, TopUp],
            &[LateDone, LateLost],
        ),
        ..rate()
    }
}

/// A bucket that receives returns while idle, unseen by a client with a view of it as empty.
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
        happens: happens(&[Create, RollBack, Roll], &[Take], &[Credit, Full]),
        ..rate()
    }
}

/// A bucket that gets another limit while the hour begins.
pub fn brought() -> Bounds {
    Bounds {
        brings: Some(of(Limit::per_minute("tpm", 1000))),
        requests: [2, 1],
        works: 0,
        jobs: vec![],
        happens: happens(&[Create, Roll], &[Take], &[Plain, Credit, Full]),
        ..rate()
    }
}

/// A bucket that an operator deletes while leases are held and functions are at work, and that is
/// created again.
pub fn remade() -> Bounds {
    Bounds {
        start: HOUR,
        requests: [1, 1],
        attempts: 2,
        lease: Some(1),
        releases: [true, false],
        rolls_back: true,
        works: 2,
        faults: 0,
        jobs: vec![Expire, Delete],
        happens: happens(
            &[Create, Delete, Expire, RollBack],
            &[Expire, Release, RollBack],
            &[Missing],
        ),
        ..rate()
    }
}

/// A bucket that an operator erases while it is split, and that is created and split again.
pub fn erased() -> Bounds {
    Bounds {
        start: HOUR,
        requests: [2, 0],
        attempts: 2,
        ticks: 1,
        works: 3,
        jobs: vec![Split, Merge, Erase],
        happens: happens(
            &[Create, Split, Make, Clear, Erase],
            &[Take, Make, Clear, Erase],
            &[Missing, LateDone, LateLost],
        ),
        ..rate()
    }
}

/// Slots that another release has as a rate.
pub fn changed() -> Bounds {
    Bounds {
        limit: of(Limit::concurrent("slots", 2)),
        brings: Some(of(Limit::custom("slots", 4, 3, 1000))),
        // Longer than rules stand that others have set.
        tick: Millis(31_000),
        lease: Some(2),
        requests: [2, 1],
        ticks: 3,
        faults: 0,
        happens: happens(&[Create, Release], &[Release], &[]),
        ..slots()
    }
}

/// What leaves a stream to be copied, in three hours and two days: the second shard comes, goes and
/// comes again.
///
/// Each tick is a multiple of 512 ms, so the `v` of a new bucket is one of 4,096, and the
/// aggregator makes an interim copy.
pub fn recorded() -> Bounds {
    Bounds {
        limit: of(Limit::custom("rpm", 4, 3, 3_600_000)),
        start: DAY.plus(Millis(-5_376_000)),
        tick: Millis(3_584_000),
        requests: [2, 1],
        attempts: 2,
        works: 3,
        faults: 0,
        jobs: vec![Split, Merge],
        keeps_stream: true,
        splits_at_once: true,
        happens: happens(&[], &[], &[Interim, Final, Replaced, Superseded]),
        ..rate()
    }
}

/// A stream in which items are deleted within a window, and created again.
pub fn deleted() -> Bounds {
    Bounds {
        requests: [3, 0],
        works: 2,
        jobs: vec![Split, Merge, Delete],
        happens: happens(&[], &[], &[Interim, Final, Replaced, Superseded, Carried, CarryLost]),
        ..recorded()
    }
}

/// A quota of two rolling windows, whose grants are rolled back and expire, also in the next window.
pub fn quota() -> Bounds {
    Bounds {
        // Windows of two seconds since 1970, by the calendar of the model. The first one ends after
        // a tick.
        limit: of(Limit::quota_of("rpm", 4, WindowCode(-(2 << 52 | 2000)))),
        needs: vec![3],
        requests: [2, 1],
        attempts: 2,
        lease: Some(1),
        releases: [false; 2],
        rolls_back: true,
        works: 0,
        jobs: vec![],
        happens: happens(
            &[Create, Roll, RollBack, Expire],
            &[Take, RollBack],
            &[Plain, Begun, Reclaimed, FoundById, FoundLease, ReturnedToNoWindow],
        ),
        ..rate()
    }
}

/// A quota on one or two shards, which are split and merged where a window ends.
pub fn sharded_quota() -> Bounds {
    Bounds {
        needs: vec![2],
        // Within an hour.
        start: DAY.plus(Millis(1000)),
        ticks: 1,
        lease: None,
        rolls_back: false,
        works: 2,
        faults: 0,
        jobs: vec![Split, Merge],
        happens: happens(
            &[Create, Split, Make, Clear, Merge],
            &[Take, Split, Merge],
            &[Plain, Begun, MergedBehind],
        ),
        ..quota()
    }
}

//! What is to be done about one due bucket: pure, nothing is sent.

use weirgate_shared::write::{ExpiredLeases, Update, expire, sample};
use weirgate_shared::{EpochMillis, Shard};

/// What becomes of a bucket that the index calls due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// One write restores all there is.
    Write(Planned),
    /// Nothing: the index was behind, or somebody else has done it.
    Nothing,
}

/// A write, what it gives back, and how to recognise it when its answer was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The write.
    pub update: Update,
    /// What it gives back.
    pub restored: ExpiredLeases,
    seen: Seen,
}

/// What the bucket was when the write was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    v: i64,
    due: EpochMillis,
}

/// What a later image says about a write whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was applied.
    Applied,
    /// It was not, but may still arrive.
    Open,
    /// It was not, and never will be.
    Never,
}

/// What is to be done about `bucket` at `now`.
#[must_use]
pub fn plan(shard: &Shard, now: EpochMillis) -> Plan {
    let Some(due) = shard.due_at.filter(|due| *due <= now) else {
        return Plan::Nothing;
    };
    match expire(shard, now) {
        Some((update, restored)) => Plan::Write(Planned {
            update,
            restored,
            seen: Seen {
                v: shard.write_seq,
                due,
            },
        }),
        None => Plan::Nothing,
    }
}

/// What is to be done about `bucket`, one of several shards, when its whole bucket is reviewed at
/// `now`: what [`plan`] does, and its writes counted from now on.
#[must_use]
pub fn plan_look(shard: &Shard, now: EpochMillis) -> Plan {
    if shard.shard().count == 1 || shard.scaling.sample.is_some_and(|sample| sample.at >= now) {
        return plan(shard, now);
    }
    let (update, restored) = sample(shard, now);
    // Without a `due` it is in nobody's way; whether an answer that was lost meant something does
    // not matter.
    let seen = Seen {
        v: shard.write_seq,
        due: shard.due_at.unwrap_or(EpochMillis(i64::MAX)),
    };
    Plan::Write(Planned {
        update,
        restored,
        seen,
    })
}

impl Planned {
    /// What `image`, read after the write was sent, says about it.
    ///
    /// The write raises `due` or removes it; a take can only lower it. So this tells the write from
    /// a take that has reclaimed the same leases, also when others have written since. It does not
    /// tell it from the same write by another run, which reserved concurrency prevents, or by a
    /// client that found more expired leases than one take gives back: then both report it. Only
    /// the report is wrong; the tokens are given back once.
    #[must_use]
    pub fn fate(&self, image: &Shard) -> Fate {
        if image.write_seq == self.seen.v {
            return Fate::Open;
        }
        if image.due_at.is_none_or(|due| due > self.seen.due) {
            Fate::Applied
        } else {
            Fate::Never
        }
    }
}

//! Plans the write for one due shard: pure, sends nothing.

use weirgate_shared::write::{ExpiredLeases, Update, expire, sample};
use weirgate_shared::{EpochMillis, Shard};

/// The plan for a due shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// One write returns all tokens of expired leases.
    Write(Planned),
    /// No write: the index was behind, or another process has done the work.
    Nothing,
}

/// A write, the tokens it returns, and how to recognize it if it is unconfirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The write.
    pub update: Update,
    /// Tokens that it returns.
    pub restored: ExpiredLeases,
    seen: Seen,
}

/// The shard's state when the write was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    v: i64,
    due: EpochMillis,
}

/// The fate of an unconfirmed write, by a later image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The write was applied.
    Applied,
    /// It was not applied, but may still arrive.
    Open,
    /// It was not applied, and never will be.
    Never,
}

/// Returns the plan for `shard` at `now`.
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

/// Returns the plan for `shard`, one of several, when its bucket is reviewed at `now`: [`plan`],
/// with a new activity sample.
#[must_use]
pub fn plan_sample(shard: &Shard, now: EpochMillis) -> Plan {
    if shard.shard().count == 1 || shard.scaling.sample.is_some_and(|sample| sample.at >= now) {
        return plan(shard, now);
    }
    let (update, restored) = sample(shard, now);
    // Without a `due`, the shard needs no further run, so the outcome of an unconfirmed write does
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
    /// Returns the fate of the write by `image`, which was read after the write was sent.
    ///
    /// The write raises `due` or removes it, and a take can only lower it. That distinguishes the
    /// write from a take that reclaimed the same leases, even after later writes. Two cases remain:
    /// the same write by another run, which reserved concurrency prevents, and a client that found
    /// more expired leases than one take reclaims. Then both report it. Only the report is wrong;
    /// the tokens are returned once.
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

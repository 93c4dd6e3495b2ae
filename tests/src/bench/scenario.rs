//! What is asked of each rate limiter: the one list that all of them are driven by.

/// Calls that some callers make again and again. Each takes 1 of `rpm` and 500 of `tpm`.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name, in `tests/peer/drive.py` too.
    pub name: &'static str,
    /// What it is, for readers.
    pub what: &'static str,
    /// Callers at once, each with one call at a time.
    pub callers: usize,
    /// What a caller does.
    pub calls: Calls,
    /// The rate limiters that can do it.
    pub rivals: &'static [Rival],
}

/// What a caller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Takes from the one bucket.
    OneBucket,
    /// Takes from one of 50 buckets.
    ManyBuckets,
    /// Asks a bucket whose daily limit is used up.
    Denied,
    /// Takes, and gives back two fifths of the tokens.
    Adjusted,
    /// Takes from a bucket and from that of its parent.
    Cascade,
}

/// A rate limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// Weirgate as it is by default.
    Weirgate,
    /// Weirgate with prefetched tokens.
    Prefetched,
    /// Weirgate as it is by default, on redis-server.
    OnRedis,
    /// zae-limiter, on the same endpoint.
    Peer,
    /// A Lua token bucket on redis-server.
    Redis,
    /// The crate limitador on the same redis-server.
    Limitador,
    /// The crate governor, in memory.
    Governor,
}

use Rival::{Governor, Limitador, OnRedis, Peer, Prefetched, Redis, Weirgate};

impl Rival {
    /// Its part of a run, and of the ids of its rows.
    pub const fn part(self) -> &'static str {
        match self {
            Weirgate => "weirgate",
            Prefetched => "prefetched",
            OnRedis => "on-redis",
            Peer => "peer",
            Redis => "redis",
            Limitador => "limitador",
            Governor => "governor",
        }
    }

    /// Its name, for readers.
    pub const fn name(self) -> &'static str {
        match self {
            Weirgate => "Weirgate",
            Prefetched => "Weirgate, prefetched",
            OnRedis => "Weirgate on Redis",
            Peer => "zae-limiter",
            Redis => "Lua on Redis",
            Limitador => "limitador on Redis",
            Governor => "governor, in memory",
        }
    }
}

/// Buckets of [`Calls::ManyBuckets`].
pub const BUCKETS: u8 = 50;

/// All scenarios.
pub const SCENARIOS: [Scenario; 7] = [
    Scenario {
        name: "sequential",
        what: "1 caller",
        callers: 1,
        calls: Calls::OneBucket,
        rivals: &[Weirgate, Prefetched, OnRedis, Peer, Redis, Limitador, Governor],
    },
    Scenario {
        name: "one-bucket",
        what: "32 callers of one bucket",
        callers: 32,
        calls: Calls::OneBucket,
        rivals: &[Weirgate, Prefetched, OnRedis, Peer, Redis, Limitador, Governor],
    },
    Scenario {
        name: "crowd",
        what: "256 callers of one bucket",
        callers: 256,
        calls: Calls::OneBucket,
        rivals: &[Weirgate, OnRedis, Redis, Limitador],
    },
    Scenario {
        name: "many-buckets",
        what: "32 callers of 50 buckets",
        callers: 32,
        calls: Calls::ManyBuckets,
        rivals: &[Weirgate, Prefetched, OnRedis, Peer, Redis, Limitador, Governor],
    },
    Scenario {
        name: "denied",
        what: "1 caller, denied each time",
        callers: 1,
        calls: Calls::Denied,
        rivals: &[Weirgate, OnRedis, Peer, Redis, Limitador, Governor],
    },
    Scenario {
        name: "adjusted",
        what: "1 caller, adjusted each time",
        callers: 1,
        calls: Calls::Adjusted,
        rivals: &[Weirgate, OnRedis, Peer, Redis],
    },
    Scenario {
        name: "cascade",
        what: "1 caller, parent and child",
        callers: 1,
        calls: Calls::Cascade,
        rivals: &[Weirgate, OnRedis, Peer, Redis],
    },
];

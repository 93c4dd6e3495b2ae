//! What a month costs by its number of acquires, for seven profiles of callers: the tables of
//! `docs/guide/cost-by-volume.md`.

use std::fmt::Write;

use super::facts::*;
use super::{Grouped, HOUR_SECONDS, PicoDollars, call_ms, idle, run_price, shards};

/// Hours of a month.
const MONTH_HOURS: u64 = 730;
/// Numbers of acquires a month that the page has a column for.
pub const VOLUMES: [u64; 5] = [
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// How callers acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// What the page calls it.
    pub name: &'static str,
    /// Write units of an acquire with its usage and its settlement, in thousandths.
    pub write_milli: u64,
    /// Read units of it, in thousandths.
    pub read_milli: u64,
}

/// The profiles, in the order of the page.
pub const PROFILES: [Profile; 7] = [
    Profile {
        name: "one hot key, lone callers",
        write_milli: USAGE_LOADS[2].1,
        read_milli: 0,
    },
    Profile {
        name: "one hot key, shared writes",
        write_milli: SHARED_MILLI + USAGE_MILLI,
        read_milli: 0,
    },
    Profile {
        name: "one hot key, prefetched",
        write_milli: PREFETCHED_MILLI + USAGE_MILLI,
        read_milli: 0,
    },
    Profile {
        name: "a bucket per user, one acquire a minute each",
        write_milli: USAGE_LOADS[1].1,
        read_milli: 0,
    },
    Profile {
        name: "LLM: estimate, then adjust",
        write_milli: CONTENDED_ESTIMATED_MILLI,
        read_milli: 0,
    },
    Profile {
        name: "concurrency slots: acquire, then release",
        write_milli: CONTENDED_SLOT_MILLI,
        read_milli: 0,
    },
    Profile {
        name: "exhausted: every acquire is denied",
        write_milli: 0,
        read_milli: DENIAL_READ_MILLI,
    },
];

/// What a month costs, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Month {
    /// Write units.
    pub writes: PicoDollars,
    /// Read units.
    pub reads: PicoDollars,
    /// Calls, run time and logs of the aggregator, at most.
    pub aggregator: PicoDollars,
    /// What the stack costs while nothing is asked: alarms, and the reconciler.
    pub idle: PicoDollars,
}

impl Month {
    /// Returns all parts together.
    #[must_use]
    pub const fn total(&self) -> PicoDollars {
        PicoDollars(self.writes.0 + self.reads.0 + self.aggregator.0 + self.idle.0)
    }
}

impl Profile {
    /// Returns what a month with so many acquires costs, if they are spread evenly over it.
    #[must_use]
    pub fn month(&self, acquires: u64) -> Month {
        let seconds = MONTH_HOURS * HOUR_SECONDS;
        let units = (acquires * self.write_milli).div_ceil(1_000);
        // Each unit is at most one record. A stream shard has one call a second at most, because a
        // second brings no more than a batch.
        let stream_shards = shards(units.div_ceil(seconds));
        let calls = units.min(stream_shards * seconds);
        let call = match calls {
            0 => 0,
            _ => CALL_PRICE + run_price(call_ms(units / calls)) + LOG_BYTES * LOG_BYTE_PRICE,
        };
        Month {
            writes: PicoDollars(units * WRITE_UNIT_PRICE),
            reads: PicoDollars((acquires * self.read_milli).div_ceil(1_000) * READ_UNIT_PRICE),
            aggregator: PicoDollars(calls * call),
            idle: PicoDollars(idle().0 * MONTH_HOURS),
        }
    }
}

/// Returns the parts of the page between its marks.
#[must_use]
pub fn parts() -> [(&'static str, String); 1] {
    [("months", months())]
}

/// Returns a row for each profile, and a column for each volume.
fn months() -> String {
    let mut text = String::from("| acquires a month |");
    for volume in VOLUMES {
        let _ = write!(text, " {} |", Grouped(volume));
    }
    text.push_str("\n|---|--:|--:|--:|--:|--:|\n");
    let _ = write!(text, "| *on average, a second* |");
    for volume in VOLUMES {
        let seconds = MONTH_HOURS * HOUR_SECONDS;
        let tenths = (volume * 10 + seconds / 2) / seconds;
        let _ = write!(text, " *{}.{}* |", Grouped(tenths / 10), tenths % 10);
    }
    text.push('\n');
    for profile in PROFILES {
        let _ = write!(text, "| {} |", profile.name);
        for volume in VOLUMES {
            let _ = write!(text, " {} |", profile.month(volume).total());
        }
        text.push('\n');
    }
    text
}

/// Returns the parts of each profile's month with so many acquires.
#[must_use]
pub fn table(acquires: u64) -> String {
    let mut text = format!(
        "| {} acquires a month | units each | write units | read units | aggregator | idle | all |\n\
         |---|--:|--:|--:|--:|--:|--:|\n",
        Grouped(acquires)
    );
    for profile in PROFILES {
        let month = profile.month(acquires);
        let Month {
            writes,
            reads,
            aggregator,
            idle,
        } = month;
        let _ = writeln!(
            text,
            "| {} | {} | {writes} | {reads} | {aggregator} | {idle} | {} |",
            profile.name,
            profile.units(),
            month.total(),
        );
    }
    text
}

impl Profile {
    /// Returns the units of an acquire, as text.
    fn units(&self) -> String {
        let thousandths = |milli: u64| format!("{}.{:03}", milli / 1_000, milli % 1_000);
        match self.read_milli {
            0 => thousandths(self.write_milli),
            read => format!("{} read", thousandths(read)),
        }
    }
}

//! What a seed decides before a run: buckets, fleet, and fault rates.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

use fastrand::Rng;
use weirgate::{Acquire, Class, EpochMillis, Limit};
use weirgate_testkit::Limits;

use crate::fault::{Dice, Kind};
use crate::quota::Quotas;

/// One bucket that callers use.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Entity that is limited.
    pub entity: String,
    /// Resource that it is limited on.
    pub resource: String,
    /// Limits of the bucket: a rate or quota `rate`, and slots `slots` if it has two.
    pub limits: Vec<Limit>,
    /// Other limits that it gets during the run.
    pub later: Option<Vec<Limit>>,
    /// Index of the parent's bucket, which the bucket's takes cascade to.
    pub parent: Option<usize>,
}

impl Plan {
    /// Returns all limits that the bucket has during a run, by name.
    pub fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter().chain(self.later.iter().flatten())
    }

    /// Returns the rates among its limits, with their indexes.
    pub fn rates(&self) -> impl Iterator<Item = (usize, &Limit)> {
        let limits = self.limits.iter().enumerate();
        limits.filter(|(_, limit)| limit.rule().kind().refills())
    }

    /// Returns the limits whose tokens are used up, rates and quotas, with their indexes.
    pub fn used_up(&self) -> impl Iterator<Item = (usize, &Limit)> {
        let limits = self.limits.iter().enumerate();
        limits.filter(|(_, limit)| !limit.rule().kind().is_held())
    }

    /// Returns the largest capacity that a limit has during a run, in millitokens.
    pub fn most(&self, limit: usize) -> i64 {
        let name = self.limits[limit].name();
        let same = self.all_limits().filter(|other| other.name() == name);
        let most = same.map(|limit| limit.rule().capacity.0).max();
        most.unwrap_or_default()
    }
}

/// Where a release has its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In its code, perhaps with a version.
    Code(Option<i64>),
    /// In the table.
    Table,
    /// In a file of each process.
    File,
}

impl Source {
    /// Adds to a request what its release brings.
    pub fn ask<'a>(self, request: Acquire<'a>, limits: &[Limit]) -> Acquire<'a> {
        match self {
            Self::Code(None) => request.limits(limits),
            Self::Code(Some(version)) => request.limits(limits).limits_version(version),
            Self::Table | Self::File => request,
        }
    }
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Seed of the scenario.
    pub seed: u64,
    /// Start of its time.
    pub start: EpochMillis,
    /// How long callers make calls.
    pub lasts: Duration,
    /// The buckets.
    pub buckets: Vec<Plan>,
    /// Whether limits are configured in the table; otherwise requests bring them.
    pub is_configured: bool,
    /// Number of concurrent processes.
    pub processes: u32,
    /// Callers of each process.
    pub callers: u32,
    /// Longest pause of a caller between two calls.
    pub pause: Duration,
    /// Number of processes that prefetch; they are the first ones.
    pub prefetching: u32,
    /// One-way latency of a request, in ms.
    pub latency: RangeInclusive<u64>,
    /// Rate of each fault, in occurrences per thousand chances.
    rates: Vec<(Kind, u32)>,
    /// Whether an operator splits and merges buckets.
    pub is_sharded: bool,
    /// Whether demand above the rate is tested at the end.
    pub tries_edge: bool,
    /// Whether every other process runs another release, whose requests bring other limits.
    pub is_rolling: bool,
    /// Requests of a thousand that bypass the limits.
    pub bypass_rate: u32,
    /// Throughput of the table's partitions, and how transactions conflict.
    pub table: Limits,
    /// Where the first release has its limits, and the one that replaces it.
    pub sources: [Source; 2],
    /// Whether the later limits have the second limit as another kind.
    pub changes_kind: bool,
    /// Windows of the buckets whose first limit is a quota, before a change of limits or after it.
    pub quotas: Quotas,
}

/// Class of callers, where limits have classes.
pub const CLASS: &str = "batch";

/// What changes the meaning of a bucket's balance. A run has one of them at most, because each makes
/// other checks weaker.
const UPHEAVALS: [Kind; 4] =
    [Kind::ItemDeleted, Kind::EntityErased, Kind::NamespacePurged, Kind::LimitsMoved];

/// Window ends that runs begin shortly before: of an hour, a day and a month; of an hour; and the
/// middle of one.
const ENDS: [i64; 3] = [1_796_083_200_000, 1_795_172_400_000, 1_795_170_600_000];

impl Scenario {
    /// Returns the scenario of `seed`.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Faults come in groups: each kind is off in half of the runs, because frequent ones would
        // hide the others.
        let is_quiet = rng.u32(..8) == 0;
        let mut rates = vec![];
        // Separate generators, so that their draws leave the rest of a seed unchanged.
        let mut aws = Rng::with_seed(seed ^ 0xA35);
        let mut operator = Rng::with_seed(seed ^ 0x0B5);
        let upheaval = (!is_quiet && operator.bool()).then(|| UPHEAVALS[operator.usize(..4)]);
        let kinds = Kind::ALL.iter().copied();
        for kind in kinds.filter(|kind| !Kind::BY_TABLE.contains(kind)) {
            let rng = match kind.dice() {
                Dice::Run => &mut rng,
                Dice::Aws => &mut aws,
                Dice::Operator => &mut operator,
            };
            let most = match kind {
                Kind::Frozen => 15,
                Kind::BalanceEdited => 60,
                Kind::StreamBegunAgain | Kind::NamespacePurged | Kind::ItemDeleted => 40,
                Kind::LevelStopped => 20,
                Kind::ClientKilled | Kind::ClockJumped => 20,
                Kind::StreamDelayed => 10,
                Kind::Throttled | Kind::Resharded | Kind::ConfigChanged => 30,
                Kind::Delayed | Kind::AnswerHung => 60,
                // Few faults make a batch fail.
                Kind::Discarded | Kind::Replayed => 900,
                Kind::ClockSkewed => 500,
                _ => 200,
            };
            let is_on = !is_quiet && !rng.bool() || upheaval == Some(kind);
            let is_on = is_on && (upheaval == Some(kind) || !UPHEAVALS.contains(&kind));
            let rate = if is_on { rng.u32(1..=most) } else { 0 };
            // A new item begins above the writes of the deleted one by its maker's clock, if its first
            // write was not under way at a manual deletion. DynamoDB deletes only what is not in use.
            let hides = match kind {
                Kind::ClockSkewed | Kind::ClockJumped => upheaval.is_some(),
                Kind::Delayed => upheaval == Some(Kind::ItemDeleted),
                _ => false,
            };
            rates.push((kind, if hides { 0 } else { rate }));
        }
        let is_configured = match upheaval {
            Some(Kind::NamespacePurged) => true,
            Some(Kind::LimitsMoved) => false,
            _ => rng.u32(..4) == 0,
        };
        let is_sharded = rng.u32(..3) == 0;
        let mut buckets = buckets(&mut rng, is_configured, is_sharded);
        let moves = upheaval == Some(Kind::LimitsMoved);
        let is_rolling = !is_configured && !is_quiet && !moves && aws.u32(..4) == 0;
        if is_rolling || moves {
            for plan in &mut buckets {
                let mut later = plan.limits.clone();
                let rate =
                    Limit::custom("rate", aws.i64(16..=40), aws.i64(1..=20), aws.i64(500..=3000));
                later[0] = rate.expect("a limit like others");
                plan.later = Some(later);
            }
        }
        let changes_kind = upheaval.is_none() && operator.bool();
        let is_narrowed = upheaval == Some(Kind::ItemDeleted) && operator.bool();
        for plan in &mut buckets {
            let [_, second] = &mut plan.limits[..] else {
                continue;
            };
            if is_narrowed {
                *second = Limit::custom("slots", 16, operator.i64(1..=20), 1000)
                    .expect("a limit like others");
            }
            match &mut plan.later {
                Some(later) if changes_kind => {
                    later[1] = Limit::custom("slots", 4, operator.i64(1..=20), 1000)
                        .expect("a limit like others");
                }
                Some(later) if is_narrowed => later.truncate(1),
                _ => {}
            }
        }
        let mut classes = Rng::with_seed(seed ^ 0xC1A55);
        for later in buckets.iter_mut().filter_map(|plan| plan.later.as_mut()) {
            if classes.bool()
                && upheaval != Some(Kind::LimitsMoved)
                && later[0].rule().kind().refills()
            {
                let class = Class::new(CLASS, [0, 10, 33, 60][classes.usize(..4)]);
                let class = class.and_then(|class| class.leaving(classes.u8(0..=60)));
                let with = later[0].clone().with_classes(class);
                later[0] = with.expect("a limit like others");
            }
        }
        let lasts_long = upheaval == Some(Kind::EntityErased);
        let source = |rng: &mut Rng| match rng.u32(..4) {
            0 => Source::Code(None),
            1 => Source::Code(Some(rng.i64(1..=1000))),
            2 => Source::Table,
            _ => Source::File,
        };
        let has_file = Rng::with_seed(seed ^ 0xF11E).u32(..8) == 0 && !is_rolling;
        let mut sources = match upheaval {
            Some(Kind::LimitsMoved) => [(); 2].map(|()| source(&mut operator)),
            _ if is_configured => [Source::Table; 2],
            _ if has_file => [Source::File; 2],
            _ => [Source::Code(None); 2],
        };
        // A newer release has a higher version: limits of a lower one change nothing.
        if let [Source::Code(Some(first)), Source::Code(Some(last))] = &mut sources {
            *last += *first;
        }
        let processes = rng.u32(1..=3);
        // A merge needs two samples a minute apart, and records may be minutes late: some runs last
        // long enough.
        let most = if rng.u32(..if is_sharded { 4 } else { 16 }) == 0 { 150 } else { 30 };
        let mut scenario = Self {
            seed,
            start: EpochMillis(ENDS[rng.usize(..ENDS.len())] - rng.i64(1_000..60_000)),
            lasts: Duration::from_secs(rng.u64(8..=most).max(if lasts_long { 80 } else { 0 })),
            buckets,
            is_configured,
            processes,
            callers: rng.u32(1..=3),
            pause: Duration::from_millis(rng.u64(200..=4000)),
            prefetching: if rng.u32(..5) == 0 { rng.u32(1..=processes) } else { 0 },
            latency: rng.u64(0..=2)..=rng.u64(3..=40),
            rates,
            is_sharded,
            tries_edge: rng.u32(..8) == 0,
            is_rolling,
            sources,
            changes_kind,
            table: if is_quiet { Limits::default() } else { table(&mut aws) },
            bypass_rate: if aws.bool() { aws.u32(1..=300) } else { 0 },
            quotas: Quotas::default(),
        };
        let mut quotas = Rng::with_seed(seed ^ 0x0907A);
        if quotas.u32(..3) == 0 {
            let run = (scenario.start, scenario.lasts);
            let is_sharded = scenario.is_sharded;
            let buckets = scenario.buckets.iter_mut().map(|plan| {
                let later = plan.later.as_mut().map(|later| &mut later[0]);
                (&mut plan.limits[0], later)
            });
            scenario.quotas = Quotas::draw(&mut quotas, buckets, run, is_sharded);
        }
        if scenario.table.units_per_second < Limits::default().units_per_second && aws.bool() {
            scenario.table.shared = NonZeroU64::new(aws.u64(1..=4));
            scenario.table.splits_after = Some(Duration::from_secs(aws.u64(2..=20)));
        }
        scenario
    }

    /// Returns how many of a thousand chances become a fault.
    pub fn rate(&self, kind: Kind) -> u32 {
        self.rates.iter().find(|(known, _)| *known == kind).map_or(0, |(_, rate)| *rate)
    }

    /// Returns whether clocks are sometimes wrong.
    pub fn has_wrong_clocks(&self) -> bool {
        self.rate(Kind::ClockSkewed) + self.rate(Kind::ClockJumped) > 0
    }

    /// Returns whether a process does one thing at a time: its single caller awaits each call to
    /// the end.
    pub fn has_single_minds(&self) -> bool {
        self.callers == 1 && self.rate(Kind::GrantDropped) + self.rate(Kind::CallerLeft) == 0
    }

    /// Returns a bucket as the last release has it.
    pub fn last(&self, plan: &Plan) -> Plan {
        let later = plan.later.clone().filter(|_| self.moves());
        Plan { limits: later.unwrap_or_else(|| plan.limits.clone()), ..plan.clone() }
    }

    /// Returns whether the last release has its limits elsewhere.
    pub fn moves(&self) -> bool {
        self.rate(Kind::LimitsMoved) > 0
    }

    /// Returns whether items are deleted while they are used.
    pub fn deletes(&self) -> bool {
        let kinds = [Kind::ItemDeleted, Kind::EntityErased, Kind::NamespacePurged];
        kinds.into_iter().any(|kind| self.rate(kind) > 0)
    }

    /// Returns whether an operator stops levels.
    pub fn stops(&self) -> bool {
        self.rate(Kind::LevelStopped) + self.rate(Kind::NamespacePurged) > 0
    }

    /// Returns whether an operator deletes usage.
    pub fn loses_usage(&self) -> bool {
        self.rate(Kind::EntityErased) + self.rate(Kind::NamespacePurged) > 0
    }

    /// Returns whether limits change during the run.
    pub fn has_changes(&self) -> bool {
        self.is_rolling || self.moves() || self.is_configured && self.rate(Kind::ConfigChanged) > 0
    }
}

/// Returns the table's behaviour. Its partitions have DynamoDB's throughput, or so little that the
/// fleet's few requests exceed it. Transactions conflict with writes of the last milliseconds, or
/// only with concurrent ones.
fn table(rng: &mut Rng) -> Limits {
    let conflict_window = Duration::from_millis([0, 0, 1, 2, 5, 10][rng.usize(..6)]);
    let limits = Limits { conflict_window, ..Limits::default() };
    if rng.u32(..3) > 0 {
        return limits;
    }
    // As low as the load of a few callers.
    let (units_per_second, burst) = (rng.u32(1..=6), rng.u32(2..=10));
    let (reads_per_second, read_burst) = (rng.u32(1..=4), rng.u32(2..=6));
    Limits { units_per_second, burst, reads_per_second, read_burst, ..limits }
}

fn buckets(rng: &mut Rng, is_configured: bool, is_sharded: bool) -> Vec<Plan> {
    let mut buckets = vec![];
    for at in 0..rng.usize(1..=3) {
        let (capacity, amount) = (rng.i64(4..=40), rng.i64(1..=20));
        let period = rng.i64(500..=3000);
        // Large enough for shards of more than a token.
        let capacity = if is_sharded { capacity.max(16) } else { capacity };
        let rate = |capacity, amount| {
            Limit::custom("rate", capacity, amount, period).expect("a limit like others")
        };
        let mut limits = vec![rate(capacity, amount)];
        if rng.bool() {
            limits.push(
                Limit::concurrent("slots", rng.i64(1..=6).max(if is_sharded { 4 } else { 1 }))
                    .expect("a limit"),
            );
        }
        let later = is_configured.then(|| {
            let mut later = limits.clone();
            later[0] = rate(rng.i64(16..=40), rng.i64(1..=20));
            later
        });
        let parent = (is_configured && at > 0 && rng.bool()).then_some(0);
        buckets.push(Plan {
            entity: format!("e-{at}"),
            resource: "api".to_owned(),
            limits,
            later,
            parent,
        });
    }
    // A bucket that cascades has the parent's limits too.
    for at in 1..buckets.len() {
        if buckets[at].parent.is_some() && buckets[0].limits.len() < buckets[at].limits.len() {
            buckets[at].limits.truncate(1);
            if let Some(later) = &mut buckets[at].later {
                later.truncate(1);
            }
        }
    }
    buckets
}

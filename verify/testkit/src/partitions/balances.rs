//! What each partition has left.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::counts::Counts;
use super::limits::Limits;
use crate::dynamo::throttled_by;

/// Whose partition it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    Table,
    /// By its name.
    Index(&'static str),
}

/// What a balance is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Read,
    Write,
}

/// Why a request is throttled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spent {
    pub of: Of,
    kind: Kind,
}

impl Spent {
    /// The answer to the request, with the reason by the name that DynamoDB gives it.
    pub fn answer(self) -> (u16, String) {
        let (of, resource) = match self.of {
            Of::Table => ("Table", "table/weirgate".to_owned()),
            Of::Index(name) => ("Index", format!("table/weirgate/index/{name}")),
        };
        let kind = if self.kind == Kind::Read { "Read" } else { "Write" };
        throttled_by(&format!("{of}{kind}KeyRangeThroughputExceeded"), &resource)
    }
}

/// The balances of all partitions.
#[derive(Debug)]
pub(super) struct Balances {
    limits: Limits,
    partitions: BTreeMap<Of, BTreeMap<String, Partition>>,
    /// Partitions that are two now.
    split: BTreeSet<(Of, String)>,
}

#[derive(Debug)]
struct Partition {
    writes: Balance,
    reads: Balance,
    counts: Counts,
    /// Since when it was throttled in each ten seconds, and when it was last.
    hot: Option<(Instant, Instant)>,
}

/// What is added to a partition's name when it splits.
const HALVES: [char; 2] = ['a', 'b'];

/// A partition that is not throttled for so long is not hot any more.
const COOLS: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
struct Balance {
    /// In billionths of a unit, so that what flows in is exact.
    left: i128,
    per_second: u32,
    burst: u32,
    at: Instant,
}

const BILLION: i128 = 1_000_000_000;

impl Balance {
    fn full(per_second: u32, burst: u32) -> Self {
        Self { left: i128::from(burst) * BILLION, per_second, burst, at: Instant::now() }
    }

    fn is_below(&mut self, halves: u64) -> bool {
        let now = Instant::now();
        let passed = i128::try_from(now.duration_since(self.at).as_nanos()).unwrap_or(i128::MAX);
        let flowed = passed.saturating_mul(i128::from(self.per_second));
        self.left = self.left.saturating_add(flowed).min(i128::from(self.burst) * BILLION);
        self.at = now;
        self.left < i128::from(halves) * BILLION / 2
    }

    fn take(&mut self, halves: u64) {
        self.left -= i128::from(halves) * BILLION / 2;
    }
}

impl Balances {
    pub fn new(limits: &Limits) -> Self {
        Self { limits: limits.clone(), partitions: BTreeMap::new(), split: BTreeSet::new() }
    }

    pub fn counts(&self, of: Of, pk: &str) -> Counts {
        let name = self.name(of, pk);
        let partition = self.partitions.get(&of).and_then(|of| of.get(&*name));
        partition.map(|partition| partition.counts).unwrap_or_default()
    }

    /// Changes what was counted of a partition.
    pub fn count(&mut self, of: Of, pk: &str, count: impl Fn(&mut Counts)) {
        count(&mut self.partition(of, pk).counts);
    }

    /// Whether a request that costs at least so many half units is throttled there.
    pub fn spent(&mut self, of: Of, kind: Kind, pk: &str, halves: u64) -> Option<Spent> {
        if !self.partition(of, pk).balance(kind).is_below(halves) {
            return None;
        }
        self.heat(of, pk);
        Some(Spent { of, kind })
    }

    /// Splits a partition that has been hot for long enough.
    fn heat(&mut self, of: Of, pk: &str) {
        let (Some(_), Some(after)) = (self.limits.shared, self.limits.splits_after) else {
            return;
        };
        let now = Instant::now();
        let partition = self.partition(of, pk);
        let since = match partition.hot {
            Some((since, last)) if now.duration_since(last) < COOLS => since,
            _ => now,
        };
        partition.hot = Some((since, now));
        if now.duration_since(since) >= after {
            let name = self.name(of, pk).into_owned();
            let partitions = self.partitions.entry(of).or_default();
            // A split brings no burst: a single hot key gains nothing by it.
            if let Some(whole) = partitions.remove(&name) {
                for half in HALVES {
                    let half_name = format!("{name}{half}");
                    partitions.insert(half_name, whole.half());
                }
            }
            self.split.insert((of, name));
        }
    }

    /// How many partitions the table has.
    pub fn of_table(&self) -> u64 {
        let splits = self.split.iter().filter(|(of, _)| *of == Of::Table).count();
        self.limits.shared.map_or(0, NonZeroU64::get) + u64::try_from(splits).unwrap_or(u64::MAX)
    }

    /// Whether any write to an index may be throttled now.
    pub fn may_throttle_indexes(&mut self) -> bool {
        let is_below = |balance: &mut Balance| balance.is_below(2);
        let partitions = self.partitions.iter_mut().filter(|(of, _)| **of != Of::Table);
        let mut partitions =
            partitions.flat_map(|(_, of)| of.values_mut().map(|partition| &mut partition.writes));
        partitions.any(is_below)
    }

    /// Takes what a request has cost.
    pub fn charge(&mut self, of: Of, kind: Kind, pk: &str, halves: u64) {
        let partition = self.partition(of, pk);
        partition.balance(kind).take(halves);
        match kind {
            Kind::Read => partition.counts.half_reads += halves,
            Kind::Write => partition.counts.units += halves / 2,
        }
    }

    fn partition(&mut self, of: Of, pk: &str) -> &mut Partition {
        let name = self.name(of, pk);
        let partitions = self.partitions.entry(of).or_default();
        if !partitions.contains_key(&*name) {
            let fresh = Partition {
                writes: Balance::full(self.limits.units_per_second, self.limits.burst),
                reads: Balance::full(self.limits.reads_per_second, self.limits.read_burst),
                counts: Counts::default(),
                hot: None,
            };
            partitions.insert(name.clone().into_owned(), fresh);
        }
        partitions.get_mut(&*name).expect("it was put there if it was missing")
    }

    /// The name of a key's partition: the key, or a number by its hash, with a digit for each split
    /// since.
    fn name<'a>(&self, of: Of, pk: &'a str) -> Cow<'a, str> {
        let Some(count) = self.limits.shared else {
            return pk.into();
        };
        let mut hash = DefaultHasher::new();
        pk.hash(&mut hash);
        let hash = hash.finish();
        let (mut at, mut rest) = ((of, (hash % count).to_string()), hash / count);
        while self.split.contains(&at) {
            at.1.push(if rest & 1 == 0 { HALVES[0] } else { HALVES[1] });
            rest >>= 1;
        }
        at.1.into()
    }
}

impl Partition {
    /// Half of it, with what it has left and nothing counted yet.
    fn half(&self) -> Self {
        Self {
            writes: self.writes.clone(),
            reads: self.reads.clone(),
            counts: Counts::default(),
            hot: None,
        }
    }

    const fn balance(&mut self, kind: Kind) -> &mut Balance {
        match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
        }
    }
}

/// Write units of an item: one for each KB begun, one if there is none.
pub(super) fn write_units(item: &Value) -> u64 {
    size(item).div_ceil(1024).max(1)
}

/// Half read units of an item: two for each 4 KB begun if the read is strongly consistent, one if
/// not; those of 4 KB if there is none.
pub(super) fn half_read_units(item: &Value, is_consistent: bool) -> u64 {
    size(item).div_ceil(4096).max(1) * if is_consistent { 2 } else { 1 }
}

pub(super) fn size(item: &Value) -> u64 {
    let item = if item.is_null() { json!({}) } else { item.clone() };
    let item: dynoxide::Item = serde_json::from_value(item).expect("an item is DynamoDB JSON");
    u64::try_from(dynoxide::types::item_size(&item)).unwrap_or(u64::MAX)
}

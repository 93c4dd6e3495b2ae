//! I3 for copies: whatever is delivered twice, re-cut, late, left out or raced, the usage of every
//! hour and day is exact.

mod model;

use std::collections::{BTreeMap, BTreeSet};

use model::config;
use model::fleet::{Fleet, fleet};
use model::ops::{Op, op};
use model::stream::{Record, Snapshots, Writer, copies};
use model::table::{Table, plain};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::UsageCopy;
use weirgate_shared::{
    DELIVERY, EpochMillis, Meter, Millis, Snapshot, Usage, UsageState, Window, usage,
};

/// Longer than a run takes.
const RETENTION: Millis = Millis(1_000 * 86_400_000);
/// Largest clock offset, in ms.
const SKEW: i64 = 2_000;

#[derive(Debug, Clone)]
enum Step {
    /// A write, by a clock that is off by so much.
    Op(Op, i64),
    Delete(Index),
    DeleteMerged(Index),
    DeleteAll,
    Fill,
    Deliver(Batch),
    /// All that was ever written comes once more, by items in this order.
    Replay(Vec<u8>),
    /// The first records of all items come once more.
    Again(Index),
}

/// One invocation of the function.
#[derive(Debug, Clone)]
struct Batch {
    /// Records of this item, or of all.
    only: Option<Index>,
    size: usize,
    /// Which copies are left out.
    without: Vec<bool>,
    /// Another invocation at the same time.
    rival: Option<Rival>,
}

/// An invocation with the same records as another one, and some before and after them.
#[derive(Debug, Clone)]
struct Rival {
    before: usize,
    after: usize,
    /// Whether it is the one that writes next.
    turns: Vec<bool>,
}

fn batch() -> impl Strategy<Value = Batch> {
    let without = prop_oneof![2 => Just(vec![]), 1 => vec(prop::bool::weighted(0.4), 8)];
    let rival = (0..6usize, 0..6usize, vec(any::<bool>(), 0..20));
    let rival = option::weighted(
        0.3,
        rival.prop_map(|(before, after, turns)| Rival {
            before,
            after,
            turns,
        }),
    );
    let batch = (option::of(any::<Index>()), 1..12usize, without, rival);
    batch.prop_map(|(only, size, without, rival)| Batch {
        only,
        size,
        without,
        rival,
    })
}

fn step() -> impl Strategy<Value = Step> {
    const HOUR: i64 = 3_600_000;
    let skew = || prop_oneof![2 => Just(0), 1 => -SKEW..=SKEW];
    let wait = prop_oneof![1 => 0..2 * HOUR, 1 => Just(HOUR), 1 => 20 * HOUR..30 * HOUR];
    prop_oneof![
        24 => (op(), skew()).prop_map(|(op, skew)| Step::Op(op, skew)),
        4 => wait.prop_map(|span| Step::Op(Op::Wait(span), 0)),
        1 => any::<Index>().prop_map(Step::Delete),
        1 => any::<Index>().prop_map(Step::DeleteMerged),
        1 => Just(Step::DeleteAll),
        2 => Just(Step::Fill),
        10 => batch().prop_map(Step::Deliver),
        1 => vec(any::<u8>(), 4).prop_map(Step::Replay),
        1 => any::<Index>().prop_map(Step::Again),
    ]
}

/// A window, by its start.
type Gap = (Window, EpochMillis);

/// The bucket, its snapshots, and what was delivered.
#[derive(Debug)]
struct World {
    fleet: Fleet,
    snapshots: Snapshots,
    /// Number of delivered records of each item.
    delivered: BTreeMap<u32, usize>,
    /// Required copies that were lost.
    left_out: Vec<UsageCopy>,
    /// The windows of which a required copy was ever lost.
    gaps: BTreeSet<Gap>,
    /// Those of which the only copy of a life was lost: nothing tells that the shard was used.
    lost: BTreeSet<Gap>,
    /// Usage of windows, as reported once they were final.
    settled: BTreeMap<(Window, EpochMillis), Usage>,
    /// Live items after each step, the number of records, and the time.
    past: Vec<(Vec<Meter>, BTreeMap<u32, usize>, EpochMillis)>,
}

impl World {
    fn new(fleet: Fleet) -> Self {
        let (snapshots, delivered, gaps) = (Snapshots::default(), BTreeMap::new(), BTreeSet::new());
        Self {
            fleet,
            snapshots,
            delivered,
            left_out: vec![],
            gaps,
            lost: BTreeSet::new(),
            settled: BTreeMap::new(),
            past: vec![],
        }
    }

    fn table(&self) -> &Table {
        self.fleet.table()
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Op(op, skew) => self.fleet.step(op, *skew)?,
            Step::Delete(which) => self.fleet.delete_manually(*which),
            Step::DeleteMerged(which) => self.fleet.delete_merged(*which),
            Step::DeleteAll => self.fleet.delete_all(),
            Step::Fill => self.fleet.fill()?,
            Step::Deliver(batch) => self.deliver(batch),
            Step::Replay(order) => self.replay(order),
            Step::Again(until) => self.again(*until),
        }
        let counts = self
            .table()
            .stream()
            .iter()
            .map(|(item, records)| (*item, records.len()));
        let now = (self.table().live(), counts.collect(), self.fleet.now());
        self.past.push(now);
        self.deliver_due();
        Ok(())
    }

    /// Delivers what the stream has for longer than a day: it keeps no record longer.
    fn deliver_due(&mut self) {
        let kept = EpochMillis(self.fleet.now().0 - 86_400_000);
        let due = self.past.iter().rev().find(|(.., at)| *at <= kept);
        let Some((_, due, _)) = due.cloned() else {
            return;
        };
        for (item, until) in due {
            let from = self.delivered.get(&item).copied().unwrap_or_default();
            if from < until {
                let copies = copies(self.records(item, from..until));
                Writer::new(copies).finish(&mut self.snapshots);
                self.delivered.insert(item, until);
            }
        }
    }

    fn records(&self, item: u32, range: std::ops::Range<usize>) -> &[Record] {
        &self.table().stream()[&item][range]
    }

    fn deliver(&mut self, batch: &Batch) {
        let items: Vec<_> = self.table().stream().keys().copied().collect();
        let Some(only) = batch
            .only
            .as_ref()
            .map(|which| (!items.is_empty()).then(|| *which.get(&items)))
        else {
            return self.deliver_of(&items, batch);
        };
        self.deliver_of(only.as_slice(), batch);
    }

    fn deliver_of(&mut self, items: &[u32], batch: &Batch) {
        let (mut ours, mut theirs) = (vec![], vec![]);
        for item in items {
            let from = self.delivered.get(item).copied().unwrap_or_default();
            let until = self.table().stream()[item].len().min(from + batch.size);
            let planned = copies(self.records(*item, from..until));
            for (place, copy) in planned.into_iter().enumerate() {
                let is_left_out = batch.without.get(place).copied().unwrap_or_default();
                match copy.is_required {
                    true if is_left_out => {
                        let snapshot = self.snapshots.read(copy.key.window, copy.key.start);
                        let known = snapshot.shards.get(&copy.shard);
                        if known.is_none_or(|known| known.write_seq < copy.birth) {
                            self.lost.insert((copy.key.window, copy.key.start));
                        }
                        self.gaps.insert((copy.key.window, copy.key.start));
                        self.left_out.push(copy);
                    }
                    false if is_left_out => {}
                    _ => ours.push(copy),
                }
            }
            if let Some(Rival { before, after, .. }) = &batch.rival {
                let end = self.table().stream()[item].len().min(until + after);
                theirs.extend(copies(
                    self.records(*item, from.saturating_sub(*before)..end),
                ));
            }
            self.delivered.insert(*item, until);
        }
        let turns = batch.rival.as_ref().map_or(&[][..], |rival| &rival.turns);
        race(ours, theirs, turns, &mut self.snapshots);
    }

    fn replay(&mut self, order: &[u8]) {
        let mut items: Vec<_> = self.table().stream().keys().copied().collect();
        items.sort_by_key(|item| order[usize::try_from(*item).unwrap() % order.len()]);
        for item in items {
            let all = self.table().stream()[&item].len();
            let turns: Vec<_> = order
                .iter()
                .flat_map(|bits| (0..8).map(move |bit| bits >> bit & 1 == 1))
                .collect();
            let copies = || copies(self.records(item, 0..all));
            race(copies(), copies(), &turns, &mut self.snapshots);
            self.delivered.insert(item, all);
        }
        self.left_out.clear();
        self.gaps.clear();
        self.lost.clear();
    }

    fn again(&mut self, until: Index) {
        for records in self.fleet.table().stream().values() {
            let first = &records[..until.index(records.len() + 1)];
            Writer::new(copies(first)).finish(&mut self.snapshots);
        }
    }

    /// The windows of which a final copy was not delivered.
    fn missing(&self) -> BTreeSet<Gap> {
        let later = self.table().stream().iter().flat_map(|(item, records)| {
            let from = self.delivered.get(item).copied().unwrap_or_default();
            records[from..].iter().flat_map(Record::copies)
        });
        let all = later.chain(self.left_out.iter().cloned());
        all.filter(|copy| copy.is_final)
            .map(|copy| (copy.key.window, copy.key.start))
            .collect()
    }

    /// Returns whether a copy is lost without which nothing tells that a shard was used.
    fn is_lost(&self, window: Window, start: EpochMillis) -> bool {
        let day = (Window::Daily, Window::Daily.start(start));
        self.lost.contains(&(window, start)) || self.lost.contains(&day)
    }

    /// The usage of all windows of which no final copy is missing: what is in progress needs no
    /// copies at all. Whatever is missing, a number that is final never changes.
    fn check(&mut self, earlier: Index) -> Result<(), TestCaseError> {
        let (now, live) = (self.fleet.now(), self.table().live());
        let (missing, snapshots) = (self.missing(), self.snapshots.all());
        let none = Snapshot::default();
        for window in Window::ALL {
            for start in self.fleet.table().windows(window) {
                let snapshot = snapshots.get(&(window, start)).unwrap_or(&none);
                let used = self.fleet.table().used(window, start);
                let read = usage(window, start, &snapshots, &live, (now, RETENTION));
                let is_final = read.state == UsageState::Final;
                if is_final && !self.is_lost(window, start) {
                    self.settled
                        .entry((window, start))
                        .or_insert(plain(read.usage.clone()));
                }
                if let Some(settled) = self.settled.get(&(window, start)) {
                    prop_assert_eq!(
                        settled,
                        &used,
                        "{} {:?} was said to be final",
                        window,
                        start
                    );
                }
                let day = (Window::Daily, Window::Daily.start(start));
                let is_over = now >= Window::Daily.end(day.1).plus(DELIVERY);
                let lacks = |snapshot: Option<&Snapshot>| {
                    snapshot.is_some_and(|snapshot| !snapshot.unfinished.is_empty())
                };
                let is_known = [(window, start), day]
                    .iter()
                    .all(|of| !missing.contains(of) && !lacks(snapshots.get(of)));
                prop_assert!(
                    is_final || !is_over || !is_known,
                    "{} {:?} never ends: {:?}",
                    window,
                    start,
                    snapshots
                );
                prop_assert!(!is_final || is_over);
                if missing.contains(&(window, start)) {
                    continue;
                }
                if !snapshot.unfinished.is_empty() {
                    prop_assert!(
                        self.gaps.contains(&(window, start)),
                        "{} {:?} lost nothing",
                        window,
                        start
                    );
                    prop_assert!(!is_final, "{} {:?} lacks the end of a life", window, start);
                    continue;
                }
                prop_assert_eq!(
                    plain(read.usage),
                    used.clone(),
                    "{} {:?} of {:?}",
                    window,
                    start,
                    snapshot
                );
                // The items were read some time before the snapshot: it says the rest of a window
                // that is over by now.
                let (seen, counts, _) = earlier.get(&self.past);
                let new = |(item, records): (&u32, &Vec<Record>)| {
                    let written = records[counts.get(item).copied().unwrap_or_default()..].iter();
                    written
                        .filter_map(|record| record.after.clone())
                        .any(|image| image.meter.start(window) == start)
                };
                let is_open = live.iter().any(|item| item.start(window) == start);
                if !is_open || !self.fleet.table().stream().iter().any(new) {
                    let read = usage(window, start, &snapshots, seen, (now, RETENTION));
                    prop_assert_eq!(
                        plain(read.usage),
                        used,
                        "{} {:?} of items read before",
                        window,
                        start
                    );
                }
            }
        }
        Ok(())
    }

    /// Once all copies were delivered, the snapshots say which shards have left their window, and
    /// what these used in it.
    fn check_copies(&self) -> Result<(), TestCaseError> {
        for window in Window::ALL {
            for start in self.table().windows(window) {
                let snapshot = self.snapshots.read(window, start);
                for (shard, copied) in snapshot.shards.iter().filter(|(_, copied)| copied.is_final)
                {
                    let used = self
                        .table()
                        .used_by_life(window, start, *shard, copied.write_seq);
                    prop_assert_eq!(
                        plain(copied.usage.clone()),
                        used,
                        "{} {:?} of {}",
                        window,
                        start,
                        shard
                    );
                }
                let live = self.table().live().into_iter();
                let open: Vec<_> = live
                    .filter(|meter| meter.start(window) == start)
                    .map(|meter| meter.key.shard)
                    .collect();
                let mut finals = snapshot
                    .shards
                    .iter()
                    .filter(|(shard, _)| !open.contains(shard));
                prop_assert!(
                    finals.all(|(_, copied)| copied.is_final),
                    "{:?} but {:?}",
                    snapshot,
                    open
                );
                prop_assert!(snapshot.unfinished.is_empty(), "{:?}", snapshot);
                if open.is_empty() {
                    let snapshots = self.snapshots.all();
                    let at = (self.fleet.now(), RETENTION);
                    let read = usage(window, start, &snapshots, &[], at);
                    let used = self.table().used(window, start);
                    prop_assert_eq!(
                        plain(read.usage),
                        used,
                        "{} {:?} without items",
                        window,
                        start
                    );
                }
            }
        }
        Ok(())
    }
}

/// Two invocations make their copies at the same time; whether the second one writes next.
fn race(one: Vec<UsageCopy>, other: Vec<UsageCopy>, turns: &[bool], snapshots: &mut Snapshots) {
    let (mut one, mut other) = (Writer::new(one), Writer::new(other));
    for is_other in turns {
        if *is_other { &mut other } else { &mut one }.step(snapshots);
    }
    one.finish(snapshots);
    other.finish(snapshots);
}

proptest! {
    #![proptest_config(config(3_000))]

    #[test]
    fn i3_usage_is_exact_however_copies_are_delivered(
        fleet in fleet(false), steps in vec((step(), any::<Index>()), 1..60), order in vec(any::<u8>(), 4),
    ) {
        let mut world = World::new(fleet);
        for (step, earlier) in &steps {
            world.step(step)?;
            world.check(*earlier)?;
        }
        for _ in 0..2 {
            world.step(&Step::Replay(order.clone()))?;
            world.check(steps[0].1)?;
            world.check_copies()?;
        }
    }
}

//! Usage as the aggregator counts it, from the records of every run of the protocol: delivered in any cuts and order,
//! twice, late or not at all, by two functions at once whose answers are lost.

use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use stateright::{Model, Property};
use weirgate_shared::write::{Action, Count, Piece, Update};
use weirgate_shared::{Counted, LimitName, MilliTokens, SnapshotKey, Window};

use crate::bounds::START;
use crate::guard::{self, Guard, Kind};
use crate::item::Item;
use crate::protocol::Protocol;
use crate::reached::{Event, Reached};
use crate::table::Record;

/// The records of both shards, each in order.
type Stream = [Vec<Record>; 2];

/// The model.
#[derive(Debug)]
pub struct Counting {
    streams: Vec<Stream>,
    deliveries: u8,
    faults: u8,
    without: Option<Guard>,
    limits: [LimitName; 1],
    snapshot: SnapshotKey,
    reached: Reached,
}

/// The snapshot, and who counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Counts {
    stream: usize,
    snapshot: Snapshot,
    functions: [Option<Function>; 2],
    /// Of each shard, the records whose counting has been reported as done.
    done: [u32; 2],
    deliveries: u8,
    faults: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Snapshot(Arc<Item>);

impl Hash for Snapshot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for attribute in ["q0", "g0", "q1", "g1", "rpm", "total_events"] {
            format!("{:?}", self.0.0.get(attribute)).hash(state);
        }
    }
}

/// A function with a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Function {
    shard: usize,
    from: usize,
    to: usize,
    /// What a failed condition showed.
    seen: Option<Seen>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen(Counted);

impl Hash for Seen {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.through, self.0.gaps.to_string()).hash(state);
    }
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A function gets some records of a shard, from one to before another.
    Deliver(usize, usize, usize, usize),
    /// A function writes.
    Write(usize),
    /// A function writes, and the answer is lost: it will write the same again.
    WriteUnheard(usize),
    /// A function ends before it is done.
    Kill(usize),
}

impl Counting {
    /// The model of what `protocol` leaves in the stream, with so many deliveries of batches and so many faults.
    ///
    /// # Panics
    /// Never: the names are right.
    #[must_use]
    pub fn new(protocol: &Protocol, deliveries: u8, faults: u8, without: Option<Guard>) -> Self {
        let key = protocol.key(0);
        let window = Window::Hourly;
        Self {
            streams: streams(protocol),
            deliveries,
            faults,
            without,
            limits: [LimitName::new("rpm").expect("a name")],
            snapshot: SnapshotKey {
                namespace: key.namespace,
                entity: key.entity,
                resource: key.resource,
                window,
                start: window.start(START),
            },
            reached: Reached::default(),
        }
    }

    /// How many different streams there are.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    fn run(&self, last: &Counts, who: usize, is_heard: bool) -> Option<Counts> {
        let mut next = last.clone();
        let function = last.functions[who].as_ref()?;
        let Function { shard, from, to, seen } = function;
        let piece = |record: &Record| Piece {
            span: Some(record.span),
            tokens: vec![MilliTokens(record.used)],
            events: record.takes,
        };
        let pieces: Vec<_> = self.streams[last.stream][*shard][*from..*to].iter().map(piece).collect();
        let number = u32::try_from(*shard).ok()?;
        let count =
            Count { key: self.snapshot.clone(), shard: number, limits: &self.limits, pieces: &pieces, ttl_seconds: 1 };
        let update = match seen {
            None => Some(count.next()),
            Some(Seen(counted)) => count.rest(counted),
        };
        let Some(update) = update else {
            self.reached.note(Event::Dropped);
            next.finish(who);
            return Some(next);
        };
        if self.apply(&mut next, update) {
            if seen.as_ref().is_some_and(|Seen(counted)| {
                counted.through.is_some_and(|through| through >= pieces[0].span.map_or(0, |(_, high)| high))
            }) {
                self.reached.note(Event::GapFilled);
            }
            if is_heard {
                next.finish(who);
            }
        } else {
            if seen.is_some() {
                self.reached.note(Event::CountRefused);
            }
            let counted = next.snapshot.0.counted(number);
            if let Some(function) = &mut next.functions[who] {
                function.seen = Some(Seen(counted));
            }
        }
        Some(next)
    }

    fn apply(&self, next: &mut Counts, update: Update) -> bool {
        let mut actions = [Action::Update(update)];
        guard::strip(&mut actions, Kind::Count, self.without);
        let [Action::Update(update)] = actions else { return false };
        Arc::make_mut(&mut next.snapshot.0).apply(&update)
    }

    /// The records of a shard that the snapshot says it has counted.
    fn claimed(&self, state: &Counts, shard: usize) -> u32 {
        let counted = state.snapshot.0.counted(u32::try_from(shard).unwrap_or_default());
        let is_claimed = |record: &Record| {
            let (low, high) = record.span;
            counted.through.is_some_and(|through| high <= through) && !counted.gaps.clone().take(low, high)
        };
        let records = self.streams[state.stream][shard].iter().enumerate();
        records.filter(|(_, record)| is_claimed(record)).map(|(at, _)| 1 << at).sum()
    }

    fn sum(&self, state: &Counts, which: [u32; 2]) -> (i128, i128) {
        let mut sum = (0, 0);
        for (records, which) in self.streams[state.stream].iter().zip(which) {
            for (_, record) in records.iter().enumerate().filter(|(at, _)| which & (1 << at) != 0) {
                sum.0 += i128::from(record.used);
                sum.1 += i128::from(record.takes) * 1000;
            }
        }
        sum
    }

    fn is_exact(&self, state: &Counts) -> bool {
        let claimed = [0, 1].map(|shard| self.claimed(state, shard));
        let snapshot = &state.snapshot.0;
        self.sum(state, claimed) == (snapshot.tokens("rpm"), snapshot.tokens("total_events"))
    }

    fn is_all(&self, state: &Counts) -> bool {
        self.streams[state.stream]
            .iter()
            .zip(state.done)
            .all(|(records, done)| (0..records.len()).all(|at| done & (1 << at) != 0))
    }
}

impl Counts {
    fn finish(&mut self, who: usize) {
        if let Some(Function { shard, from, to, .. }) = self.functions[who].take() {
            self.done[shard] |= (from..to).map(|at| 1 << at).sum::<u32>();
        }
    }
}

impl Model for Counting {
    type State = Counts;
    type Action = Step;

    fn init_states(&self) -> Vec<Counts> {
        let (deliveries, faults) = (self.deliveries, self.faults);
        let start = |stream| Counts {
            stream,
            snapshot: Snapshot::default(),
            functions: [None, None],
            done: [0, 0],
            deliveries,
            faults,
        };
        (0..self.streams.len()).map(start).collect()
    }

    fn actions(&self, state: &Counts, steps: &mut Vec<Step>) {
        for (who, function) in state.functions.iter().enumerate() {
            if function.is_some() {
                steps.push(Step::Write(who));
                if state.faults > 0 {
                    steps.extend([Step::WriteUnheard(who), Step::Kill(who)]);
                }
            }
        }
        // Two functions that are alike: the first free one begins.
        let Some(free) = state.functions.iter().position(Option::is_none).filter(|_| state.deliveries > 0) else {
            return;
        };
        for (shard, records) in self.streams[state.stream].iter().enumerate() {
            for from in 0..records.len() {
                let mut to = from + 1;
                steps.push(Step::Deliver(free, shard, from, to));
                // A batch is cut where its records do not follow each other.
                while to < records.len() && records[to - 1].span.1 == records[to].span.0 {
                    to += 1;
                    steps.push(Step::Deliver(free, shard, from, to));
                }
            }
        }
    }

    fn next_state(&self, last: &Counts, step: Step) -> Option<Counts> {
        let mut next = last.clone();
        match step {
            Step::Deliver(who, shard, from, to) => {
                next.deliveries -= 1;
                next.functions[who] = Some(Function { shard, from, to, seen: None });
            }
            Step::Write(who) => return self.run(last, who, true),
            Step::WriteUnheard(who) => {
                next.faults -= 1;
                return self.run(&next, who, false);
            }
            Step::Kill(who) => {
                next.faults -= 1;
                next.functions[who] = None;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let fails = |model: &Self, state: &Counts| state.faults < model.faults && model.is_all(state);
        let fails = (self.faults > 0).then(|| Property::sometimes("all is delivered, though something failed", fails));
        let mut properties = vec![
            Property::always(
                "I3: what the snapshot says it has counted it has, once",
                |model: &Self, state: &Counts| model.is_exact(state),
            ),
            Property::always("I3: what was reported as counted is", |model: &Self, state: &Counts| {
                [0, 1].into_iter().all(|shard| state.done[shard] & !model.claimed(state, shard) == 0)
            }),
            Property::always("I3: once all is delivered, counted is consumed", |model: &Self, state: &Counts| {
                let snapshot = &state.snapshot.0;
                !model.is_all(state)
                    || model.sum(state, [u32::MAX; 2]) == (snapshot.tokens("rpm"), snapshot.tokens("total_events"))
            }),
            Property::sometimes("all is delivered", |model: &Self, state: &Counts| model.is_all(state)),
            Property::sometimes("a batch was counted before", |model: &Self, _: &Counts| {
                model.reached.has(Event::Dropped)
            }),
            Property::sometimes("a gap is filled", |model: &Self, _: &Counts| model.reached.has(Event::GapFilled)),
            Property::sometimes("two count at once", |model: &Self, _: &Counts| model.reached.has(Event::CountRefused)),
        ];
        properties.extend(fails);
        properties
    }
}

/// The streams that the runs of `protocol` end with.
fn streams(protocol: &Protocol) -> Vec<Stream> {
    let (mut seen, mut streams) = (HashSet::new(), BTreeSet::new());
    let mut open = protocol.init_states();
    while let Some(state) = open.pop() {
        let next = protocol.next_states(&state);
        if next.is_empty() {
            let of =
                |shard| state.stream.iter().filter(|(at, _)| *at == shard).map(|(_, record)| record.clone()).collect();
            streams.insert([of(0), of(1)]);
        }
        open.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
    }
    streams.into_iter().collect()
}

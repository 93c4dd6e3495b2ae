//! Usage as the aggregator copies it, of all runs of the protocol. Two functions get their records
//! in any cuts and order, as often as they like, late or not at all; their answers are lost, and
//! they die between two writes.

use std::sync::Arc;

use stateright::{Model, Property};
use weirgate_shared::write::{Action, UsageCopy};
use weirgate_shared::{Millis, Usage, UsageHorizon, WindowUsage, usage};

use crate::model::bounds::Bounds;
use crate::model::coverage::{Coverage, Event};
use crate::model::guard::{self, Guard, Kind};
use crate::model::protocol::Protocol;
use crate::model::runs::{self, Case, Moment};
use weirgate_shared::evaluator::Item;

/// Longer than a run takes.
const RETENTION: Millis = Millis(90 * 86_400_000);

/// The model.
#[derive(Debug)]
pub struct Copying {
    cases: Vec<Case>,
    without: Option<Guard>,
    happens: Vec<Event>,
    coverage: Coverage,
}

/// The snapshot of one window of one run, and the functions that copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Copies {
    case: usize,
    snapshot: Arc<Item>,
    functions: [Option<Function>; 2],
    /// Writes of the run that must have happened by now, because their records were delivered.
    writes: usize,
    /// Records that end the window for a life of a shard and were reported as done, as bits.
    ended: u32,
    /// A later life of a shard was copied before the end of an earlier one.
    is_overtaken: bool,
    /// A copy replaced a newer one.
    is_older: bool,
}

/// A function with a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Function {
    batch: usize,
    /// Copies of it that were made.
    done: usize,
    /// Item that a failed condition returned, if it changes the next attempt.
    seen: Option<Arc<Item>>,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A function receives a batch.
    Deliver(usize, usize),
    /// A function writes.
    Write(usize),
    /// A function writes, and the answer is lost: it will write the same again.
    WriteUnheard(usize),
    /// A function dies.
    Kill(usize),
}

impl Copying {
    /// The model of all that the runs of a protocol of this size leave in the stream.
    pub fn new(bounds: Bounds) -> Self {
        let (without, happens) = (bounds.without, bounds.happens.clone());
        Self {
            cases: runs::cases(&Protocol::new(bounds)),
            without,
            happens,
            coverage: Coverage::default(),
        }
    }

    /// Returns what should have happened in some state, and did not.
    pub fn missing(&self) -> Vec<Event> {
        self.coverage.missing(&self.happens)
    }

    fn write(&self, last: &Copies, number: usize, is_heard: bool) -> Option<Copies> {
        let mut next = last.clone();
        let function = next.functions[number].as_mut()?;
        let batch = &self.cases[last.case].batches[function.batch];
        let copy = &batch.copies[function.done];
        let after = function.seen.as_ref().and_then(|seen| copy.after(&seen.snapshot()));
        let mut actions = [Action::Update(after.unwrap_or_else(|| copy.first()))];
        guard::strip(&mut actions, Kind::Copy, self.without);
        let [Action::Update(update)] = actions else {
            return None;
        };
        if Arc::make_mut(&mut next.snapshot).apply(&update) {
            next.is_older |= self.is_older(&last.snapshot, &next.snapshot, copy);
        } else if !is_heard {
            return None;
        } else if let Some(update) = copy.after(&last.snapshot.snapshot()) {
            function.seen.iter().for_each(|_| self.coverage.note(Event::CarryLost));
            function.seen = (update != copy.first()).then(|| Arc::clone(&last.snapshot));
            return Some(next);
        } else {
            self.coverage.note(Event::Superseded);
        }
        if is_heard {
            (function.done, function.seen) = (function.done + 1, None);
            if function.done == batch.copies.len() {
                next.ended |= batch.ends;
                next.functions[number] = None;
            }
        }
        Some(next)
    }

    /// Returns whether a copy has replaced a newer one.
    fn is_older(&self, was: &Item, is: &Item, copy: &UsageCopy) -> bool {
        self.coverage.note(if copy.is_final { Event::Final } else { Event::Interim });
        let (was, is) = (was.snapshot(), is.snapshot());
        let (Some(was), Some(is)) = (was.shards.get(&copy.shard), is.shards.get(&copy.shard))
        else {
            return false;
        };
        self.coverage.note(if was.write_seq < copy.birth {
            Event::Carried
        } else {
            Event::Replaced
        });
        (is.write_seq, is.is_final) < (was.write_seq, was.is_final)
    }

    fn read(&self, state: &Copies, moment: &Moment, after_end: Millis) -> WindowUsage {
        let Case { window, start, .. } = &self.cases[state.case];
        usage(
            *window,
            *start,
            &[((*window, *start), state.snapshot.snapshot())].into(),
            &moment.live,
            &UsageHorizon::of_stream(window.end(*start).plus(after_end), RETENTION),
        )
    }

    /// Returns whether a reader finds the exact usage at each moment when all records that ended
    /// the window are delivered. After a delivery out of order, the end of an earlier life may be
    /// missing permanently, and the snapshot reports it.
    fn is_exact(&self, state: &Copies) -> bool {
        if state.is_overtaken && !state.snapshot.snapshot().unfinished.is_empty() {
            return true;
        }
        let known = |moment: &&Moment| moment.ends & !state.ended == 0;
        let mut moments = self.cases[state.case].moments[state.writes..].iter().filter(known);
        moments.all(|moment| is_same(&self.read(state, moment, Millis(0)).usage, &moment.truth))
    }

    /// Returns whether the final copies contain the usage at the end of the run.
    fn is_marked_right(&self, state: &Copies) -> bool {
        let lives = &self.cases[state.case].lives;
        let mut finals =
            state.snapshot.snapshot().shards.into_iter().filter(|(_, copied)| copied.is_final);
        finals.all(|(shard, copied)| {
            let life = lives.range(..=(shard, copied.write_seq)).next_back();
            life.is_some_and(|(_, used)| is_same(used, &copied.usage))
        })
    }

    /// Returns whether a window reads as final once the stream has delivered the records that ended
    /// it, in any order, and has the exact usage at the end of the run then.
    fn is_final_right(&self, state: &Copies) -> bool {
        let last = self.cases[state.case].moments.last();
        let Some(last) = last.filter(|last| last.ends & !state.ended == 0) else {
            return true;
        };
        let early = self.read(state, last, Millis(10_000));
        let late = self.read(state, last, Millis(2 * 86_400_000));
        !early.is_final() && late.is_final() && is_same(&late.usage, &last.truth)
    }
}

/// Returns whether both are equal, except for amounts of 0.
fn is_same(one: &Usage, other: &Usage) -> bool {
    let holds = |one: &Usage, other: &Usage| {
        one.tokens
            .iter()
            .all(|(limit, amount)| other.tokens.get(limit).copied().unwrap_or_default() == *amount)
    };
    one.acquires == other.acquires && holds(one, other) && holds(other, one)
}

impl Model for Copying {
    type State = Copies;
    type Action = Step;

    fn init_states(&self) -> Vec<Copies> {
        (0..self.cases.len()).map(|case| Copies { case, ..Copies::default() }).collect()
    }

    fn actions(&self, state: &Copies, steps: &mut Vec<Step>) {
        for (number, _) in
            state.functions.iter().enumerate().filter(|(_, function)| function.is_some())
        {
            steps.extend([Step::Write(number), Step::WriteUnheard(number), Step::Kill(number)]);
        }
        let Some(free) = state.functions.iter().position(Option::is_none) else {
            return;
        };
        steps.extend(
            (0..self.cases[state.case].batches.len()).map(|batch| Step::Deliver(free, batch)),
        );
    }

    fn next_state(&self, last: &Copies, step: Step) -> Option<Copies> {
        let mut next = last.clone();
        match step {
            Step::Write(number) => next = self.write(last, number, true)?,
            Step::WriteUnheard(number) => next = self.write(last, number, false)?,
            Step::Kill(number) => next.functions[number] = None,
            Step::Deliver(number, batch) => {
                let Case { batches, .. } = &self.cases[last.case];
                next.writes = next.writes.max(batches[batch].last);
                next.is_overtaken |= batches[batch].follows & !next.ended != 0;
                match batches[batch].copies.is_empty() {
                    true => next.ended |= batches[batch].ends,
                    false => next.functions[number] = Some(Function { batch, done: 0, seen: None }),
                }
            }
        }
        // Both are alike, so it does not matter which is the first.
        next.functions.sort_by_key(|function| {
            function.as_ref().map(|it| (it.batch, it.done, it.seen.is_some()))
        });
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "I3: a window whose ends were copied reads as what was used",
                Self::is_exact,
            ),
            Property::always("I3: what is marked as final was used", Self::is_marked_right),
            Property::always("I3: what reads as final was used", Self::is_final_right),
            Property::always("I3: no copy replaces a newer one", |_, state: &Copies| {
                !state.is_older
            }),
        ]
    }
}

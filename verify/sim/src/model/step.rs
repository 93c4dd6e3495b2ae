//! The state machine that is explored: the steps that are possible in a state, and what they lead to.

use std::sync::Arc;

use stateright::{Model, Property};
use weirgate_shared::MilliTokens;

use crate::model::bounds::Bounds;
use crate::model::client::{Client, RequestKind};
use crate::model::coverage::Event;
use crate::model::guard::Kind;
use crate::model::protocol::Protocol;
use crate::model::state::{Job, State};

/// The fate of a request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The request and its response arrive.
    Answered,
    /// It arrives twice, the second time whenever.
    Doubled,
    /// It arrives, its answer does not.
    AnswerLost,
    /// It does not arrive.
    Lost,
    /// It arrives when its client does not wait any more.
    Late,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A client asks a shard.
    Ask(usize, usize, RequestKind),
    /// A request of a client arrives, or not.
    Arrive(usize, Fate),
    /// A client with an unconfirmed write tries again.
    Again(usize),
    /// A client gives up its unconfirmed write.
    GiveUp(usize),
    /// A client ends; its request in flight may still arrive.
    Crash(usize),
    /// The late request arrives.
    ArriveLate,
    /// A function reads.
    Read(Job),
    /// Another function refills a shard at once.
    Credit(usize),
    /// The function writes: with the current clock, with its response lost.
    Work(bool, bool),
    /// It ends before it writes.
    Kill,
    /// It ends, and what it has sent arrives later.
    Leave,
    /// It writes, and what it has sent arrives once more later.
    Double,
    /// Another function finishes the split of shard 0 at once.
    Finish,
    /// The reconciler returns the tokens of expired leases at once.
    Restore(usize),
}

impl Protocol {
    pub(crate) fn of_client(&self, state: &State, index: usize, steps: &mut Vec<Step>) {
        let client = &state.clients[index];
        // Which of two like clients comes first, and which the one fault hits, is a matter of their
        // names.
        let [one, other] = self.bounds.requests;
        let is_like = one == other && self.bounds.releases[0] == self.bounds.releases[1];
        let is_first =
            index == 0 || !is_like || self.bounds.faults > 0 || state.clients[0].left < one;
        if client.is_gone || !is_first {
            return;
        }
        let may_fail = state.faults > 0 && (index == 0 || !is_like || self.bounds.faults > 1);
        match &client.open {
            None => self.wishes(state, client, index, steps),
            Some(open) if open.sent.is_some() => {
                steps.push(Step::Arrive(index, Fate::Answered));
                if may_fail {
                    steps.extend(
                        [Fate::AnswerLost, Fate::Lost].map(|fate| Step::Arrive(index, fate)),
                    );
                    if state.late.is_none() {
                        steps.extend(
                            [Fate::Doubled, Fate::Late].map(|fate| Step::Arrive(index, fate)),
                        );
                    }
                }
            }
            Some(open) => {
                steps.extend((open.writes < self.bounds.attempts).then_some(Step::Again(index)));
                steps.push(Step::GiveUp(index));
            }
        }
        // A client with nothing under way and nothing to lose can as well do nothing.
        let matters =
            client.grant.is_some() || client.open.as_ref().is_some_and(|open| open.sent.is_some());
        if may_fail && matters && state.late.is_none() {
            steps.push(Step::Crash(index));
        }
    }

    fn wishes(&self, state: &State, client: &Client, index: usize, steps: &mut Vec<Step>) {
        let Some(grant) = &client.grant else {
            let ends = state.now + self.bounds.lease.unwrap_or_default();
            if client.left > 0 && ends <= self.bounds.ticks {
                let shards = if client.knows_of_two() { 0..2 } else { 0..1 };
                for shard in shards {
                    let ask = |need: &i64| {
                        Step::Ask(index, shard, RequestKind::Take(MilliTokens::from_tokens(*need)))
                    };
                    steps.extend(self.bounds.needs.iter().map(ask));
                }
            }
            return;
        };
        steps.extend(self.bounds.releases[index].then_some(Step::Ask(
            index,
            grant.shard,
            RequestKind::Release,
        )));
        if self.bounds.rolls_back {
            steps.push(Step::Ask(index, grant.shard, RequestKind::RollBack));
        }
        let is_last = grant.expires.plus(self.bounds.tick) > self.at(self.bounds.ticks);
        if self.bounds.renews && !grant.is_renewed && !is_last {
            steps.push(Step::Ask(index, grant.shard, RequestKind::Renew));
        }
    }

    pub(crate) fn of_functions(&self, state: &State, steps: &mut Vec<Step>) {
        match &state.work {
            None if state.works > 0 => steps.extend(self.jobs(state).into_iter().map(Step::Read)),
            None => {}
            Some(work) => {
                // A write that is fixed already is the same whenever it is made.
                let clocks = if work.read < state.now && work.sent.is_none() { 0..2 } else { 0..1 };
                let fates = if state.faults > 0 { 0..2 } else { 0..1 };
                for is_late in clocks.map(|clock| clock == 1) {
                    steps.extend(fates.clone().map(|fate| Step::Work(is_late, fate == 1)));
                }
                steps.extend((state.faults > 0).then_some(Step::Kill));
                if state.faults > 0
                    && state.late.is_none()
                    && !self.bounds.splits_at_once
                    && self.pending_write(state).is_some()
                {
                    steps.extend([Step::Leave, Step::Double]);
                }
                let escrow = state.table.rows()[0].is_some_and(|row| row.bucket().escrow.is_some());
                steps.extend((state.works > 0 && escrow).then_some(Step::Finish));
                if state.works > 0 {
                    let credited =
                        |shard: &usize| self.planned_now(state, (Kind::Refill, *shard)).is_some();
                    let does = self.bounds.jobs.contains(&Kind::Refill);
                    steps.extend((0..3).filter(|shard| does && credited(shard)).map(Step::Credit));
                }
            }
        }
        steps.extend((0..3).filter(|shard| self.is_due(state, *shard)).map(Step::Restore));
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let Bounds { requests, faults, works, .. } = self.bounds;
        let clients = requests.map(|left| Client { left, ..Client::default() });
        vec![State { clients, faults, works, ..State::default() }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.extend((state.now < self.bounds.ticks).then_some(Step::Tick));
        (0..2).for_each(|index| self.of_client(state, index, steps));
        steps.extend(state.late.is_some().then_some(Step::ArriveLate));
        self.of_functions(state, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Tick => next.now += 1,
            Step::Ask(index, shard, kind) => self.begin(&mut next, index, shard, kind),
            Step::Arrive(index, fate) => {
                next.faults -= u8::from(fate != Fate::Answered);
                self.arrive(&mut next, index, fate);
            }
            Step::Again(index) => next.clients[index].open.as_mut()?.write(last.now),
            Step::GiveUp(index) => self.give_up(&mut next, index),
            Step::Crash(index) => {
                next.faults -= 1;
                if next.clients[index].open.as_ref().is_some_and(|open| open.sent.is_some()) {
                    next.late = Some(Arc::new(self.sent(&next, index)));
                }
                next.clients[index] = Client { is_gone: true, ..Client::default() };
            }
            Step::ArriveLate => {
                let sent = next.late.take()?;
                let is_applied = self.write(&mut next, &sent);
                self.coverage.note(if is_applied { Event::LateDone } else { Event::LateLost });
            }
            Step::Read(job) => self.read(&mut next, job),
            Step::Work(is_late, answer_is_lost) => {
                next.faults -= u8::from(answer_is_lost);
                self.work(&mut next, is_late, answer_is_lost);
            }
            Step::Credit(shard) => {
                next.works -= 1;
                self.write(&mut next, &self.planned_now(last, (Kind::Refill, shard))?);
            }
            Step::Kill => {
                next.faults -= 1;
                next.work = None;
            }
            Step::Leave => {
                next.faults -= 1;
                next.late = self.pending_write(last);
                next.work = None;
            }
            Step::Double => {
                next.faults -= 1;
                next.late = self.pending_write(last);
                self.work(&mut next, false, false);
            }
            Step::Finish => {
                next.works -= 1;
                self.finish(&mut next);
            }
            Step::Restore(shard) => {
                _ = self.write(&mut next, &self.planned_now(last, (Kind::Expire, shard))?);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.invariants()
    }
}

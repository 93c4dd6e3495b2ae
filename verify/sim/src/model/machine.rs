//! The protocol as a state machine that is explored.

use std::sync::Arc;

use stateright::{Model, Property};

use crate::model::bounds::Bounds;
use crate::model::client::Client;
use crate::model::coverage::Event;
use crate::model::guard::Kind;
use crate::model::protocol::Protocol;
use crate::model::state::State;
use crate::model::step::{Fate, Step};

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let Bounds {
            requests,
            faults,
            works,
            ..
        } = self.bounds;
        let clients = requests.map(|left| Client {
            left,
            ..Client::default()
        });
        vec![State {
            clients,
            faults,
            works,
            ..State::default()
        }]
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
                if next.clients[index]
                    .open
                    .as_ref()
                    .is_some_and(|open| open.sent.is_some())
                {
                    next.late = Some(Arc::new(self.sent(&next, index)));
                }
                next.clients[index] = Client {
                    is_gone: true,
                    ..Client::default()
                };
            }
            Step::ArriveLate => {
                let sent = next.late.take()?;
                let is_applied = self.write(&mut next, &sent);
                self.coverage.note(if is_applied {
                    Event::LateDone
                } else {
                    Event::LateLost
                });
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

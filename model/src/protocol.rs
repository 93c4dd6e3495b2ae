//! The protocol as a state machine: everything that may happen in a state, and what must hold in
//! all of them.

use stateright::{Model, Property};
use weirgate_shared::{
    BucketKey, EntityId, EpochMillis, LimitState, MilliTokens, Millis, Namespace, Resource, Shard,
    ShardIndex, refill_between,
};

use crate::bounds::Bounds;
use crate::client::{Client, Wish};
use crate::guard::Kind;
use crate::reached::{Event, Reached};
use crate::state::State;
use crate::work::Job;

/// The model.
#[derive(Debug)]
pub struct Protocol {
    /// Size of the model.
    pub bounds: Bounds,
    pub(crate) reached: Reached,
    pub(crate) keys: [BucketKey; 3],
}

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
    Ask(usize, usize, Wish),
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
    /// The model of this size.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let key = |shard| BucketKey {
            namespace: Namespace::new("n").expect("a name"),
            entity: EntityId::new("e").expect("a name"),
            resource: Resource::new("r").expect("a name"),
            shard,
        };
        Self {
            bounds,
            reached: Reached::default(),
            keys: [key(0), key(1), key(2)],
        }
    }

    /// Returns what should have happened in some state, and did not.
    #[must_use]
    pub fn missing(&self) -> Vec<Event> {
        self.reached.missing(&self.bounds.happens)
    }

    /// The instant of a tick.
    pub(crate) fn at(&self, tick: i64) -> EpochMillis {
        self.bounds.start.plus(Millis(self.bounds.tick.0 * tick))
    }

    fn of_client(&self, state: &State, who: usize, steps: &mut Vec<Step>) {
        let client = &state.clients[who];
        // Which of two like clients comes first, and which the one fault hits, is a matter of their
        // names.
        let [one, other] = self.bounds.requests;
        let is_like = one == other && self.bounds.releases[0] == self.bounds.releases[1];
        let is_first =
            who == 0 || !is_like || self.bounds.faults > 0 || state.clients[0].left < one;
        if client.is_gone || !is_first {
            return;
        }
        let may_fail = state.faults > 0 && (who == 0 || !is_like || self.bounds.faults > 1);
        match &client.doing {
            None => self.wishes(state, client, who, steps),
            Some(doing) if doing.sent.is_some() => {
                steps.push(Step::Arrive(who, Fate::Answered));
                if may_fail {
                    steps
                        .extend([Fate::AnswerLost, Fate::Lost].map(|fate| Step::Arrive(who, fate)));
                    if state.late.is_none() {
                        steps.extend(
                            [Fate::Doubled, Fate::Late].map(|fate| Step::Arrive(who, fate)),
                        );
                    }
                }
            }
            Some(doing) => {
                steps.extend((doing.writes < self.bounds.attempts).then_some(Step::Again(who)));
                steps.push(Step::GiveUp(who));
            }
        }
        // A client with nothing under way and nothing to lose can as well do nothing.
        let matters = client.grant.is_some()
            || client
                .doing
                .as_ref()
                .is_some_and(|doing| doing.sent.is_some());
        if may_fail && matters && state.late.is_none() {
            steps.push(Step::Crash(who));
        }
    }

    fn wishes(&self, state: &State, client: &Client, who: usize, steps: &mut Vec<Step>) {
        let Some(grant) = &client.grant else {
            let ends = state.now + self.bounds.lease.unwrap_or_default();
            if client.left > 0 && ends <= self.bounds.ticks {
                let shards = if client.knows_of_two() { 0..2 } else { 0..1 };
                for shard in shards {
                    let ask = |need: &i64| {
                        Step::Ask(who, shard, Wish::Take(MilliTokens::from_tokens(*need)))
                    };
                    steps.extend(self.bounds.needs.iter().map(ask));
                }
            }
            return;
        };
        steps.extend(self.bounds.releases[who].then_some(Step::Ask(
            who,
            grant.shard,
            Wish::Release,
        )));
        if self.bounds.rolls_back {
            steps.push(Step::Ask(who, grant.shard, Wish::RollBack));
        }
        let is_last = grant.expires.plus(self.bounds.tick) > self.at(self.bounds.ticks);
        if self.bounds.renews && !grant.is_renewed && !is_last {
            steps.push(Step::Ask(who, grant.shard, Wish::Renew));
        }
    }

    fn of_functions(&self, state: &State, steps: &mut Vec<Step>) {
        match &state.work {
            None if state.works > 0 => steps.extend(self.jobs(state).into_iter().map(Step::Read)),
            None => {}
            Some(work) => {
                // A write that is fixed already is the same whenever it is made.
                let clocks = if work.read < state.now && work.sent.is_none() {
                    0..2
                } else {
                    0..1
                };
                let fates = if state.faults > 0 { 0..2 } else { 0..1 };
                for is_late in clocks.map(|clock| clock == 1) {
                    steps.extend(fates.clone().map(|fate| Step::Work(is_late, fate == 1)));
                }
                steps.extend((state.faults > 0).then_some(Step::Kill));
                if state.faults > 0
                    && state.late.is_none()
                    && !self.bounds.splits_at_once
                    && self.to_come(state).is_some()
                {
                    steps.extend([Step::Leave, Step::Double]);
                }
                let escrow = state.table.rows()[0].is_some_and(|row| row.bucket().escrow.is_some());
                steps.extend((state.works > 0 && escrow).then_some(Step::Finish));
                if state.works > 0 {
                    let credited =
                        |shard: &usize| self.planned_now(state, (Kind::Refill, *shard)).is_some();
                    let does = self.bounds.jobs.contains(&Kind::Refill);
                    steps.extend(
                        (0..3)
                            .filter(|shard| does && credited(shard))
                            .map(Step::Credit),
                    );
                }
            }
        }
        steps.extend(
            (0..3)
                .filter(|shard| self.is_due(state, *shard))
                .map(Step::Restore),
        );
    }

    /// The limit that clients compete for.
    fn limit<'a>(&self, bucket: &'a Shard) -> &'a LimitState {
        &bucket.limits[self.bounds.limit.name()]
    }

    /// I1 over the whole run: checks that granted and still available tokens equal the capacity and
    /// the refill.
    fn is_minted(&self, state: &State) -> bool {
        let rule = self.bounds.limit.rule();
        let Some(last) = state
            .table
            .shards()
            .map(|row| row.bucket().refilled_at)
            .max()
            .filter(|_| !rule.is_concurrent())
        else {
            return false;
        };
        let left = |bucket: &Shard| {
            self.limit(bucket).available
                + refill_between(rule, bucket.shard(), bucket.refilled_at, last)
        };
        let all = state
            .table
            .buckets()
            .into_iter()
            .map(left)
            .sum::<MilliTokens>()
            + MilliTokens(state.books.used);
        // The bucket is made at the first tick, or later: then the credit is less.
        all > rule.capacity + refill_between(rule, ShardIndex::UNSPLIT, self.bounds.start, last)
    }

    /// Slots: each is free, or held by a lease.
    fn has_all_slots(&self, state: &State) -> bool {
        let rule = self.bounds.limit.rule();
        let is_free = state
            .table
            .shards()
            .all(|row| row.limit().available >= MilliTokens::ZERO);
        let held: MilliTokens = state.table.shards().map(|row| row.held()).sum();
        let sum = state
            .table
            .buckets()
            .into_iter()
            .map(|bucket| self.limit(bucket).available)
            .sum::<MilliTokens>()
            + held;
        !rule.is_concurrent() || state.table.rows()[0].is_none() || is_free && sum == rule.capacity
    }

    fn is_held_for(&self, state: &State, client: &Client) -> bool {
        let Some(grant) = client.relies_on(self.at(state.now)) else {
            return true;
        };
        let row = state.table.rows()[grant.shard];
        let lease = row.and_then(|row| row.bucket().leases.as_ref()?.get(&grant.id));
        lease.is_some_and(|lease| {
            lease.tokens.values().copied().sum::<MilliTokens>() == grant.amount
        })
    }
}

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
        (0..2).for_each(|who| self.of_client(state, who, steps));
        steps.extend(state.late.is_some().then_some(Step::ArriveLate));
        self.of_functions(state, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Tick => next.now += 1,
            Step::Ask(who, shard, wish) => self.wish(&mut next, who, shard, wish),
            Step::Arrive(who, fate) => {
                next.faults -= u8::from(fate != Fate::Answered);
                self.arrive(&mut next, who, fate);
            }
            Step::Again(who) => next.clients[who].doing.as_mut()?.write(last.now),
            Step::GiveUp(who) => self.give_up(&mut next, who),
            Step::Crash(who) => {
                next.faults -= 1;
                if next.clients[who]
                    .doing
                    .as_ref()
                    .is_some_and(|doing| doing.sent.is_some())
                {
                    next.late = Some(std::sync::Arc::new(self.sent(&next, who)));
                }
                next.clients[who] = Client {
                    is_gone: true,
                    ..Client::default()
                };
            }
            Step::ArriveLate => {
                let sent = next.late.take()?;
                let is_applied = self.write(&mut next, &sent);
                self.reached.note(if is_applied {
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
                next.late = self.to_come(last);
                next.work = None;
            }
            Step::Double => {
                next.faults -= 1;
                next.late = self.to_come(last);
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
        vec![
            Property::always(
                "I1: no interval admits too much",
                |model: &Self, state: &State| state.books.is_within(model.bounds.limit.rule()),
            ),
            Property::always("I1: no token is minted", |model: &Self, state| {
                !model.is_minted(state)
            }),
            Property::always(
                "I1, I4, I6: every slot is free, or held once",
                Self::has_all_slots,
            ),
            Property::always(
                "I3: recorded is what was consumed",
                |_, State { books, .. }: &State| {
                    (books.used, books.takes) == (books.recorded, books.recorded_takes)
                },
            ),
            Property::always("I3: every write has a higher v", |_, state: &State| {
                !state.table.has_reused_v
            }),
            Property::always(
                "I3: a shard says what was counted in its hour and day",
                |_, state: &State| !state.table.is_miscounted,
            ),
            Property::always(
                "I3: no take counts for an hour before its own",
                |_, state: &State| !state.is_belated,
            ),
            Property::always(
                "I4: a lease is its holder's until it expires",
                |model: &Self, state: &State| {
                    state
                        .clients
                        .iter()
                        .all(|client| model.is_held_for(state, client))
                },
            ),
            Property::always(
                "I4: in the end no lease is left",
                |model: &Self, state: &State| {
                    let mut steps = vec![];
                    let is_free = state
                        .table
                        .shards()
                        .all(|row| row.held() == MilliTokens::ZERO);
                    is_free || {
                        model.actions(state, &mut steps);
                        !steps.is_empty()
                    }
                },
            ),
            Property::always(
                "I7: a take that is repeated happens once",
                |_, state: &State| !state.is_repeated,
            ),
            Property::always(
                "I6: splits and merges keep the tokens",
                |_, state: &State| !state.is_uneven,
            ),
        ]
    }
}

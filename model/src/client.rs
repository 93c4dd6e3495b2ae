//! A client: its views, its open request, and its next steps. It does what
//! `client/src/queue/take.rs` and `client/src/queue/settle.rs` do, with one waiter.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{
    Action, Condition, Contention, LeaseChange, LimitDelta, Path, Roll, Settle, Take, Value,
};
use weirgate_shared::{EpochMillis, Hour, Lease, MilliTokens, WriteId, attr};

use crate::guard::Kind;
use crate::protocol::{Fate, Protocol};
use crate::reached::Event;
use crate::state::{Sent, State};
use crate::table::Row;

/// One client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// It has crashed.
    pub is_gone: bool,
    /// Requests it may still make.
    pub left: u8,
    /// Last view of each shard.
    pub views: [Option<Arc<Row>>; 2],
    /// Grant that the client holds.
    pub grant: Option<Grant>,
    /// Request that the client waits for.
    pub doing: Option<Doing>,
}

/// A lease, as its holder has recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Where it is.
    pub shard: usize,
    /// Its id.
    pub id: WriteId,
    /// Amount of the lease.
    pub amount: MilliTokens,
    /// Expiry of the lease.
    pub expires: EpochMillis,
    /// The shard's share of the limit when it was taken.
    ceiling: MilliTokens,
    /// It was made to last longer.
    pub is_renewed: bool,
}

/// A client's next request to the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wish {
    /// So many tokens.
    Take(MilliTokens),
    /// To end its lease.
    Release,
    /// Rolls back the unused tokens.
    RollBack,
    /// Renews its lease.
    Renew,
}

/// A request of a client, until it is decided.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Doing {
    wish: Wish,
    shard: usize,
    /// When the write under way was planned; none is while the last one's outcome is unknown.
    pub sent: Option<i64>,
    /// Writes so far, and how many of them were made before the present round.
    pub writes: u8,
    round: u8,
    /// When the lease of this round begins.
    since: i64,
    creates: bool,
    /// Whether only the part that fits is returned.
    is_cut: bool,
}

impl Client {
    /// Returns whether a view shows a second shard.
    pub(crate) fn knows_of_two(&self) -> bool {
        self.views
            .iter()
            .flatten()
            .any(|row| row.bucket().shard_count > 1)
    }

    /// Returns the lease that no other process may have ended.
    pub(crate) fn relies_on(&self, now: EpochMillis) -> Option<&Grant> {
        self.grant
            .as_ref()
            .filter(|grant| grant.expires > now && !self.doing.as_ref().is_some_and(Doing::ends))
    }
}

impl Doing {
    const fn ends(&self) -> bool {
        matches!(self.wish, Wish::Release | Wish::RollBack)
    }

    /// Writes once more. After an unknown outcome the lease stays, and tells.
    pub(crate) fn write(&mut self, now: i64) {
        self.writes += 1;
        self.sent = Some(now);
    }

    /// Begins another round: the writes before it have not happened, or count as taken.
    fn begin(&mut self, now: i64) {
        (self.round, self.since, self.creates) = (self.writes, now, false);
        self.write(now);
    }
}

impl Protocol {
    /// The client begins.
    pub(crate) fn wish(&self, state: &mut State, who: usize, shard: usize, wish: Wish) {
        let client = &mut state.clients[who];
        if matches!(wish, Wish::Take(_)) {
            client.left -= 1;
        }
        let sent = Some(state.now);
        let (writes, round, since) = (1, 0, state.now);
        let (creates, is_cut) = (false, false);
        client.doing = Some(Doing {
            wish,
            shard,
            sent,
            writes,
            round,
            since,
            creates,
            is_cut,
        });
    }

    /// The client leaves it at that. Once it has given up a release, it has no lease any more.
    pub(crate) fn give_up(&self, state: &mut State, who: usize) {
        let client = &mut state.clients[who];
        if client.doing.take().is_some_and(|doing| doing.ends()) {
            client.grant = None;
        }
    }

    fn id(&self, state: &State, who: usize, part: u8) -> WriteId {
        let client = &state.clients[who];
        let (who, left) = (
            u64::try_from(who).unwrap_or_default(),
            u64::from(client.left),
        );
        WriteId::from_bits((who + 1) * 10_000 + left * 100 + u64::from(part))
    }

    /// The write that the client has under way.
    pub(crate) fn sent(&self, state: &State, who: usize) -> Sent {
        let client = &state.clients[who];
        let doing = client.doing.as_ref().expect("a write is under way");
        let clock = self.at(doing.sent.expect("a write is under way"));
        let key = &self.keys[doing.shard];
        let name = self.bounds.limit.name();
        let view = client.views[doing.shard].as_ref().map(|row| row.bucket());
        // The second client takes for granted that the first one rolls, until it learns better.
        let roll = Roll {
            hour: Hour::of(clock),
            by_others: who == 1 && doing.writes == 1,
        };
        if let Wish::Take(need) = doing.wish {
            let ops: Vec<_> = (doing.round..doing.writes)
                .map(|part| self.id(state, who, part + 1))
                .collect();
            let brings = self.bounds.brings.as_ref().filter(|_| who == 1);
            let terms: Vec<_> = std::iter::once(&self.bounds.limit)
                .chain(brings)
                .cloned()
                .collect();
            let needs: BTreeMap<_, _> = terms
                .iter()
                .map(|limit| (limit.name().clone(), need))
                .collect();
            let lease = self.lease(state, who, doing).map(|(id, expires)| {
                (
                    id,
                    Lease {
                        expires_at: expires,
                        tokens: needs.clone(),
                        owner: String::new(),
                    },
                )
            });
            let take = Take {
                key,
                limits: terms.as_slice().into(),
                amounts: needs,
                soft_amounts: BTreeMap::new(),
                acquires: 1,
                leases: lease.into_iter().collect(),
                roll,
                write_id: self.id(state, who, doing.writes),
                request_split: false,
                contention: Contention::Alone,
                unconfirmed: &ops,
            };
            let (kind, update) = if doing.creates {
                (Kind::Create, take.create(clock))
            } else {
                (Kind::Take, take.plan(view, clock))
            };
            return Sent {
                kind,
                actions: vec![Action::Update(update)],
                clock,
                admitted: need,
                ops,
            };
        }
        let grant = client.grant.as_ref().expect("it has a lease");
        let is_slots = self.bounds.limit.rule().is_concurrent();
        let (kind, change, settled) = match doing.wish {
            Wish::Renew => (
                Kind::Renew,
                LeaseChange::Renew(grant.expires.plus(self.bounds.tick)),
                None,
            ),
            _ if is_slots => (
                Kind::Release,
                LeaseChange::End,
                Some(LimitDelta {
                    available: grant.amount,
                    ..LimitDelta::default()
                }),
            ),
            Wish::RollBack => {
                let (tk, tc, ceiling) = (grant.amount, -grant.amount, Some(grant.ceiling));
                (
                    Kind::RollBack,
                    LeaseChange::End,
                    Some(LimitDelta {
                        available: tk,
                        consumed: tc,
                        ceiling,
                    }),
                )
            }
            _ => (Kind::Release, LeaseChange::End, None),
        };
        let amounts = settled
            .map(|settled| (name.clone(), settled))
            .into_iter()
            .collect();
        // Ending a lease returns its tokens, so it must contain what its holder has recorded.
        let held = BTreeMap::from([(name.to_string(), Value::Int(grant.amount.0))]);
        let held = Condition::Equals(
            Path::lease(&grant.id).then(attr::LEASE_TOKENS),
            Value::Map(held),
        );
        let held = (change == LeaseChange::End).then_some(held);
        let op = self.id(state, who, 90);
        let settle = Settle {
            key,
            write_id: op,
            lease: Some((&grant.id, change)),
            amounts,
            acquires: 0,
            roll,
        };
        let mut update = match view.filter(|_| doing.is_cut) {
            Some(view) => settle.capped(view),
            None => settle.full(view),
        };
        update.conditions.extend(held);
        Sent::of(kind, vec![Action::Update(update)], clock)
    }

    fn lease(&self, state: &State, who: usize, doing: &Doing) -> Option<(WriteId, EpochMillis)> {
        let lasts = self.bounds.lease?;
        Some((
            self.id(state, who, 50 + doing.round),
            self.at(doing.since + lasts),
        ))
    }

    /// The client's write arrives, or what else becomes of it.
    pub(crate) fn arrive(&self, state: &mut State, who: usize, fate: Fate) {
        let sent = self.sent(state, who);
        let arrives = matches!(fate, Fate::Answered | Fate::Doubled | Fate::AnswerLost);
        let applied = arrives && self.write(state, &sent);
        if matches!(fate, Fate::Doubled | Fate::Late) {
            state.late = Some(Arc::new(sent));
        }
        if matches!(fate, Fate::Answered | Fate::Doubled) {
            self.hears(state, who, applied);
        } else {
            state.clients[who]
                .doing
                .as_mut()
                .expect("a write was under way")
                .sent = None;
        }
    }

    /// The answer, which shows the item.
    fn hears(&self, state: &mut State, who: usize, applied: bool) {
        let mut doing = state.clients[who]
            .doing
            .take()
            .expect("a write was under way");
        let row = state.table.rows()[doing.shard].cloned();
        state.clients[who].views[doing.shard].clone_from(&row);
        state.clients[who].doing = match doing.wish {
            Wish::Take(need) => self.hears_of_take(state, who, doing, need, row, applied),
            wish => {
                let grant = state.clients[who].grant.as_mut().expect("it has a lease");
                let is_held = row.is_some_and(|row| {
                    row.bucket()
                        .leases
                        .iter()
                        .flatten()
                        .any(|(id, _)| *id == grant.id)
                });
                if wish == Wish::Renew && is_held && applied {
                    grant.expires = grant.expires.plus(self.bounds.tick);
                    grant.is_renewed = true;
                } else if is_held && !applied && doing.writes < self.bounds.attempts {
                    doing.is_cut = true;
                    doing.write(state.now);
                    state.clients[who].doing = Some(doing);
                    return;
                } else if !is_held || doing.ends() {
                    state.clients[who].grant = None;
                }
                None
            }
        };
    }

    fn hears_of_take(
        &self,
        state: &mut State,
        who: usize,
        mut doing: Doing,
        need: MilliTokens,
        row: Option<Arc<Row>>,
        applied: bool,
    ) -> Option<Doing> {
        // A lease that begins now must end while the clock still runs.
        let ends = state.now + self.bounds.lease.unwrap_or_default();
        let may_try = doing.writes < self.bounds.attempts && ends <= self.bounds.ticks;
        let Some(row) = row else {
            let is_elsewhere = doing.shard > 0 || state.clients[who].knows_of_two();
            self.reached.note(Event::Missing);
            if is_elsewhere {
                // It has become part of the one it was split off, or is seen there.
                doing.shard = 1 - doing.shard;
                doing.begin(state.now);
            } else {
                doing.creates = true;
                doing.write(state.now);
            }
            return may_try.then_some(doing);
        };
        let by_id = (doing.round..doing.writes)
            .any(|part| row.bucket().last_write_id == Some(self.id(state, who, part + 1)));
        let lease = self.lease(state, who, &doing);
        let is_held = |(id, _): &(WriteId, EpochMillis)| {
            row.bucket()
                .leases
                .iter()
                .flatten()
                .any(|(other, _)| other == id)
        };
        let by_lease = lease.as_ref().is_some_and(is_held);
        if applied || by_id || by_lease {
            if !applied {
                self.reached.note(if by_id {
                    Event::FoundById
                } else {
                    Event::FoundLease
                });
            }
            let ceiling = row.bucket().share(row.limit());
            let grant = |(id, expires)| Grant {
                shard: doing.shard,
                id,
                amount: need,
                expires,
                ceiling,
                is_renewed: false,
            };
            state.clients[who].grant = lease.map(grant);
            return None;
        }
        // Unconfirmed tokens count as taken. A new round requests what is available, if that is
        // enough.
        let terms = std::slice::from_ref(&self.bounds.limit);
        let there = row.bucket().projected(terms, self.at(state.now)).limits;
        if !may_try || there.values().any(|state| state.available < need) {
            return None;
        }
        doing.begin(state.now);
        Some(doing)
    }
}

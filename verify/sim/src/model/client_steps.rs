//! Steps of a client, from one response to the next. It does what `client/src/queue/machine/take.rs` and
//! `client/src/queue/part.rs` do, with one waiter.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{
    Action, Condition, LeaseChange, LimitDelta, Path, Roll, Settle, Take, Value,
};
use weirgate_shared::{
    Asks, Calendar, Effect, EpochMillis, Hour, Lease, Limit, MilliTokens, VersionedLimits, WriteId,
    attr,
};

use crate::model::client::{Grant, OpenRequest, RequestKind};
use crate::model::coverage::Event;
use crate::model::guard::Kind;
use crate::model::protocol::Protocol;
use crate::model::state::{Sent, State};
use crate::model::step::Fate;
use crate::model::table::Row;

/// Windows of so many ms since 1970.
const CALENDAR: Calendar = Calendar::new(|code, now| {
    let length = code.0.unsigned_abs().cast_signed() & 0xffff_ffff;
    Some(EpochMillis(now.0 - now.0.rem_euclid(length) + length))
});

fn limits_of(limits: &[Limit]) -> VersionedLimits<'_> {
    VersionedLimits { calendar: CALENDAR, ..limits.into() }
}

impl Protocol {
    /// The client begins.
    pub(crate) fn begin(&self, state: &mut State, index: usize, shard: usize, kind: RequestKind) {
        let client = &mut state.clients[index];
        if matches!(kind, RequestKind::Take(_)) {
            client.left -= 1;
        }
        let sent = Some(state.now);
        let (writes, round, since) = (1, 0, state.now);
        let is_cut = false;
        client.open = Some(OpenRequest { kind, shard, sent, writes, round, since, is_cut });
        Self::look(state, index);
    }

    /// Reads the shard of a take that the client has not seen. It may only create shard 0.
    fn look(state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        let Some(open) =
            client.open.as_mut().filter(|open| matches!(open.kind, RequestKind::Take(_)))
        else {
            return;
        };
        for shard in [open.shard, 0] {
            if client.views[open.shard].is_none() {
                open.shard = shard;
                client.views[shard] = state.table.rows()[shard].cloned();
            }
        }
    }

    /// The client leaves it at that. Once it has given up a release, it has no lease any more.
    pub(crate) fn give_up(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        if client.open.take().is_some_and(|open| open.ends()) {
            client.grant = None;
        }
    }

    fn id(&self, state: &State, index: usize, part: u8) -> WriteId {
        let client = &state.clients[index];
        let (index, left) = (u64::try_from(index).unwrap_or_default(), u64::from(client.left));
        WriteId::from_bits((index + 1) * 10_000 + left * 100 + u64::from(part))
    }

    /// The limit as a client's release has it.
    fn limit_of(&self, index: usize) -> &Limit {
        let limit = &self.bounds.limit;
        let other = self.bounds.brings.as_ref().filter(|_| index == 1);
        let same = other.filter(|other| other.name() == limit.name());
        same.unwrap_or(limit)
    }

    /// The write that the client has under way.
    pub(crate) fn sent(&self, state: &State, index: usize) -> Sent {
        let client = &state.clients[index];
        let open = client.open.as_ref().expect("a write is under way");
        let clock = self.at(open.sent.expect("a write is under way"));
        let key = &self.keys[open.shard];
        let name = self.bounds.limit.name();
        let view = client.views[open.shard].as_ref().map(|row| row.bucket());
        // The second client takes for granted that the first one rolls, until it learns better.
        let roll = Roll { hour: Hour::of(clock), by_others: index == 1 && open.writes == 1 };
        if let RequestKind::Take(need) = open.kind {
            let ops: Vec<_> =
                (open.round..open.writes).map(|part| self.id(state, index, part + 1)).collect();
            let brings = self.bounds.brings.as_ref().filter(|_| index == 1);
            let own = self.limit_of(index);
            let more = brings.filter(|brings| brings.name() != name);
            let terms: Vec<_> = std::iter::once(own).chain(more).cloned().collect();
            let needs: BTreeMap<_, _> =
                terms.iter().map(|limit| (limit.name().clone(), need)).collect();
            let lease = self.lease(state, index, open).map(|(id, expires)| {
                (id, Lease { expires_at: expires, tokens: needs.clone(), ..Lease::default() })
            });
            let take = Take {
                asks: Asks::of(Effect::Enforce, needs),
                acquires: 1,
                leases: lease.into_iter().collect(),
                roll,
                unconfirmed: &ops,
                windows_begun: roll.by_others,
                ..Take::nothing(key, limits_of(&terms), self.id(state, index, open.writes), clock)
            };
            let (kind, update) = match view {
                Some(view) => (Kind::Take, take.plan(view, clock)),
                None => (Kind::Create, take.create(clock)),
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
        let limit = self.limit_of(index).rule().kind();
        let is_held = limit.is_held();
        let (kind, change, settled) = match open.kind {
            RequestKind::Renew => {
                (Kind::Renew, LeaseChange::Renew(grant.expires.plus(self.bounds.tick)), None)
            }
            _ if is_held => (
                Kind::Release,
                LeaseChange::End,
                Some(LimitDelta { available: grant.amount, ..LimitDelta::default() }),
            ),
            RequestKind::RollBack => {
                let (tk, tc) = (grant.amount, -grant.amount);
                let window = grant.window.filter(|_| limit.has_window());
                let ceiling = window.is_none().then_some(grant.ceiling);
                (
                    Kind::RollBack,
                    LeaseChange::End,
                    Some(LimitDelta { available: tk, consumed: tc, ceiling, window }),
                )
            }
            _ => (Kind::Release, LeaseChange::End, None),
        };
        let amounts = settled.map(|settled| (name.clone(), settled)).into_iter().collect();
        // Ending a lease returns its tokens, so it must contain what its holder has recorded.
        let held = BTreeMap::from([(name.to_string(), Value::Int(grant.amount.0))]);
        let held =
            Condition::Equals(Path::lease(&grant.id).then(attr::LEASE_TOKENS), Value::Map(held));
        let held = (change == LeaseChange::End).then_some(held);
        let op = self.id(state, index, 90);
        let settle = Settle {
            key,
            write_id: op,
            lease: Some((&grant.id, change)),
            amounts,
            acquires: 0,
            roll,
        };
        let mut update = match view.filter(|_| open.is_cut) {
            Some(view) => settle.capped(view),
            None => settle.full(view),
        };
        update.conditions.extend(held);
        Sent::of(kind, vec![Action::Update(update)], clock)
    }

    fn lease(
        &self,
        state: &State,
        index: usize,
        open: &OpenRequest,
    ) -> Option<(WriteId, EpochMillis)> {
        let lasts = self.bounds.lease?;
        Some((self.id(state, index, 50 + open.round), self.at(open.since + lasts)))
    }

    /// The client's write arrives, or what else becomes of it.
    pub(crate) fn arrive(&self, state: &mut State, index: usize, fate: Fate) {
        let sent = self.sent(state, index);
        let arrives = matches!(fate, Fate::Answered | Fate::Doubled | Fate::AnswerLost);
        let applied = arrives && self.write(state, &sent);
        if matches!(fate, Fate::Doubled | Fate::Late) {
            state.late = Some(Arc::new(sent));
        }
        if matches!(fate, Fate::Answered | Fate::Doubled) {
            self.receive(state, index, applied);
        } else {
            state.clients[index].open.as_mut().expect("a write was under way").sent = None;
        }
    }

    /// The answer, which shows the item.
    fn receive(&self, state: &mut State, index: usize, applied: bool) {
        let mut open = state.clients[index].open.take().expect("a write was under way");
        let row = state.table.rows()[open.shard].cloned();
        state.clients[index].views[open.shard].clone_from(&row);
        state.clients[index].open = match open.kind {
            RequestKind::Take(need) => self.receive_take(state, index, open, need, row, applied),
            kind => {
                let grant = state.clients[index].grant.as_mut().expect("it has a lease");
                let is_held = row.is_some_and(|row| {
                    row.bucket().leases.iter().flatten().any(|(id, _)| *id == grant.id)
                });
                if kind == RequestKind::Renew && is_held && applied {
                    grant.expires = grant.expires.plus(self.bounds.tick);
                    grant.is_renewed = true;
                } else if is_held && !applied && open.writes < self.bounds.attempts {
                    open.is_cut = true;
                    open.write(state.now);
                    state.clients[index].open = Some(open);
                    return;
                } else if !is_held || open.ends() {
                    state.clients[index].grant = None;
                }
                None
            }
        };
        Self::look(state, index);
    }

    fn receive_take(
        &self,
        state: &mut State,
        index: usize,
        mut open: OpenRequest,
        need: MilliTokens,
        row: Option<Arc<Row>>,
        applied: bool,
    ) -> Option<OpenRequest> {
        // A lease that begins now must end while the clock still runs.
        let ends = state.now + self.bounds.lease.unwrap_or_default();
        let may_try = open.writes < self.bounds.attempts && ends <= self.bounds.ticks;
        let Some(row) = row else {
            let is_elsewhere = open.shard > 0 || state.clients[index].knows_of_two();
            self.coverage.note(Event::Missing);
            if is_elsewhere {
                // It has become part of the one it was split off, or is seen there.
                open.shard = 1 - open.shard;
                open.begin(state.now);
            } else {
                open.write(state.now);
            }
            return may_try.then_some(open);
        };
        let by_id = (open.round..open.writes)
            .any(|part| row.bucket().last_write_id == Some(self.id(state, index, part + 1)));
        let lease = self.lease(state, index, &open);
        let is_held = |(id, _): &(WriteId, EpochMillis)| {
            row.bucket().leases.iter().flatten().any(|(other, _)| other == id)
        };
        let by_lease = lease.as_ref().is_some_and(is_held);
        if applied || by_id || by_lease {
            if !applied {
                self.coverage.note(if by_id { Event::FoundById } else { Event::FoundLease });
            }
            let ceiling = row.bucket().share(row.limit());
            // By the shard, if no other take came since, otherwise by the lease.
            let leases = row.bucket().leases.iter().flatten();
            let mut held = leases.filter(|(id, _)| lease.as_ref().is_some_and(|own| own.0 == **id));
            let window = match applied || by_id {
                true => Some(row.limit().window_end),
                false => held.find_map(|(_, lease)| lease.windows.values().next().copied()),
            };
            let grant = |(id, expires)| Grant {
                shard: open.shard,
                id,
                amount: need,
                expires,
                ceiling,
                window,
                is_renewed: false,
                is_lost: false,
            };
            state.clients[index].grant = lease.map(grant);
            return None;
        }
        // Unconfirmed tokens count as taken. A new round requests what is available, if that is
        // enough.
        let terms = limits_of(std::slice::from_ref(&self.bounds.limit));
        let there = row.bucket().projected(terms, self.at(state.now)).limits;
        if !may_try || there.values().any(|state| state.available < need) {
            return None;
        }
        open.begin(state.now);
        Some(open)
    }
}

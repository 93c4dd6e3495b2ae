//! The effect of a write on a state.

use std::sync::Arc;

use weirgate_shared::write::{Action, AttributeUpdate, Condition};
use weirgate_shared::{EpochMillis, Hour, Lease, Limit, MilliTokens, Shard, WriteId, attr};

use crate::model::coverage::Event;
use crate::model::function_steps::is_edit;
use crate::model::guard::{self, Kind};
use crate::model::protocol::Protocol;
use crate::model::state::{Sent, State};
use crate::model::table::{Row, Table, counted};

impl Protocol {
    /// Applies a request that arrives. Returns whether its conditions held.
    pub(crate) fn write(&self, state: &mut State, sent: &Sent) -> bool {
        let Sent { kind, clock, admitted, .. } = *sent;
        let mut actions = sent.actions.clone();
        guard::strip(&mut actions, kind, self.bounds.without);
        let before = state.table.clone();
        let is_applied = state.table.transact(&actions);
        self.note(kind, &actions, is_applied);
        if !is_applied {
            return false;
        }
        let counts = matches!(kind, Kind::Take | Kind::Create | Kind::RollBack);
        let items = before.items.iter().zip(&state.table.items).enumerate();
        for (shard, (was, is)) in items.filter(|(_, (was, is))| was != is) {
            if let Some(Row { meter, .. }) = is.as_deref().filter(|row| !row.is_erased()) {
                let counted = counted(was.as_ref().map(|row| &row.meter), meter);
                state.ledger.recorded += counted.tokens[self.bounds.limit.name()].0;
                state.ledger.recorded_takes += counted.acquires;
                state.is_belated |= counts && meter.hour < Hour::of(clock);
            }
            if self.bounds.keeps_stream {
                state.stream.push((shard, is.clone()));
            }
        }
        let gone = gone(&before, &state.table);
        if matches!(kind, Kind::Delete | Kind::Erase) {
            self.lose(state, kind);
        } else if kind == Kind::Create {
            // What a deleted item had is gone.
            state.ledger.restart();
        }
        // The kind of the item's limit, which another client may have made.
        let known = before.shards().chain(state.table.shards()).next();
        let gives_back = known.is_some_and(|row| !row.limit().rule.kind().is_held());
        // A rate that is released was used; a slot has counted when it was taken.
        let unused = if gives_back && !matches!(kind, Kind::Release | Kind::Delete | Kind::Erase) {
            gone
        } else {
            MilliTokens::ZERO
        };
        state.ledger.used += admitted.0 - unused.0;
        state.ledger.takes += i64::from(matches!(kind, Kind::Take | Kind::Create));
        if self.bounds.limit.rule().kind().refills() {
            let tk = |table: &Table| {
                table.shards().map(|row| row.limit().available).sum::<MilliTokens>()
            };
            let back = if kind == Kind::RollBack { tk(&state.table) - tk(&before) } else { unused };
            state.ledger.enter(clock, admitted, back);
        }
        if self.bounds.limit.rule().kind().has_window() {
            self.enter_windows(state, sent, &before);
        }
        if is_edit(kind) {
            self.enter_edit(state, sent, &before);
        }
        let last = before.shards().filter_map(|row| row.bucket().last_write_id.as_ref());
        state.is_repeated |= last.into_iter().any(|op| sent.ops.contains(op));
        let moves = matches!(kind, Kind::Split | Kind::Make | Kind::Clear | Kind::Merge);
        state.is_uneven |= moves && !self.is_even(&before, &state.table);
        if kind == Kind::Take && gone > MilliTokens::ZERO {
            self.coverage.note(Event::Reclaimed);
        }
        if kind == Kind::Make && before.items[1].is_some() {
            self.coverage.note(Event::Revived);
        }
        true
    }

    /// Ends the leases of a deleted or erased item. Its holders do not know. A deleted one is created
    /// again by a later clock.
    fn lose(&self, state: &mut State, kind: Kind) {
        for grant in state.clients.iter_mut().filter_map(|client| client.grant.as_mut()) {
            grant.is_lost = state.table.rows()[grant.shard].is_none();
        }
        if kind == Kind::Delete && !self.bounds.keeps_stream {
            state.now += 1;
            let open = state.clients.iter_mut().filter_map(|client| client.open.as_mut());
            open.for_each(|open| open.sent = open.sent.map(|_| state.now));
        }
    }

    /// Enters the takes and returns of a write in the windows of its items, and checks that a balance
    /// grew only by what came back into the window that it was taken from.
    fn enter_windows(&self, state: &mut State, sent: &Sent, before: &Table) {
        let moves = matches!(sent.kind, Kind::Split | Kind::Make | Kind::Clear | Kind::Merge);
        let takes = matches!(sent.kind, Kind::Take | Kind::Create);
        let taken = if takes { sent.admitted } else { MilliTokens::ZERO };
        let rows = before.items.iter().zip(state.table.items.clone());
        let rows: Vec<_> = rows.filter(|(was, is)| **was != *is).collect();
        let live = |row: &Option<Arc<Row>>| row.clone().filter(|row| !row.is_merged());
        let Some(first) = rows.iter().find_map(|(_, is)| live(is)) else {
            return;
        };
        for (was, is) in rows {
            let was = live(was);
            // A shard that is merged away leaves its tokens to the first one.
            let row = live(&is).unwrap_or_else(|| Arc::clone(&first));
            let new = row.limit();
            let held = |row: &Option<Arc<Row>>| {
                let leases = row.iter().flat_map(|row| row.bucket().leases.iter().flatten());
                let held = |(id, lease): (&WriteId, &Lease)| {
                    (id.clone(), lease.tokens.values().copied().sum::<MilliTokens>())
                };
                leases.map(held).collect::<Vec<_>>()
            };
            let (had, has) = (held(&was), held(&live(&is)));
            for (id, _) in has.iter().filter(|lease| !had.contains(lease)) {
                state.windows.entry(id.clone()).or_insert(new.window_end);
            }
            let gone = had.iter().filter(|lease| !has.contains(lease));
            let is_of_this = |id: &WriteId| state.windows.get(id) == Some(&new.window_end);
            let (same, other): (Vec<_>, Vec<_>) = gone.partition(|(id, _)| is_of_this(id));
            let is_returned = sent.kind != Kind::Release;
            let ended: Vec<_> = had.iter().filter(|lease| !has.contains(lease)).collect();
            let back: MilliTokens = same.iter().map(|(_, amount)| *amount).sum();
            let back = if is_returned { back } else { MilliTokens::ZERO };
            if is_returned && !other.is_empty() {
                self.coverage.note(Event::ReturnedToNoWindow);
            }
            let begins = was.as_ref().map(|was| was.limit().window_end) != Some(new.window_end);
            let most = match &was {
                Some(was) if !begins => was.limit().available + back,
                _ => row.bucket().share(new),
            };
            state.is_misreturned |= !moves && new.available > most - taken;
            state.is_of_ended |= takes && new.window_end <= sent.clock;
            if takes && begins && was.is_some() {
                self.coverage.note(Event::Begun);
            }
            if sent.kind == Kind::Merge && begins {
                self.coverage.note(Event::MergedBehind);
            }
            *state.ledger.windows.entry(new.window_end).or_default() += (taken - back).0;
            for (id, _) in ended {
                state.windows.remove(id);
            }
        }
    }

    /// Enters an operator's change in the ledger, and checks what it left.
    fn enter_edit(&self, state: &mut State, sent: &Sent, before: &Table) {
        let limit = &self.bounds.limit;
        let Some(first) = state.table.rows()[0] else {
            return;
        };
        let at = first.bucket().refilled_at;
        let added = sum(limit, &state.table, at) - sum(limit, before, at);
        state.ledger.edited += added.0;
        state.ledger.enter(at, MilliTokens::ZERO, added);
        let more = MilliTokens::from_tokens(self.bounds.needs[0]);
        let mut left = state.table.shards().map(|row| (row.bucket(), row.limit()));
        let is_as_asked = match sent.kind {
            // What was taken since the operator's read stays debited.
            Kind::Reset => {
                added >= MilliTokens::ZERO
                    && left.all(|(shard, state)| state.available <= shard.share(state))
            }
            _ => (MilliTokens::ZERO..=more).contains(&added),
        };
        let is_first = !state.edits.iter().any(|edit| **edit == *sent);
        state.is_misedited |= !is_as_asked || !is_first;
        state.edits.push(Arc::new(sent.clone()));
    }

    /// I6: what there is at the instant of each write of a split or a merge, free, held or put
    /// aside, is what there was.
    fn is_even(&self, before: &Table, after: &Table) -> bool {
        let (Some(_), Some(is)) = (before.rows()[0], after.rows()[0]) else {
            return true;
        };
        let (at, limit) = (is.bucket().refilled_at, &self.bounds.limit);
        sum(limit, before, at) == sum(limit, after, at)
    }

    /// Notes what a write has done, or would have done.
    fn note(&self, kind: Kind, actions: &[Action], is_applied: bool) {
        self.coverage.note(if is_applied { Event::Done(kind) } else { Event::Lost(kind) });
        if is_applied && actions.iter().any(guard::rolls) {
            self.coverage.note(Event::Done(Kind::Roll));
        }
        if is_applied && kind == Kind::Take {
            self.coverage.note(kind_of_take(actions));
        }
    }
}

fn kind_of_take(actions: &[Action]) -> Event {
    let [Action::Update(update)] = actions else {
        return Event::Plain;
    };
    let is_set = |change: &AttributeUpdate| matches!(change, AttributeUpdate::Set(path, _) if path.0[0].ends_with("_tk"));
    let is_plain = |condition: &Condition| matches!(condition, Condition::Present(path) if path.0[0] == attr::REFILLED_AT);
    match (update.changes.iter().any(is_set), update.conditions.iter().any(is_plain)) {
        (true, _) => Event::Full,
        (false, false) => Event::Credit,
        (false, true) => Event::Plain,
    }
}

/// Returns the tokens of the leases that are gone.
fn gone(before: &Table, after: &Table) -> MilliTokens {
    let is_there = |id: &WriteId| {
        after.shards().any(|row| row.bucket().leases.iter().flatten().any(|(other, _)| other == id))
    };
    let leases = before.shards().flat_map(|row| row.bucket().leases.iter().flatten());
    leases
        .filter(|(id, _)| !is_there(id))
        .flat_map(|(_, lease)| lease.tokens.values())
        .copied()
        .sum()
}

/// What shards have of the limit at `at`, with what their leases hold: of rates, those that last.
fn sum(limit: &Limit, table: &Table, at: EpochMillis) -> MilliTokens {
    let of = |bucket: &Shard| {
        let lasting = bucket.leases.iter().flatten().filter(|(_, lease)| lease.expires_at > at);
        let held: MilliTokens = lasting.flat_map(|(_, lease)| lease.tokens.values()).copied().sum();
        bucket.balance_at(limit.name(), at) + held
    };
    table.buckets().into_iter().map(of).sum()
}

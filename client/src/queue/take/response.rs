//! What follows from the response to a take.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::{EpochMillis, Lease, Shard, WriteId};
use weirgate_store::Item;

use super::super::clock_jump;
use super::super::contention::{ContentionBackoff, FRESH_VIEW};
use super::super::part::{Ending, HoldPart};
use super::super::taken::Taken;
use super::super::waiter::ShardDecision;
use super::{TakeAttempt, TakeOutcome, Unconfirmed};
use crate::session::decode_shard;
use crate::values::{Error, count, debited};

impl TakeAttempt<'_> {
    /// Grants all waiters after an applied write.
    pub(super) async fn applied(self, item: Option<Item>, now: EpochMillis) -> TakeOutcome {
        self.state.with_backoff(ContentionBackoff::won_race);
        let shard = match item.as_ref().map(decode_shard) {
            Some(Ok(shard)) => shard,
            Some(Err(error)) => return self.fail(error),
            None => unreachable!("the answer was asked for"),
        };
        self.count_unconfirmed_tokens(0, Some(shard.write_seq - 1));
        if let Some(seen) = &self.seen {
            self.record_others(shard.write_seq - seen.write_seq - 1);
        }
        self.grant(shard, now).await
    }

    /// Grants all waiters if `item` shows that an earlier write was applied; otherwise returns
    /// them.
    pub(super) async fn condition_failed(self, item: &Item, now: EpochMillis) -> TakeOutcome {
        let shard = match decode_shard(item) {
            Ok(shard) => shard,
            Err(error) => return self.fail(error),
        };
        if self.has_taken_from(&shard) {
            // One unconfirmed write is then known, unless the last write arrived twice.
            let known = i64::from(shard.last_write_id.as_ref() != self.write_ids.last());
            self.count_unconfirmed_tokens(known, Some(shard.write_seq - 1));
            return self.grant(shard, now).await;
        }
        // If the item equals the view, the state itself failed the condition, not a race.
        let changed = self.seen.as_deref().filter(|seen| **seen != shard);
        let was_race = changed.is_some() && !self.is_doubted;
        if let Some(seen) = changed {
            count(&self.session.counters.lost_races, 1);
            self.state.with_backoff(ContentionBackoff::lost_race);
            // At least one, also if the item was created again.
            self.record_others((shard.write_seq - seen.write_seq).max(1));
            if self.age >= FRESH_VIEW {
                let was_full = self.has_full_limit(&shard, now);
                self.state
                    .record_others(|others| others.record_failed_guess(was_full));
            }
        } else if self.seen.is_some() {
            self.record_others(0);
        }
        self.count_unconfirmed_tokens(0, Some(shard.write_seq));
        self.record_view(shard);
        if self.planned.clock_jumped(self.session) {
            // The clock may have been set after this request was sent; then its response has not
            // corrected the clock.
            self.state.clear_view();
        }
        match was_race {
            true => TakeOutcome::LostRace(self.waiters, now),
            false => TakeOutcome::Retry(self.waiters),
        }
    }

    /// Records how many writes of others came between the view and the response.
    fn record_others(&self, writes: i64) {
        let since_view = self.age + self.session.ages.now().since(self.sent.at);
        self.state
            .record_others(|others| others.record(writes, since_view));
    }

    /// Returns whether a limit that the batch takes of was full.
    fn has_full_limit(&self, shard: &Shard, now: EpochMillis) -> bool {
        let debits = self.asks.debits();
        debits
            .filter_map(|ask| shard.limits.get(&ask.limit))
            .any(|state| shard.is_full(state, now))
    }

    /// Records the shard of a response. An item with a lower write sequence than the view was
    /// created again.
    fn record_view(&self, shard: Shard) -> Arc<Shard> {
        if self
            .seen
            .as_ref()
            .is_some_and(|seen| seen.write_seq > shard.write_seq)
        {
            self.state.clear_view();
        }
        self.state.record_response(shard, self.sent)
    }

    /// Grants all waiters. A take for which a clock set ahead assumed tokens that were not there
    /// returns, and is tried again; what bypasses the limits stands.
    async fn grant(self, shard: Shard, at: EpochMillis) -> TakeOutcome {
        let shard = self.record_view(shard);
        let mut was_there = true;
        if let (Some(seen), true) = (
            &self.seen,
            self.is_doubted && self.planned.clock_was_fast(self.session),
        ) {
            was_there = clock_jump::restore_cut(
                self.session,
                self.state,
                (seen, &shard),
                &debited(&self.asks),
            )
            .await;
        }
        let mut again = vec![];
        for (waiter, lease) in self.waiters.into_iter().zip(self.leases) {
            let lease = lease.map(|(id, lease)| (id, lease.expires_at));
            let is_bypass = waiter.request.is_bypass();
            let (state, after) = (Arc::clone(self.state), Arc::clone(&shard));
            let part = HoldPart {
                state,
                amounts: waiter.amounts(),
                is_bypass,
                shard: after,
                prefetched_at: None,
                lease,
                is_in_doubt: false,
            };
            let taken = Taken::new(
                Arc::clone(self.session),
                part,
                waiter.request.limits.clone(),
                at,
                waiter.request.acquires,
            );
            if was_there || is_bypass {
                waiter.reply(Ok(ShardDecision::Granted(taken)));
            } else {
                if let Err(error) = taken.end(Ending::RollBack).await {
                    tracing::warn!(%error, "take by a clock set ahead not returned; it counts as used");
                }
                again.push(waiter);
            }
        }
        match again.is_empty() {
            true if self.is_doubted => TakeOutcome::Replied,
            true => TakeOutcome::Granted(at),
            false => TakeOutcome::Retry(again),
        }
    }

    /// Returns whether the shard shows that a write of this attempt was applied.
    fn has_taken_from(&self, shard: &Shard) -> bool {
        let is_ours = |op: &WriteId| self.write_ids.contains(op);
        let leases = shard.leases.as_ref();
        let holds = |(id, _): &(WriteId, Lease)| leases.is_some_and(|all| all.contains_key(id));
        shard.last_write_id.as_ref().is_some_and(is_ours) || self.leases.iter().flatten().any(holds)
    }

    /// Returns whether no waiter has time left, or the doubt lasts too long.
    pub(super) fn has_expired(&self) -> bool {
        let now = Instant::now();
        let is_over = |doubt: &Unconfirmed| now >= doubt.until;
        self.unconfirmed.as_ref().is_some_and(is_over)
            || !self.waiters.iter().any(|waiter| waiter.has_time(now))
    }

    /// Ends an attempt that has expired. If a read shows that an unconfirmed write was applied, its
    /// waiters are granted, so what it took for those that are gone returns. Otherwise it counts as
    /// taken, and waiters with time left are for another attempt.
    pub(super) async fn give_up(mut self) -> TakeOutcome {
        if let Some(shard) = self.look_up().await {
            self.count_unconfirmed_tokens(1, Some(shard.write_seq - 1));
            let planned = self.planned.now;
            return self.grant(shard, planned).await;
        }
        let now = Instant::now();
        let (left, gone): (Vec<_>, Vec<_>) = self
            .waiters
            .drain(..)
            .partition(|waiter| waiter.has_time(now));
        for waiter in gone {
            let last = self
                .unconfirmed
                .as_ref()
                .map(|doubt| Arc::clone(&doubt.error));
            let after = waiter.deadline - waiter.enqueued_at;
            waiter.reply(Err(Error::timeout(&self.state.key, after, last)));
        }
        self.count_unconfirmed_tokens(0, None);
        match left.is_empty() {
            true => TakeOutcome::Replied,
            false => TakeOutcome::Retry(left),
        }
    }

    /// Reads the shard if a write is unconfirmed. Returns it if a write of this attempt was applied.
    async fn look_up(&mut self) -> Option<Shard> {
        self.unconfirmed.as_ref()?;
        let (key, sent) = (self.state.key.item_key(), self.session.ages.sent());
        let found = self.session.look_up(&key).await;
        let shard = decode_shard(&found.ok()??).ok();
        let shard = shard.filter(|shard| self.has_taken_from(shard))?;
        self.sent = sent;
        Some(shard)
    }

    /// Returns the waiters for another shard, because this one is missing and may not be created.
    pub(super) fn shard_missing(self) -> TakeOutcome {
        self.state.mark_missing();
        self.count_unconfirmed_tokens(0, None);
        TakeOutcome::ShardMissing(self.waiters)
    }

    /// Fails all waiters. Unconfirmed writes stay unconfirmed, and their error takes precedence.
    pub(super) fn fail(self, error: Error) -> TakeOutcome {
        self.count_unconfirmed_tokens(0, None);
        let error = self
            .unconfirmed
            .as_ref()
            .map_or(error, |doubt| Error::Store(Arc::clone(&doubt.error)));
        for waiter in self.waiters {
            waiter.reply(Err(error.clone()));
        }
        TakeOutcome::Replied
    }
}

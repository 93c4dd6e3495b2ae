//! What follows from the response to a take.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::{EpochMillis, Lease, Shard, WriteId};
use weirgate_store::Item;

use super::super::contention::{ContentionBackoff, FRESH_VIEW};
use super::super::part::HoldPart;
use super::super::taken::Taken;
use super::super::waiter::{ShardDecision, Waiter};
use super::super::{clock_jump, retake};
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
        let ours = shard
            .last_write_id
            .as_ref()
            .and_then(|op| self.write_ids.iter().position(|known| known == op));
        let holds = |(id, _): &(WriteId, Lease)| {
            shard
                .leases
                .as_ref()
                .is_some_and(|leases| leases.contains_key(id))
        };
        if ours.is_some() || self.leases.iter().flatten().any(holds) {
            // One unconfirmed write is then known, unless the last write arrived twice.
            let known = i64::from(ours != Some(self.write_ids.len() - 1));
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

    /// Grants all waiters. A take that was planned too early is made again if it took overflow, or
    /// if it wrote leases, which would end too soon; otherwise it stands. What bypasses the limits
    /// stands in any case.
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
        if self.seen.is_none() && self.planned.clock_was_fast(self.session) {
            clock_jump::correct_creation(self.session, self.state, &shard).await;
        }
        let was_early = self.planned.clock_was_slow(self.session);
        let spilled = was_early && retake::took_overflow(&self.asks, &shard, self.session.now());
        let mut again = vec![];
        for (waiter, lease) in self.waiters.into_iter().zip(self.leases) {
            let lease = lease.map(|(id, lease)| (id, lease.expires_at));
            let is_bypass = waiter.request.is_bypass();
            let is_good = is_bypass || was_there && (!was_early || !spilled && lease.is_none());
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
            if is_good {
                waiter.reply(Ok(ShardDecision::Granted(taken)));
            } else {
                let asks = &waiter.request.asks;
                retake::undo_take(self.session, taken, asks, &shard, spilled).await;
                again.push(waiter);
            }
        }
        match again.is_empty() {
            true if self.is_doubted || was_early => TakeOutcome::Replied,
            true => TakeOutcome::Granted(at),
            false => TakeOutcome::Retry(again),
        }
    }

    /// Ends an attempt in which no waiter has time left, or whose doubt lasts too long: waiters with
    /// time left are for another attempt. What the unconfirmed writes took counts as taken.
    pub(super) fn expired(&mut self) -> Option<TakeOutcome> {
        let now = Instant::now();
        let has_time = |waiter: &Waiter| now < waiter.deadline && !waiter.reply.is_closed();
        let is_over = |doubt: &Unconfirmed| now >= doubt.until;
        let is_over = self.unconfirmed.as_ref().is_some_and(is_over);
        if !is_over && self.waiters.iter().any(has_time) {
            return None;
        }
        let (left, gone): (Vec<_>, Vec<_>) = self.waiters.drain(..).partition(has_time);
        for waiter in gone {
            let last = self
                .unconfirmed
                .as_ref()
                .map(|doubt| Arc::clone(&doubt.error));
            let after = waiter.deadline - waiter.enqueued_at;
            waiter.reply(Err(Error::timeout(&self.state.key, after, last)));
        }
        self.count_unconfirmed_tokens(0, None);
        Some(match left.is_empty() {
            true => TakeOutcome::Replied,
            false => TakeOutcome::Retry(left),
        })
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

//! Reads of the shard: before the first write, and while the shard is short.
//!
//! A failed write costs two to ten times as much as a read, and a partition takes a thousand writes a
//! second. An eventually consistent read is enough before a write, because every write is
//! conditional.

use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::Shard;
use weirgate_store::Consistency;

use super::{Asked, Command, Known, Look, Machine, Next, is_key_range_throttle};
use crate::queue::waiter::Reason;
use crate::session::{Env, MAX_JUMPED_READS, Sent, backoff};
use crate::values::{Denied, Error, LimitStatus, count};

/// Time in which a view of a throttled shard counts as fresh, 1 s.
const THROTTLED_VIEW_TTL: Duration = Duration::from_secs(1);

impl Machine {
    pub(super) fn known(&self) -> Known {
        Known {
            view: self.shard.view().map(|view| view.shard),
            was_only: self.shard.summary.max_shards_seen() == 1,
        }
    }

    /// Returns whether the shard was split since. Other shards then hold some of its tokens.
    fn was_split(&self, known: &Known) -> bool {
        let views = known.view.as_ref().zip(self.shard.view());
        views.is_some_and(|(known, now)| known.shard().count < now.shard.shard().count)
    }

    pub(super) fn ask_read(&mut self, env: &Env, look: Look) -> Command {
        let command = match &look {
            Look::First(_) | Look::InDoubt => Command::Read(Consistency::Eventual),
            Look::Short(_, consistency) => Command::Read(*consistency),
            Look::Outcome => Command::LookUp,
        };
        // Reading the clock notices a jump.
        let _ = env.now();
        self.note_request(env, Asked::Read(look));
        command
    }

    /// Returns the read of a shard that is short, or that DynamoDB throttles. It is strongly consistent
    /// for slots; for rates, a balance may be half a second old.
    pub(super) fn recheck(&mut self, env: &Env, is_strong: bool) -> Option<Command> {
        let (known, first) = (self.known(), self.line.front()?);
        let seen = known.view.as_ref();
        let short = seen.and_then(|shard| first.shortage(shard, env.now()));
        let mut short = short.iter().flat_map(Denied::short);
        let lacks_slots = short.any(LimitStatus::may_return);
        let consistency = match is_strong || lacks_slots {
            true => Consistency::Strong,
            false => Consistency::Eventual,
        };
        Some(self.ask_read(env, Look::Short(known, consistency)))
    }

    /// Takes the response to a read.
    pub(crate) fn read_done(&mut self, env: &Env, shard: Result<Option<Shard>, Error>) {
        let Some((Asked::Read(look), sent, _)) = self.asked.take() else {
            return;
        };
        if !matches!(look, Look::Outcome) {
            self.shard.record_outcome(&shard);
        }
        let _ = env.now();
        let is_repeatable = matches!(look, Look::First(_) | Look::InDoubt);
        if is_repeatable
            && shard.is_ok()
            && sent.jumps != env.ages.jumps()
            && self.reads < MAX_JUMPED_READS
        {
            // The response would show the item as of before a jump of the wall clock.
            self.reads += 1;
            if matches!(look, Look::First(_)) {
                self.next = Next::Select;
            }
            return;
        }
        self.reads = 1;
        match look {
            Look::First(known) => self.read_first(env, known, sent, shard),
            Look::Short(known, consistency) => {
                self.read_again(env, known, consistency, sent, shard);
            }
            Look::InDoubt => self.read_in_doubt(env, sent, shard),
            Look::Outcome => {
                if let Some(attempt) = self.attempt.take() {
                    self.give_up(env, attempt, sent, shard.ok().flatten());
                }
            }
        }
    }

    fn read_first(
        &mut self,
        env: &Env,
        known: Known,
        sent: Sent,
        shard: Result<Option<Shard>, Error>,
    ) {
        let shard = match shard {
            Ok(shard) => shard,
            // A write planned on the old view shows as much as the read would.
            Err(Error::Store(error)) if is_key_range_throttle(&error) && self.shard.is_known() => {
                self.next = Next::SelectRead;
                return;
            }
            Err(Error::Store(error)) if self.can_reroute(&error) => {
                return self.send_elsewhere(&Reason::Throttled(error));
            }
            Err(Error::Store(error)) if error.kind.is_transient() => {
                count(&env.counters.refused, 1);
                return self.pause();
            }
            Err(error) => return self.fail_line(&error),
        };
        self.shard.record_read(shard, sent, env.now());
        let is_split = known.was_only && self.shard.summary.max_shards_seen() > 1;
        if is_split {
            self.send_elsewhere(&Reason::BucketWasSplit);
        } else if !self.shard.is_known() {
            self.send_elsewhere(&Reason::ShardMissing);
        } else if self.was_split(&known) {
            self.send_elsewhere(&Reason::BucketWasSplit);
        } else {
            self.failures = 0;
            self.next = Next::SelectRead;
        }
    }

    fn read_again(
        &mut self,
        env: &Env,
        known: Known,
        consistency: Consistency,
        sent: Sent,
        shard: Result<Option<Shard>, Error>,
    ) {
        let is_older = |shard: &Shard| {
            let seen = known.view.as_ref();
            seen.is_some_and(|seen| shard.write_seq < seen.write_seq)
        };
        match shard {
            // A view that is newer by now stays.
            Ok(Some(shard)) if !is_older(&shard) => {
                self.shard.record_read_response(shard, sent);
            }
            // The response is older than the view was, or the item was deleted since.
            Ok(_) if consistency == Consistency::Eventual => {
                self.next = Next::RecheckStrongly;
                return;
            }
            Ok(Some(shard)) => {
                self.shard.clear_view();
                self.shard.record_read_response(shard, sent);
            }
            Ok(None) if self.shard.is_only() => self.shard.clear_view(),
            Ok(None) => self.shard.mark_missing(),
            Err(Error::Store(error)) if error.kind.is_transient() => {
                count(&env.counters.refused, 1);
                tracing::debug!(%error, "shard not readable for now");
                // Not by a view from before the clock was set.
                let view = self.shard.view_since_clock_jump();
                if let Some(view) = view.filter(|_| is_key_range_throttle(&error)) {
                    self.shard.trust_view_for(THROTTLED_VIEW_TTL);
                    self.deny_insufficient(env, &view);
                }
                return self.pause();
            }
            Err(error) => return self.fail_line(&error),
        }
        if self.shard.was_merged_away() {
            self.send_elsewhere(&Reason::ShardMissing);
        } else if self.was_split(&known) {
            self.send_elsewhere(&Reason::BucketWasSplit);
        }
    }

    fn read_in_doubt(&mut self, env: &Env, sent: Sent, shard: Result<Option<Shard>, Error>) {
        let Some(mut attempt) = self.attempt.take() else {
            return;
        };
        match shard {
            Ok(shard) => {
                self.shard.record_read(shard, sent, env.now());
                attempt.is_missing = self.shard.may_be_created();
            }
            Err(Error::Store(error)) if error.kind.is_transient() => {
                self.wait = Some(Instant::now() + backoff(1));
            }
            Err(error) => return self.fail_attempt(env, attempt, error),
        }
        if self.shard.was_merged_away() {
            return self.shard_missing(env, attempt);
        }
        self.attempt = Some(attempt);
    }
}

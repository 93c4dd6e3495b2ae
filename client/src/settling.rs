//! Settling a part of a grant: one write, repeated until its outcome is known, where that is safe.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::write::{
    Condition, LeaseChange, LimitDelta, Path, Settle, Update, Value, clear_due,
};
use weirgate_shared::{
    EpochMillis, ItemError, LimitName, MilliTokens, Millis, Shard, WriteId, attr,
};
use weirgate_store::{ErrorKind, Outcome, StoreError};

use crate::clock::deadline;
use crate::inner::Inner;
use crate::line::{Line, Needs, backoff};
use crate::shards::Shards;
use crate::stats::count;
use crate::{Error, Settlement};

/// How far apart the clocks of two processes are at most, once DynamoDB's answers have corrected
/// them.
const CLOCKS: Millis = Millis(2_000);

/// One settlement, until its outcome is known.
pub(crate) struct Settling<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) shards: &'a Shards,
    pub(crate) line: Arc<Line>,
    /// Id of the write.
    pub(crate) op: WriteId,
    /// The durable lease, when it expires, and what becomes of it.
    pub(crate) lease: Option<(&'a WriteId, EpochMillis, LeaseChange)>,
    pub(crate) amounts: BTreeMap<LimitName, LimitDelta>,
    /// Acquires granted before that the write counts; negative for those that were counted and not
    /// granted.
    pub(crate) takes: i64,
    /// What the lease holds, as far as its holder knows.
    pub(crate) holds: &'a Needs,
}

/// What became of a settlement, to the grant itself.
pub(crate) enum Answered {
    Settled(Settlement),
    /// The lease holds other amounts than the grant knows of, and was not ended.
    Holds(Needs),
}

impl Settling<'_> {
    pub(crate) async fn run(mut self) -> Result<Answered, Error> {
        let deadline = deadline(self.inner.settings.timeout);
        let mut update = self.whole();
        let (mut failures, mut races, mut doubt) = (0, 0, None::<StoreError>);
        loop {
            match self.inner.update(&update).await {
                Ok(Outcome::Applied(item)) => {
                    if let Some(item) = item {
                        self.line
                            .saw(item.bucket().map_err(|error| self.unreadable(error))?);
                    }
                    if self.amounts.values().any(|settled| {
                        settled.ceiling.is_some() && settled.available > MilliTokens::ZERO
                    }) {
                        self.line.bucket.gives_back(self.inner.now());
                    }
                    self.line.bucket.given_back.notify_waiters();
                    return Ok(Answered::Settled(Settlement::Done));
                }
                Ok(Outcome::LostRace(None)) if self.lease.is_none() && self.line.key.shard > 0 => {
                    // Its shard has become part of the one it was split off, and so have its
                    // tokens. (Shards with leases stay.)
                    self.line = self.shards.line(split_off_from(self.line.key.shard));
                    update = self.whole();
                }
                Ok(Outcome::LostRace(None)) => return Ok(Answered::Settled(Settlement::Ended)),
                Ok(Outcome::LostRace(Some(item))) => {
                    let bucket = self
                        .line
                        .saw(item.bucket().map_err(|error| self.unreadable(error))?);
                    if let Some(answered) = self.ended(&bucket, &mut doubt) {
                        self.line.bucket.given_back.notify_waiters();
                        return answered;
                    }
                    count(&self.inner.counters.lost_races, 1);
                    self.line.meets(true);
                    if Instant::now() >= deadline {
                        let (bucket, after) =
                            (self.line.key.item_key().pk, self.inner.settings.timeout);
                        return Err(Error::Timeout {
                            bucket,
                            after,
                            last: doubt.map(Arc::new),
                        });
                    }
                    // The first time the answer is all it takes; who loses more often meets a
                    // crowd.
                    races += 1;
                    if races > 1 {
                        tokio::time::sleep(backoff(races - 1)).await;
                    }
                    update = self.end_what_is_held(self.settle().capped(&bucket));
                }
                // By when a lease is to last is to be said anew.
                Err(error) if error.kind == ErrorKind::Skewed && self.is_renewal() => {
                    return Err(error.into());
                }
                Err(error) if error.kind.is_transient() && Instant::now() < deadline => {
                    if error.kind == ErrorKind::Unknown {
                        count(&self.inner.counters.unknown, 1);
                        if self.lease.is_none() {
                            return Err(self.give_up(error.into()));
                        }
                        // The lease tells, when the same write is tried again, whether it has
                        // happened.
                        doubt = Some(error);
                    } else {
                        count(&self.inner.counters.refused, 1);
                    }
                    failures += 1;
                    tokio::time::sleep(backoff(failures)).await;
                }
                // What was in doubt before stays so.
                Err(error) => return Err(doubt.unwrap_or(error).into()),
            }
        }
    }

    fn is_renewal(&self) -> bool {
        matches!(self.lease, Some((.., LeaseChange::Renew(_))))
    }

    fn settle(&self) -> Settle<'_> {
        let lease = self
            .lease
            .as_ref()
            .map(|(id, _, change)| (*id, change.clone()));
        let roll = self.line.roll(self.inner, self.inner.now());
        let (op, amounts, takes) = (self.op.clone(), self.amounts.clone(), self.takes);
        Settle {
            key: &self.line.key,
            write_id: op,
            lease,
            amounts,
            acquires: takes,
            roll,
        }
    }

    fn whole(&self) -> Update {
        let seen = self.line.sure_view().map(|view| view.bucket);
        let mut update = self.end_what_is_held(self.settle().full(seen.as_deref()));
        if let (Some((id, _, LeaseChange::End)), Some(seen)) = (&self.lease, &seen)
            && self.line.ends_rare_lease(seen)
        {
            clear_due(&mut update, seen, id);
        }
        update
    }

    /// Ending a lease gives back what it holds, so it must hold what the grant knows of.
    fn end_what_is_held(&self, mut update: Update) -> Update {
        if let Some((id, _, LeaseChange::End)) = &self.lease {
            let held = self
                .holds
                .iter()
                .map(|(limit, amount)| (limit.to_string(), Value::Int(amount.0)))
                .collect();
            let path = Path::lease(id).then(attr::LEASE_TOKENS);
            update
                .conditions
                .push(Condition::Equals(path, Value::Map(held)));
        }
        update
    }

    /// What the bucket says of the lease, if that settles the matter.
    fn ended(
        &self,
        bucket: &Shard,
        doubt: &mut Option<StoreError>,
    ) -> Option<Result<Answered, Error>> {
        let settled = |is_done| {
            let settlement = if is_done {
                Settlement::Done
            } else {
                Settlement::Ended
            };
            Some(Ok(Answered::Settled(settlement)))
        };
        if bucket.last_write_id.as_ref() == Some(&self.op) {
            return settled(true);
        }
        let (id, expires, change) = self.lease.as_ref()?;
        let Some(held) = bucket.leases.as_ref().and_then(|leases| leases.get(*id)) else {
            return match doubt.take() {
                // By the write in doubt, or by somebody who found it expired, perhaps by a clock
                // that is ahead of this one: nobody knows.
                Some(doubt)
                    if *change == LeaseChange::End && *expires <= self.inner.now().plus(CLOCKS) =>
                {
                    Some(Err(doubt.into()))
                }
                // By the write in doubt if that one ends it, or before it.
                doubt => settled(doubt.is_some() && *change == LeaseChange::End),
            };
        };
        let amounts = match change {
            LeaseChange::End if held.tokens != *self.holds => {
                return Some(Ok(Answered::Holds(held.tokens.clone())));
            }
            LeaseChange::End | LeaseChange::Renew(_) => return None,
            LeaseChange::SetAmounts(amounts) => amounts,
        };
        let holds =
            |limit: &LimitName, amount: &MilliTokens| held.tokens.get(limit) == Some(amount);
        if amounts
            .iter()
            .all(|(limit, (before, _))| holds(limit, before))
        {
            return None;
        }
        settled(
            doubt.is_some()
                && amounts
                    .iter()
                    .all(|(limit, (_, after))| holds(limit, after)),
        )
    }

    /// What was to be given back counts as used: to repeat it could give back twice.
    fn give_up(&self, error: Error) -> Error {
        let given: MilliTokens = self
            .amounts
            .values()
            .map(|settled| settled.available.max(MilliTokens::ZERO))
            .sum();
        count(
            &self.inner.counters.unknown_milli,
            u64::try_from(given.0).unwrap_or_default(),
        );
        error
    }

    fn unreadable(&self, error: ItemError) -> Error {
        Error::Unreadable {
            bucket: self.line.key.item_key().pk,
            error,
        }
    }
}

/// The shard that `shard` was split off from: its number without the highest bit.
fn split_off_from(shard: u32) -> u32 {
    shard & !(1 << shard.ilog2())
}

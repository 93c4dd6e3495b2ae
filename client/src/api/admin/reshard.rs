//! Splits a bucket in advance, or merges it back, for an operator.

use std::sync::Arc;

use tokio::time::timeout;
use weirgate_shared::write::{Action, Take, Update, merge, merged, split, update_min_shards};
use weirgate_shared::{
    AuditChange, EpochMillis, Limit, LimitName, MAX_SHARDS, MilliTokens, RefillRule, Shard,
    ShardIndex,
};
use weirgate_store::{Consistency, TransactOutcome, WriteOutcome};

use super::Admin;
use crate::bucket::{BucketState, finish_split};
use crate::config::{ConfigEdit, check_functions};
use crate::session::{Refusals, Session, backoff, deadline, decode_shard};
use crate::values::{Error, Limits, check_limit_count, check_windows};

impl Admin {
    /// Splits a bucket into `shards` ahead of a load, or merges it back. Returns the resulting
    /// shard count.
    ///
    /// A bucket splits by itself when its writes exceed what one DynamoDB partition takes (1,000 a
    /// second), and merges again later. For a sudden load, split it manually: it keeps at least
    /// `shards` shards until this is called again with fewer; 1 leaves it to automatic splits. A
    /// missing bucket is created with `limits`. No token is made or lost. An audit event is written
    /// before the first change.
    ///
    /// A merge does not wait: a shard that holds leases, or is written to all the time, stays. The
    /// result is then above `shards`, and the reconciler merges the rest when it can.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, limits: [weirgate::Limit; 1]) -> Result<(), weirgate::Error> {
    /// limiter.admin().set_shards("openai", "gpt-4", &limits, 16).await?; // ready for 16,000 writes a second
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if `shards` is not a power of two from 1 to 64, or so many that a shard
    /// would hold less than one token of a limit; [`Error::Store`] or [`Error::Timeout`] if the
    /// work is incomplete: finished steps stay, and another call continues.
    pub async fn set_shards(
        &self,
        entity: &str,
        resource: &str,
        limits: &[Limit],
        shards: u32,
    ) -> Result<u32, Error> {
        self.session
            .at_home(async {
                if !shards.is_power_of_two() || shards > MAX_SHARDS {
                    return Err(Error::Invalid(format!(
                        "shards must be a power of two from 1 to 64, got {shards}"
                    )));
                }
                let bucket = self.buckets.bucket(entity.try_into()?, resource.try_into()?);
                check_windows(limits)?;
                let limits = &*Limits::new(limits.into(), None);
                check_limit_count(limits)?;
                let until = deadline(self.session.settings.timeout);
                check_functions(&self.session, limits.iter(), until).await?;
                let within = self.session.settings.timeout.saturating_mul(2);
                let late = Error::timeout(&bucket.key, within, None);
                let resharding = Resharding::new(&self.session, bucket, limits, shards)?;
                let done = timeout(within, resharding.run()).await;
                done.unwrap_or(Err(late))
            })
            .await
    }
}

/// A change of a bucket's shard count.
#[derive(Debug)]
struct Resharding<'a> {
    session: &'a Session,
    bucket: Arc<BucketState>,
    limits: &'a [Limit],
    shards: u32,
}

/// One write or transaction on a bucket.
enum Work {
    /// A single write.
    Write(Update),
    /// The write that begins a split.
    Split(Update),
    /// The rest of a split that another process has begun.
    Finish(Box<Shard>),
    /// A merge of two shards.
    Merge(Vec<Action>),
}

/// Attempts of merges that lose their race, 4: a shard in use stays.
const TRIES: u32 = 4;

impl<'a> Resharding<'a> {
    /// Checks that each shard holds at least one token of each limit.
    fn new(
        session: &'a Session,
        bucket: Arc<BucketState>,
        limits: &'a [Limit],
        shards: u32,
    ) -> Result<Self, Error> {
        if shards > 1 && session.table.is_in_redis() {
            return Err(Error::Invalid(format!(
                "shards must be 1 in a table in Redis, where all are on one server, got {shards}"
            )));
        }
        check_capacity(limits.iter().map(|limit| (limit.name(), limit.rule())), shards)?;
        Ok(Self { session, bucket, limits, shards })
    }

    /// Splits and merges until the bucket has the shard count. Returns the resulting one.
    async fn run(self) -> Result<u32, Error> {
        let (mut failures, mut lost_merges, mut is_announced) = (0, 0, false);
        let mut refusals = Refusals::default();
        loop {
            let shards = self.read().await?;
            let now = self.session.now();
            let mut work = self.splits(&shards, now)?;
            let can_wait = work.is_empty();
            if can_wait {
                work = self.merges(&shards, now);
            }
            if work.is_empty() || can_wait && lost_merges == TRIES {
                return Ok(u32::try_from(shards.len()).unwrap_or(u32::MAX));
            }
            if !std::mem::replace(&mut is_announced, true) {
                self.announce(shards.len()).await?;
            }
            // These do not conflict with each other; then the bucket is read again.
            let mut done = false;
            for work in work {
                done |= self.make(work).await?;
            }
            if !done {
                failures += 1;
                if can_wait {
                    lost_merges += 1;
                } else {
                    let version = shards.iter().map(|shard| shard.write_seq).max();
                    refusals.record(&self.bucket.key, version)?;
                }
                tokio::time::sleep(backoff(failures)).await;
            }
        }
    }

    /// Writes the audit event, before the first change.
    async fn announce(&self, before: usize) -> Result<(), Error> {
        let key = &self.bucket.key;
        let event = AuditChange::Shards {
            entity: key.entity.clone(),
            resource: key.resource.clone(),
            before: u32::try_from(before).unwrap_or(u32::MAX),
            after: self.shards,
        };
        let what = format!("the shards of {}", key.item_key().pk);
        ConfigEdit::announce(self.session, what, event).await
    }

    /// Executes one piece of work. Returns whether it took effect.
    async fn make(&self, work: Work) -> Result<bool, Error> {
        match work {
            Work::Write(update) => Ok(matches!(
                self.session.update_idempotent(&update).await?,
                WriteOutcome::Applied(_)
            )),
            Work::Split(update) => {
                // Another process may have begun the split, or this one did and the response was
                // lost.
                let (WriteOutcome::Applied(item) | WriteOutcome::ConditionFailed(item)) =
                    self.session.update_idempotent(&update).await?;
                let parent = item.as_ref().map(decode_shard).transpose()?;
                let Some(parent) = parent.filter(|parent| parent.escrow.is_some()) else {
                    return Ok(false);
                };
                Ok(finish_split(self.session, &parent).await?)
            }
            Work::Finish(parent) => Ok(finish_split(self.session, &parent).await?),
            Work::Merge(actions) => {
                let token = weirgate_store::random_id();
                Ok(self.session.transact_idempotent(&actions, &token).await?
                    == TransactOutcome::Applied)
            }
        }
    }

    /// Reads and returns all shards.
    async fn read(&self) -> Result<Vec<Shard>, Error> {
        self.bucket.summary().set_max_shards_seen(MAX_SHARDS);
        self.bucket.refresh(self.session, None, Consistency::Strong).await?;
        let seen = self.bucket.views();
        Ok(seen.map(|view| Shard::clone(&view.shard)).collect())
    }

    /// Returns the minimum shard count for the items; 0 leaves the bucket to automatic splits.
    const fn min_shards(&self) -> u32 {
        if self.shards == 1 { 0 } else { self.shards }
    }

    /// Returns the work that creates the bucket, splits shards that are too large, and sets the
    /// minimum shard count.
    fn splits(&self, shards: &[Shard], now: EpochMillis) -> Result<Vec<Work>, Error> {
        if shards.is_empty() {
            return Ok(vec![Work::Write(self.create_bucket(now))]);
        }
        let mut work = vec![];
        for shard in shards {
            let there = shard.limits.iter().filter(|(name, _)| !shard.is_gone(name));
            check_capacity(there.map(|(name, state)| (name, &state.rule)), self.shards)?;
            if shard.escrow.is_some() {
                work.push(Work::Finish(Box::new(shard.clone())));
            } else if shard.shard().count < self.shards {
                let op = weirgate_store::random_id();
                work.push(Work::Split(split(shard, self.min_shards(), op, now)));
            } else if shard.scaling.min_shards != self.min_shards() {
                work.push(Work::Write(update_min_shards(shard, self.min_shards(), now)));
            }
        }
        Ok(work)
    }

    /// Returns the merges of all pairs that can and should become one shard.
    fn merges(&self, shards: &[Shard], now: EpochMillis) -> Vec<Work> {
        let mut work = vec![];
        for upper in shards.iter().filter(|shard| shard.shard().count > self.shards) {
            let Some(whole) = upper.shard().parent().filter(|whole| whole.index != upper.key.shard)
            else {
                continue;
            };
            let Some(lower) = shards.iter().find(|lower| lower.key.shard == whole.index) else {
                continue;
            };
            if let Some(merged) = merged(lower, upper, now) {
                work.push(Work::Merge(merge(lower, merged, &[upper])));
            }
        }
        work
    }

    fn create_bucket(&self, now: EpochMillis) -> Update {
        let op = weirgate_store::random_id();
        Take::nothing(&self.bucket.key, self.limits, op, now).create(now)
    }
}

/// Requires that each of `shards` shards holds at least one token of every limit, and sessions of one
/// shard.
fn check_capacity<'a>(
    limits: impl Iterator<Item = (&'a LimitName, &'a RefillRule)>,
    shards: u32,
) -> Result<(), Error> {
    let last = ShardIndex { index: shards - 1, count: shards };
    for (name, rule) in limits {
        if rule.is_session() && shards > 1 {
            return Err(Error::Invalid(format!(
                "limit {name:?} is a session, which begins with the first use of its one shard, so the bucket must have 1 shard, got {shards}: use a window on the calendar"
            )));
        }
        if last.share(rule.capacity) < MilliTokens::from_tokens(1) {
            let capacity = rule.capacity;
            return Err(Error::Invalid(format!(
                "limit {name:?} has a capacity of {capacity} tokens, too few for {shards} shards, which need one each: use fewer shards"
            )));
        }
    }
    Ok(())
}

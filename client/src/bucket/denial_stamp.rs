//! When a request uses the denial stamp of a bucket, and when a process writes one.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{Bucket, EpochMillis, Limit, Millis, Shard, Stamp, read_stamp};
use weirgate_store::Consistency;

use super::route::Router;
use super::stamp::{WORTH, denies, draw, is_over};
use super::state::BucketState;
use crate::session::Session;
use crate::values::{BucketRequest, Denied};

/// Longest wait for the stamp of another process before reading all shards, per shard: 1 ms.
const MAX_WAIT_PER_SHARD: Duration = Duration::from_millis(1);
/// Age below which a stamp that no longer denies is renewed by this process without a wait, 60 s:
/// other processes renewed it until a moment ago.
const RENEWED: Millis = Millis(60_000);

impl BucketState {
    pub(super) fn is_stamped(&self) -> bool {
        self.summary().max_shards_seen() >= WORTH
    }

    /// Returns the denial that the cached stamp implies, while it is valid.
    pub(super) fn denied_by_stamp(
        &self,
        session: &Session,
        request: &BucketRequest,
    ) -> Option<Denied> {
        let stamp = self.stamp().clone().filter(|_| self.is_stamped())?;
        let now = session.now();
        let denied = denies(
            &stamp,
            &self.key,
            request,
            self.summary().max_shards_seen(),
            now,
        )?;
        let is_void = self.summary().returned_since(stamp.at)
            || self
                .summary()
                .retry_time_passed(now, now.since(stamp.at).into())
            || is_over(
                &stamp,
                &denied,
                self.salt,
                session.settings.denial_cache_ttl,
                now,
            );
        (!is_void).then_some(denied)
    }

    /// Writes a stamp of `bucket` as it was read at `now`, if the bucket has enough shards.
    pub(super) fn write_stamp(&self, session: &Arc<Session>, bucket: &Bucket, now: EpochMillis) {
        let Some(stamp) = Stamp::of(bucket, now).filter(|_| self.is_stamped()) else {
            return;
        };
        let (session, update) = (Arc::clone(session), stamp.update(&self.key));
        *self.stamp() = Some(Arc::new(stamp));
        tokio::spawn(async move {
            if let Err(error) = session.update(&update).await {
                tracing::debug!(%error, "denial stamp not written");
            }
        });
    }
}

impl Router<'_> {
    /// Returns whether the cached stamp, at any age, shows that the bucket is short. Then no shard
    /// is tried alone.
    pub(super) fn is_stamped_short(&self) -> bool {
        let stamp = self
            .bucket
            .stamp()
            .clone()
            .filter(|_| self.bucket.is_stamped());
        let (most, now) = (self.bucket.summary().max_shards_seen(), self.session.now());
        stamp.is_some_and(|stamp| {
            denies(&stamp, &self.bucket.key, self.request, most, now).is_some()
        })
    }

    /// Reads the stamp that another process may have written, and returns the denial that it
    /// implies.
    pub(super) async fn ask_the_stamp(&self) -> Option<Denied> {
        let asks_rate = |limit: &Limit| {
            let need = self.request.asks.enforced(limit.name().as_str());
            limit.rule().kind().refills() && need.is_some()
        };
        if !self.bucket.is_stamped() || !self.request.limits.iter().any(asks_rate) {
            return None;
        }
        let key = Stamp::key(&self.bucket.key);
        for is_second in [false, true] {
            let read = self.session.read_once(&key, Consistency::Eventual);
            // Without a readable stamp, all shards are read.
            let item = tokio::time::timeout_at(self.deadline, read)
                .await
                .ok()?
                .ok()?;
            let stamp = item
                .as_ref()
                .and_then(|item| read_stamp(item.attributes()).ok());
            let is_renewal = stamp
                .as_ref()
                .is_some_and(|stamp| self.session.now().since(stamp.at) < RENEWED);
            *self.bucket.stamp() = stamp.map(Arc::new);
            let denied = self.bucket.denied_by_stamp(self.session, self.request);
            if denied.is_some() || is_second || is_renewal || !self.is_far_from_enough() {
                return denied;
            }
            // Many processes may have been denied at this moment: one of them writes a stamp while
            // the others wait.
            let most = MAX_WAIT_PER_SHARD * self.bucket.summary().max_shards_seen();
            let wait =
                most - most * draw(&mut fastrand::Rng::with_seed(fastrand::u64(..))) / 10_000;
            tokio::time::sleep(wait).await;
        }
        None
    }

    /// Returns whether no viewed shard has enough of its rates within a second. For a request above
    /// a shard's share, returns whether all shards together lack it, if the others hold as much on
    /// average as the viewed ones.
    fn is_far_from_enough(&self) -> bool {
        let BucketRequest { asks, limits, .. } = self.request;
        let now = self.session.now();
        let seen = self.bucket.cached_bucket(limits, now);
        let soon = now.plus(Millis(1_000));
        let rates = || limits.iter().filter(|limit| limit.rule().kind().refills());
        let lacks = |shard: &Shard, limit: &Limit| {
            asks.enforced(limit.name().as_str())
                .is_some_and(|need| shard.balance_at(limit.name(), soon) < need)
        };
        if self.exceeds_one_shard() {
            let all = |limit: &Limit| {
                let seen_of = i64::try_from(seen.shards().len()).unwrap_or(i64::MAX);
                let holds = i128::from(seen.balance_at(limit.name(), soon).0)
                    * i128::from(self.bucket.summary().max_shards_seen());
                asks.enforced(limit.name().as_str())
                    .is_some_and(|need| holds < i128::from(need.0) * i128::from(seen_of))
            };
            return rates().any(all);
        }
        seen.shards()
            .iter()
            .all(|shard| rates().any(|limit| lacks(shard, limit)))
    }
}

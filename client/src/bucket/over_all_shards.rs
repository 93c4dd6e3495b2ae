//! Decides over all shards of a bucket together, where no shard can decide alone.

use std::sync::Arc;

use weirgate_shared::{Bucket, EpochMillis};
use weirgate_store::{Consistency, ErrorKind};

use super::evaluate::{Allocation, evaluate};
use super::route::{AllShards, Router};
use crate::values::{BucketRequest, Error, Outcome};

impl Router<'_> {
    /// Decides over all shards together. Returns the decision, or the next step.
    pub(super) async fn decide_over_all_shards(&mut self) -> Result<AllShards, Error> {
        if !self.must_refresh
            && let Some(denied) = self.ask_the_stamp().await
        {
            self.bucket
                .summary()
                .record_retry_time(self.session.now(), denied.retry_after);
            return Ok(Outcome::Denied(denied));
        }
        let Some((bucket, looked_at)) = self.refresh_all_shards().await? else {
            return Ok(Outcome::Elsewhere(None));
        };
        let now = looked_at.unwrap_or_else(|| self.session.now());
        let is_unmade = |shard: &u32| self.bucket.shard(*shard).view().is_none();
        self.tried.clear();
        if bucket.shards().is_empty() {
            if self.bucket.queues.views().next().is_some() {
                // All views are from before a jump of the wall clock.
                return Ok(Outcome::Elsewhere(None));
            }
            self.bucket.queues.reset();
            return Ok(Outcome::Elsewhere(Some(self.choose())));
        }
        match evaluate(&bucket, self.request, now) {
            Allocation::Denied(denied) => {
                self.bucket.record_denial();
                self.bucket
                    .summary()
                    .record_retry_time(now, denied.retry_after);
                if looked_at.is_some() {
                    self.bucket.write_stamp(self.session, &bucket, now);
                }
                Ok(Outcome::Denied(denied))
            }
            Allocation::Single(shard) if is_unmade(&shard) => {
                self.pause().await;
                Ok(Outcome::Elsewhere(None))
            }
            Allocation::Single(shard) => {
                Ok(Outcome::Elsewhere(Some(self.bucket.queues.queue(shard))))
            }
            Allocation::Spread(parts) if parts.iter().any(|(shard, _)| is_unmade(shard)) => {
                self.pause().await;
                Ok(Outcome::Elsewhere(None))
            }
            Allocation::Spread(parts) => self.take_parts(parts).await,
        }
    }

    /// Returns the state of all shards, and the time of the read if there was one; `None` if they
    /// could not be read for now.
    async fn refresh_all_shards(&mut self) -> Result<Option<(Bucket, Option<EpochMillis>)>, Error> {
        let BucketRequest { limits, .. } = self.request;
        let enqueued_at = self.session.env.ages.of(self.enqueued_at);
        // A balance of a rate may be half a second old; a count of free slots may not.
        let first = if self.request.takes_slots() {
            Consistency::Strong
        } else {
            Consistency::Eventual
        };
        let now = self.session.now();
        let mut bucket = self
            .bucket
            .seen_bucket(limits, now, |view| view.seen_at >= enqueued_at);
        // Others compete for what a shard was refilled with since it was short for this request: it
        // would go from shard to shard for that until its deadline.
        if self.was_short && !matches!(evaluate(&bucket, self.request, now), Allocation::Denied(_))
        {
            bucket = self.bucket.bucket_as_shown(limits, enqueued_at, now);
        }
        if std::mem::take(&mut self.must_refresh) {
            bucket = Bucket::default();
        }
        let (mut looked_at, mut is_unread) = (None, false);
        // One read may see shards at different times, so read twice. If they are still incomplete,
        // items were deleted manually, and the existing shards decide.
        for (since, consistency) in [
            (Some(enqueued_at).filter(|_| self.failures == 0), first),
            (None, Consistency::Strong),
        ] {
            if bucket.is_complete() {
                break;
            }
            let refreshed = tokio::time::timeout_at(
                self.deadline,
                self.bucket.refresh(self.session, since, consistency),
            );
            is_unread = true;
            match refreshed.await {
                Ok(Err(Error::Store(error)))
                    if error.kind == (ErrorKind::Throttled { key_range: true }) =>
                {
                    self.last_error = Some(error);
                    self.pause().await;
                }
                Ok(refreshed) => {
                    refreshed?;
                    (looked_at, is_unread) = (Some(self.session.now()), false);
                }
                Err(_) => {
                    let error = self
                        .session
                        .timeout_error("BatchGetItem of all shards", self.request.timeout);
                    self.last_error = Some(Arc::new(error));
                }
            }
            self.check_deadline()?;
            bucket = self.bucket.cached_bucket(limits, self.session.now());
        }
        if !bucket.is_complete() && is_unread {
            // The shards that could not be read may have the missing tokens.
            return Ok(None);
        }
        if !bucket.is_complete() {
            // Tokens in the escrow of a split count as present; they can be taken a little later.
            bucket = self.bucket.seen_with_escrows(limits, self.session.now());
        }
        Ok(Some((bucket, looked_at)))
    }
}

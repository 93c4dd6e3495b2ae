//! Reads all shards of a bucket at once, when one shard cannot decide, and finishes the splits that
//! another process has begun.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use weirgate_shared::write::{finish_writes, is_abandoned, update_min_shards};
use weirgate_shared::{Bucket, EpochMillis, ItemKey, MAX_SHARDS, Shard};
use weirgate_store::{Consistency, Item, StoreError, WriteOutcome};

use super::state::BucketState;
use crate::session::{Moment, Sent, Session, decode_shard};
use crate::values::{Error, Limits};

/// Reads all shards of several buckets, unless that was done since `since`. Buckets with one known
/// shard are read together, a hundred per request.
///
/// # Errors
/// [`Error::Unreadable`] if a shard is damaged; the others were read. Otherwise the store's.
pub(crate) async fn refresh_all(
    session: &Session,
    buckets: &[&Arc<BucketState>],
    since: Moment,
) -> Result<(), Error> {
    let damaged = refresh_each(session, buckets, since).await?;
    damaged.into_iter().next().map_or(Ok(()), Err)
}

/// Reads all shards of several buckets, as [`refresh_all`] does. Returns an [`Error::Unreadable`]
/// for each bucket with a damaged shard. Such a bucket may have no view; the others are complete.
///
/// # Errors
/// The store's.
pub(crate) async fn refresh_each(
    session: &Session,
    buckets: &[&Arc<BucketState>],
    since: Moment,
) -> Result<Vec<Error>, Error> {
    let mut damaged = vec![];
    let (single, mut several): (Vec<&Arc<BucketState>>, Vec<&Arc<BucketState>>) =
        buckets.iter().partition(|bucket| bucket.summary().max_shards_seen() == 1);
    for some in single.chunks(100) {
        let keys: Vec<_> = some.iter().map(|bucket| bucket.key.item_key()).collect();
        let (sent, items) = read_items(session, &keys, Consistency::Strong).await?;
        let mut found: BTreeMap<_, _> = items.iter().map(|item| (item.pk(), item)).collect();
        for bucket in some {
            let item = found.remove(&bucket.key.item_key().pk);
            match item.map(decode_shard) {
                Some(Err(error)) => damaged.push(error),
                Some(Ok(first)) if first.shard().count > 1 => several.push(bucket),
                Some(Ok(first)) => drop(bucket.shard(0).record_response(first, sent)),
                // The first of several shards may have been deleted.
                None if bucket.shard(0).view().is_some() => several.push(bucket),
                None => bucket.shard(0).mark_missing(),
            }
        }
    }
    let refreshed =
        several.iter().map(|bucket| bucket.refresh(session, Some(since), Consistency::Eventual));
    for outcome in join_all(refreshed).await {
        match outcome {
            Ok(()) => {}
            Err(error @ Error::Unreadable { .. }) => damaged.push(error),
            Err(error) => return Err(error),
        }
    }
    Ok(damaged)
}

/// Reads shards, as [`read_items`] does.
async fn read_shards(
    session: &Session,
    keys: &[ItemKey],
    consistency: Consistency,
) -> Result<(Sent, Vec<Shard>), Error> {
    let (sent, items) = read_items(session, keys, consistency).await?;
    let shards = items.iter().map(decode_shard).collect::<Result<_, _>>()?;
    Ok((sent, shards))
}

/// Reads items. Returns when the read was sent.
async fn read_items(
    session: &Session,
    keys: &[ItemKey],
    consistency: Consistency,
) -> Result<(Sent, Vec<Item>), Error> {
    let read = || session.in_time("BatchGetItem", session.read_with(keys, consistency, None));
    Ok(session.read_between_jumps(read).await?)
}

impl BucketState {
    /// Reads all shards, unless that was done since `since` with the same consistency or a stronger
    /// one. If an eventually consistent read shows less than the views, it is old, so a strongly
    /// consistent one follows.
    pub(crate) async fn refresh(
        &self,
        session: &Session,
        since: Option<Moment>,
        mut consistency: Consistency,
    ) -> Result<(), Error> {
        let mut refreshed_at = self.refreshed_at.lock().await;
        let is_enough = |(at, by): (Moment, Consistency)| {
            since.is_some_and(|since| at >= since)
                && (by == consistency || by == Consistency::Strong)
        };
        if refreshed_at.is_some_and(is_enough) {
            return Ok(());
        }
        let mut most = self.summary().max_shards_seen();
        let (mut has_finished, mut first_sent) = (false, None);
        loop {
            let keys: Vec<_> =
                (0..most).map(|shard| self.key.with_shard(shard).item_key()).collect();
            let (sent, found) = read_shards(session, &keys, consistency).await?;
            let first = *first_sent.get_or_insert(sent);
            let shard_count =
                found.iter().map(|shard| shard.shard().count).max().unwrap_or(1).min(MAX_SHARDS);
            if shard_count > most {
                // The bucket was split meanwhile.
                most = shard_count;
                continue;
            }
            let now = session.now();
            let left: Vec<_> =
                found.iter().filter(|shard| is_abandoned(shard, now)).cloned().collect();
            if !left.is_empty() && !std::mem::replace(&mut has_finished, true) {
                match self.finish(session, &left).await {
                    Ok(()) => {
                        consistency = Consistency::Strong;
                        continue;
                    }
                    Err(error) if error.kind.is_transient() => {
                        tracing::debug!(%error, "unfinished split of another process: not finished yet");
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let missing: Vec<_> = (0..most)
                .filter(|shard| found.iter().all(|other| other.key.shard != *shard))
                .collect();
            let is_old = shard_count < most
                || missing.iter().any(|shard| self.shard(*shard).view().is_some());
            if is_old && consistency == Consistency::Eventual {
                consistency = Consistency::Strong;
                continue;
            }
            missing.iter().for_each(|shard| self.shard(*shard).mark_missing());
            for shard in found {
                self.shard(shard.key.shard).record_response(shard, sent);
            }
            self.summary().set_max_shards_seen(shard_count);
            *refreshed_at = Some((first.at, consistency));
            return Ok(());
        }
    }
}

/// Writes the new half of `parent`, if its split is unfinished. Returns whether this process ended
/// the split.
pub(crate) async fn finish_split(session: &Session, parent: &Shard) -> Result<bool, StoreError> {
    let mut is_ended = false;
    for update in finish_writes(parent).into_iter().flatten() {
        // Either this write or an earlier one created the half, so only the last outcome matters.
        let outcome = session.update_idempotent(&update).await?;
        is_ended = matches!(outcome, WriteOutcome::Applied(_));
    }
    Ok(is_ended)
}

impl BucketState {
    /// Returns all shards, read now, without unfinished splits; none if the bucket has no item. A
    /// dry run finishes no split: a half in escrow counts as made.
    ///
    /// A read of several items is no snapshot: of a bucket that is split meanwhile it may show a
    /// part, which is then read again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a shard is missing in every read, because its item was deleted.
    pub(crate) async fn read_whole(
        &self,
        session: &Session,
        is_dry_run: bool,
    ) -> Result<Vec<Arc<Shard>>, Error> {
        /// Splits that come between so many reads are not to be expected.
        const READS: u32 = 5;
        let keys = (0..MAX_SHARDS).map(|shard| self.key.with_shard(shard).item_key());
        let keys: Vec<_> = keys.collect();
        let mut left = None;
        for _ in 0..READS {
            let (_, mut shards) = read_shards(session, &keys, Consistency::Strong).await?;
            let is_unfinished = |shard: &&Shard| shard.escrow.is_some();
            let unfinished: Vec<_> = shards.iter().filter(is_unfinished).cloned().collect();
            if !is_dry_run {
                self.finish(session, &unfinished).await?;
            }
            let taken = shards.iter_mut().filter_map(|shard| shard.escrow.take());
            let halves: Vec<_> = taken.map(|half| *half).collect();
            for half in halves {
                if shards.iter().all(|shard| shard.key != half.key) {
                    shards.push(half);
                }
            }
            let is_whole = shards.is_empty() || Bucket::new(shards.clone()).is_complete();
            if is_whole && (is_dry_run || unfinished.is_empty()) {
                return Ok(shards.into_iter().map(Arc::new).collect());
            }
            left = shards.into_iter().max_by_key(|shard| shard.shard_count).filter(|_| !is_whole);
        }
        let pk = self.key.item_key().pk;
        let Some(shard) = left else {
            let what = format!("bucket {pk}");
            return Err(Error::Contended { what, after: session.settings.timeout });
        };
        if is_dry_run {
            return Err(Error::Invalid(format!(
                "bucket {pk} lacks a shard: try the change itself, which has the reconciler repair it within minutes"
            )));
        }
        // At rest it is reviewed, and repaired, once a day.
        let due = update_min_shards(&shard, shard.scaling.min_shards, session.now());
        session.update_idempotent(&due).await?;
        Err(Error::Invalid(format!(
            "bucket {pk} lacks a shard: wait for the reconciler, which repairs it within minutes, and try again"
        )))
    }

    /// Reads the shards after a change of all, for the views.
    pub(crate) async fn view_again(&self, session: &Session) {
        self.forget_denials(session.now());
        self.summary().set_max_shards_seen(MAX_SHARDS);
        let read = self.refresh(session, None, Consistency::Strong).await;
        if let Err(error) = read {
            tracing::debug!(%error, "bucket not read after its change");
        }
    }

    /// Forgets the denials that rest on balances from before a change, and wakes the requests that
    /// wait for tokens.
    fn forget_denials(&self, now: EpochMillis) {
        *self.denied() = None;
        *self.stamp() = None;
        self.summary().record_return(now);
        self.summary().tokens_returned.notify_waiters();
    }

    /// Finishes the splits of `parents`.
    async fn finish(&self, session: &Session, parents: &[Shard]) -> Result<(), StoreError> {
        for parent in parents {
            finish_split(session, parent).await?;
        }
        Ok(())
    }

    /// Returns all viewed shards with the request's limits at `now`, and the halves in escrow.
    /// Tokens in escrow count, though they cannot be taken yet.
    pub(super) fn seen_with_escrows(&self, limits: &Limits, now: EpochMillis) -> Bucket {
        let bucket = self.cached_bucket(limits, now);
        let is_made = |half: &Shard| {
            self.shard(half.key.shard)
                .view()
                .is_some_and(|view| view.shard.write_seq >= half.write_seq)
        };
        let halves = bucket
            .shards()
            .iter()
            .filter_map(|shard| shard.escrow.as_deref())
            .filter(|half| !is_made(half));
        let halves: Vec<_> = halves.map(|half| half.projected(limits, now)).collect();
        let is_older = |shard: &&Shard| halves.iter().all(|half| half.key != shard.key);
        let shards = bucket.shards().iter().filter(is_older).cloned().collect::<Vec<_>>();
        Bucket::new([shards, halves].concat())
    }
}

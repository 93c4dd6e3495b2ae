//! One partition of the index: entries in the order of their age, each namespace within its share.

use std::collections::hash_map::Entry;
use std::future::ready;
use std::sync::{Arc, PoisonError};

use futures_util::stream::{self, StreamExt};
use tokio::sync::MutexGuard;
use weirgate_shared::{BucketKey, EpochMillis, ItemKey, Shard};
use weirgate_store::{Due, ErrorKind, Item, Order, ReadWithin};

use crate::leases::{self, Done, settle};
use crate::read::{self, ProcessedKeys};
use crate::share::Shares;
use crate::{LeftOut, Run, Summary, WRITES, merge_plan};

/// Page size after a page without an entry in turn, the maximum of a page, so that entries are
/// skipped faster.
const PASSED_OVER: i32 = 1000;
/// Number of pages in a row without an entry in turn, after which the partition is read from its
/// other end. A tenant's entries cannot be skipped at once, because only their due time is indexed.
const CROWDED: u32 = 32;

/// How a pass over a partition in one direction ended.
enum Pass {
    /// At the end of the partition.
    Whole,
    /// Among entries of namespaces that have used up their share.
    Crowded,
    /// Out of time, or by an error.
    Stopped,
}

/// A run's state of a partition.
#[derive(Default)]
struct Known {
    processed: ProcessedKeys,
    shares: Shares,
    summary: Summary,
    /// Entry after which each direction continues if it was crowded. The next round does not skip
    /// the same entries again, so entries between those of a tenant at both ends get their turn.
    oldest: Option<Item>,
    newest: Option<Item>,
    /// Due shards, each with what the review of its bucket left out.
    reviewed: Vec<(ItemKey, Arc<LeftOut>)>,
}

impl Run<'_> {
    /// Processes one partition of the index. It terminates: each page begins after the previous
    /// one, their bound stays, and the shares grow until each entry had its turn.
    pub(crate) async fn partition(self, due_shard: String) -> Summary {
        let mut known = Known::default();
        loop {
            let mut pass = self.pass(&due_shard, Order::OldestFirst, &mut known).await;
            if matches!(pass, Pass::Crowded) {
                pass = self.pass(&due_shard, Order::NewestFirst, &mut known).await;
            }
            self.left_out(&mut known).await;
            if matches!(pass, Pass::Stopped) || !known.shares.grow() {
                return known.summary;
            }
        }
    }

    async fn pass(self, due_shard: &str, order: Order, known: &mut Known) -> Pass {
        let (mut after, mut passed_over) = (known.place(order).take(), 0);
        loop {
            let limit = if passed_over == 0 { self.config.page } else { PASSED_OVER };
            let page =
                read::page(self.table, due_shard, self.started_at, order, limit, after.as_ref());
            let page = match self.deadline.bound(page).await {
                Some(Ok(page)) => page,
                failed => {
                    known.summary.unfinished(self.failure(failed));
                    return Pass::Stopped;
                }
            };
            known.summary.page(page.due.iter().map(|due| due.due_at).min(), self.started_at);
            let entries = page.due.len();
            let due: Vec<_> =
                page.due.into_iter().filter(|due| known.takes(due)).map(|due| due.key).collect();
            passed_over = if due.is_empty() && entries > 0 { passed_over + 1 } else { 0 };
            known.summary.seen(due.len());
            let (ours, others): (Vec<_>, Vec<_>) = due.into_iter().partition(read::is_ours);
            for keys in ours.chunks(read::BATCH) {
                self.batch(keys, known).await;
            }
            for key in others {
                read::unreadable(&key, "the key is no bucket's", "", self.budget);
                known.summary.undecodable();
                self.postpone(&key, &mut known.summary).await;
            }
            after = page.next;
            if after.is_none() {
                (known.oldest, known.newest) = (None, None);
                return Pass::Whole;
            }
            if passed_over == CROWDED {
                *known.place(order) = after;
                return Pass::Crowded;
            }
        }
    }

    /// Processes some shards: together if they have a usual size, and one by one otherwise.
    async fn batch(self, keys: &[ItemKey], known: &mut Known) {
        let items = match self.deadline.bound(self.table.read_within(keys, read::SMALL)).await {
            Some(Ok(ReadWithin::Items { items, bytes })) => {
                let each = bytes / u64::try_from(keys.len()).unwrap_or(1).max(1);
                keys.iter().for_each(|key| known.shares.charge(&key.pk, 0, each));
                items
            }
            Some(Ok(ReadWithin::TooLarge { .. })) => {
                for key in keys {
                    self.alone(key, known).await;
                }
                return;
            }
            failed => {
                return known.summary.left(keys.len(), self.failure(failed));
            }
        };
        let processed = stream::iter(items).map(|item| async move {
            let mut summary = Summary::default();
            (self.item(item, None, &mut summary).await, summary)
        });
        let mut processed = processed.buffer_unordered(WRITES);
        let mut reviewed = vec![];
        while let Some((review, summary)) = processed.next().await {
            known.summary = std::mem::take(&mut known.summary).with(summary);
            reviewed.extend(review);
        }
        for (key, first) in reviewed {
            self.review(&key, &first, known).await;
        }
    }

    /// Reviews all shards of a due shard's bucket, once in a run. Charges what it reads to the
    /// namespace's share.
    async fn review(self, key: &ItemKey, first: &BucketKey, known: &mut Known) {
        let reviewed = self.reviewed.lock();
        let (is_first, left_out) =
            match reviewed.unwrap_or_else(PoisonError::into_inner).entry(first.clone()) {
                Entry::Occupied(begun) => (false, begun.get().clone()),
                Entry::Vacant(_) if !known.shares.take(&key.pk) => return known.put_back(key),
                Entry::Vacant(place) => (true, place.insert(Arc::default()).clone()),
            };
        if is_first {
            let reshaped = async {
                let read = self.reshape(first, &mut known.summary).await;
                known.shares.charge(&key.pk, read.keys, read.bytes);
                read.left_out
            };
            left_out.get_or_init(|| reshaped).await;
        }
        known.reviewed.push((key.clone(), left_out));
    }

    /// Processes each due shard that the review of its bucket left out. Waits for reviews of other
    /// partitions.
    async fn left_out(self, known: &mut Known) {
        for (key, left_out) in std::mem::take(&mut known.reviewed) {
            if left_out.get_or_init(|| ready(vec![])).await.contains(&key) {
                self.alone(&key, known).await;
            }
        }
    }

    /// Returns whether the review of the bucket of shard 0, `first`, left the shard out.
    fn is_left_out(self, key: &ItemKey, first: &BucketKey) -> bool {
        let reviewed = self.reviewed.lock();
        let reviewed = reviewed.unwrap_or_else(PoisonError::into_inner);
        let left_out = reviewed.get(first).and_then(|left_out| left_out.get());
        left_out.is_some_and(|left_out| left_out.contains(key))
    }

    /// Processes a shard that may have the maximum size of an item: one at a time in the whole run.
    async fn alone(self, key: &ItemKey, known: &mut Known) {
        if !known.shares.take(&key.pk) {
            return known.put_back(key);
        }
        let Some(guard) = self.deadline.bound(self.large.lock()).await else {
            return known.summary.left(1, None);
        };
        let read = self
            .deadline
            .bound(self.table.read_within(std::slice::from_ref(key), read::LARGE))
            .await;
        match read {
            Some(Ok(ReadWithin::Items { items, bytes })) => {
                known.shares.charge(&key.pk, 0, bytes);
                let Some(item) = items.into_iter().next() else {
                    return;
                };
                if let Some((key, first)) = self.item(item, Some(guard), &mut known.summary).await {
                    self.review(&key, &first, known).await;
                }
            }
            Some(Ok(ReadWithin::TooLarge { bytes })) => {
                known.shares.charge(&key.pk, 0, bytes);
                read::unreadable(
                    key,
                    &format!("the item is {bytes} bytes of JSON"),
                    "",
                    self.budget,
                );
                known.summary.undecodable();
                self.postpone(key, &mut known.summary).await;
            }
            failed => known.summary.left(1, self.failure(failed)),
        }
    }

    /// Processes one due shard. Returns its key, and that of shard 0 if the bucket needs a review.
    /// The guard is held while the item is in memory.
    async fn item(
        self,
        item: Item,
        _guard: Option<MutexGuard<'_, ()>>,
        summary: &mut Summary,
    ) -> Option<(ItemKey, BucketKey)> {
        let key = item.key()?;
        if item.is_merged() {
            // A merged shard has no `due` unless it was set manually: the index is behind.
            self.postpone(&key, summary).await;
            return None;
        }
        let shard = read::bucket(&item, self.budget);
        drop(item);
        match shard {
            None => {
                summary.undecodable();
                self.postpone(&key, summary).await;
            }
            Some(shard) if !merge_plan::is_reviewed(&shard, self.now()) => {
                self.settle(shard, summary, leases::plan).await;
            }
            Some(shard) => {
                let first = shard.key.with_shard(0);
                if !self.is_left_out(&key, &first) {
                    return Some((key, first));
                }
                self.settle(shard, summary, leases::plan_sample).await;
            }
        }
        None
    }

    /// Runs the write of `plan`. Postpones a shard without room for it by an hour.
    pub(crate) async fn settle(
        self,
        shard: Shard,
        summary: &mut Summary,
        plan: impl Fn(&Shard, EpochMillis) -> Option<leases::Planned>,
    ) {
        let key = shard.key.item_key();
        let settled = settle(self.table, self.budget, shard, |image| plan(image, self.now()));
        let done = self.deadline.bound(settled).await;
        let is_hopeless = match &done {
            Some(Ok(Done::Undecodable | Done::Stuck)) => true,
            Some(Err(error)) => error.kind == ErrorKind::Invalid,
            _ => false,
        };
        summary.bucket(done.map(|done| done.map_err(|error| self.warn(error))));
        if is_hopeless {
            self.postpone(&key, summary).await;
        }
    }

    /// Postpones an item by an hour.
    pub(crate) async fn postpone(self, key: &ItemKey, summary: &mut Summary) {
        match self.deadline.bound(leases::postpone(self.table, key, self.now())).await {
            Some(Ok(is_moved)) => summary.postponed(is_moved),
            failed => summary.left(1, self.failure(failed)),
        }
    }
}

impl Known {
    const fn place(&mut self, order: Order) -> &mut Option<Item> {
        match order {
            Order::OldestFirst => &mut self.oldest,
            Order::NewestFirst => &mut self.newest,
        }
    }

    /// Returns whether it is the entry's turn: this run has not processed it, and its namespace has
    /// some of its share left.
    fn takes(&mut self, due: &Due) -> bool {
        if self.processed.contains(&due.key) || !self.shares.take(&due.key.pk) {
            return false;
        }
        self.processed.insert(&due.key);
        true
    }

    /// Returns the entry to wait, because its namespace has used up its share.
    fn put_back(&mut self, key: &ItemKey) {
        self.processed.remove(key);
        self.summary.unseen();
    }
}

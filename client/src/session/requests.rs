//! The requests of a limiter. Each is counted, and its outcome goes to the circuit breaker.

use std::collections::HashMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::{Instant, timeout};
use weirgate_shared::write::{Action, Update};
use weirgate_shared::{BucketKey, EpochMillis, ItemError, ItemKey, Meter, Shard, WriteId};
use weirgate_store::{
    Consistency, Item, Page, Position, Query, RetryPolicy, ReturnValues, ScanPage, StoreError,
    TransactOutcome, WriteOutcome,
};

use super::Session;
use super::circuit_breaker::{Sent, is_failure};
use crate::values::{Error, count};

/// Keys that one request reads at most, 100.
const READ_KEYS: usize = 100;
/// Time without a response after which a request counts as hanging, 1 s: a third of an attempt.
pub(crate) const HANGS_AFTER: Duration = Duration::from_secs(1);
/// Requests of one long read at once, 8.
const READS_AT_ONCE: usize = 8;
/// Refusals in a row by an item that did not change, from which on the next write would be refused
/// too: 4. A plan may guess once what other processes did since its view.
const MAX_REFUSALS: u32 = 4;

impl Session {
    /// Sends a planned write once. It returns the item.
    pub(crate) async fn update(&self, update: &Update) -> Result<WriteOutcome, StoreError> {
        let request = self.table.update(update, ReturnValues::AllNew);
        self.observed("UpdateItem", Sent::Write(&update.key.pk), request).await
    }

    /// Sends a planned write that is safe to repeat, and repeats it while its outcome is unknown, for the
    /// limiter's timeout. It returns the item.
    pub(crate) async fn update_idempotent(
        &self,
        update: &Update,
    ) -> Result<WriteOutcome, StoreError> {
        let request =
            self.table.update_with(update, ReturnValues::AllNew, RetryPolicy::AlsoUnconfirmed);
        let sent = self.recorded(Sent::Write(&update.key.pk), request);
        self.in_time("UpdateItem", sent).await
    }

    /// Sends a transaction once.
    pub(crate) async fn transact(
        &self,
        actions: &[Action],
        token: &WriteId,
    ) -> Result<TransactOutcome, StoreError> {
        let request = self.table.transact(actions, token);
        self.recorded(Sent::Transaction, request).await
    }

    /// Sends a transaction, and repeats it with the same token while its outcome is unknown, for the
    /// limiter's timeout.
    pub(crate) async fn transact_idempotent(
        &self,
        actions: &[Action],
        token: &WriteId,
    ) -> Result<TransactOutcome, StoreError> {
        let request = self.table.transact_with(actions, token, RetryPolicy::AlsoUnconfirmed);
        self.in_time("TransactWriteItems", self.recorded(Sent::Transaction, request)).await
    }

    /// Reads up to 100 items.
    pub(crate) async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Item>, StoreError> {
        let read = self.recorded(Sent::Read, self.table.read(keys));
        self.in_time("BatchGetItem", read).await
    }

    /// Awaits a request for the limiter's timeout.
    pub(crate) async fn in_time<T>(
        &self,
        request: &str,
        outcome: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let within = self.settings.timeout;
        let outcome = timeout(within, outcome).await;
        outcome.unwrap_or_else(|_| Err(self.env.no_answer(request, within)))
    }

    /// Reads any number of items, without missing ones: each request reads 100, and 8 are under way
    /// at once. No key may come twice.
    pub(crate) async fn read_many(
        &self,
        keys: &[ItemKey],
    ) -> Result<HashMap<ItemKey, Item>, StoreError> {
        let reads: Vec<_> = keys.chunks(READ_KEYS).map(|keys| self.read(keys)).collect();
        let batches: Vec<_> =
            stream::iter(reads).buffer_unordered(READS_AT_ONCE).try_collect().await?;
        let items = batches.into_iter().flatten();
        Ok(items.filter_map(|item| Some((item.key()?, item))).collect())
    }

    /// Reads up to 100 items with this consistency, while its caller waits. Repeats a throttled read until the
    /// deadline, if there is one.
    pub(crate) async fn read_with(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
        deadline: Option<Instant>,
    ) -> Result<Vec<Item>, StoreError> {
        self.recorded(Sent::Read, self.table.read_by(keys, consistency, deadline)).await
    }

    /// Reads one item once.
    pub(crate) async fn read_once(
        &self,
        key: &ItemKey,
        consistency: Consistency,
    ) -> Result<Option<Item>, StoreError> {
        let request = self.table.read_once(key, consistency);
        self.observed("BatchGetItem", Sent::Read, request).await
    }

    /// Reads one item once, to see what became of a write. The circuit breaker does not count it: a
    /// read that works does not show that writes do.
    pub(crate) async fn look_up(&self, key: &ItemKey) -> Result<Option<Item>, StoreError> {
        let request = self.table.read_once(key, Consistency::Strong);
        self.confirming(Sent::Read, request).await
    }

    /// Reads up to 100 items, including shards that were merged away.
    pub(crate) async fn read_with_merged(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Item>, StoreError> {
        let read = self.table.read_all(keys, consistency);
        self.in_time("BatchGetItem", self.recorded(Sent::Read, read)).await
    }

    /// Reads when windows were used of which a table in Redis has no record on its way any more; `None` for
    /// other tables, which are not asked.
    pub(crate) async fn delivered(
        &self,
        now: EpochMillis,
    ) -> Result<Option<Range<EpochMillis>>, StoreError> {
        if !self.table.is_in_redis() {
            return Ok(None);
        }
        let read = self.recorded(Sent::Read, self.table.delivered(now));
        self.in_time("XINFO", read).await
    }

    /// Reads one page of a listing.
    pub(crate) async fn query(
        &self,
        listing: Query<'_>,
        after: Option<&Position>,
    ) -> Result<Page, StoreError> {
        let read = self.recorded(Sent::Read, self.table.query(listing, after));
        self.in_time("Query", read).await
    }

    /// Reads all items of a list.
    pub(crate) async fn query_all(&self, listing: Query<'_>) -> Result<Vec<Item>, StoreError> {
        let (mut items, mut after) = (vec![], None);
        loop {
            let page = self.query(listing, after.as_ref()).await?;
            items.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok(items);
            }
        }
    }

    /// Reads one page of the whole table.
    pub(crate) async fn scan(
        &self,
        prefix: &str,
        limit: i32,
        after: Option<&Position>,
    ) -> Result<ScanPage, StoreError> {
        let read = self.recorded(Sent::Read, self.table.scan(prefix, limit, after));
        self.in_time("Scan", read).await
    }

    /// Returns the error of a read that its only caller gives up.
    ///
    /// How long a caller waits says nothing about DynamoDB. So the circuit breaker learns from another
    /// read of `key` whether DynamoDB answers, from one at a time.
    pub(crate) fn given_up(
        self: &Arc<Self>,
        request: &str,
        within: Duration,
        key: &ItemKey,
    ) -> StoreError {
        if let Ok(turn) = Arc::clone(&self.checking_reads).try_lock_owned() {
            let (session, key) = (Arc::clone(self), key.clone());
            // Only a runtime that shuts down drops the task.
            tokio::spawn(async move {
                session.check_reads(&key).await;
                drop(turn);
            });
        }
        self.env.no_answer(request, within)
    }

    /// Reads an item for the circuit breaker alone: a failure, if there is no response for
    /// [`HANGS_AFTER`].
    async fn check_reads(&self, key: &ItemKey) {
        let Ok(_permit) = self.breaker.admit() else {
            return;
        };
        let read = self.confirming(Sent::Read, self.table.read_once(key, Consistency::Eventual));
        let outcome = timeout(HANGS_AFTER, read).await;
        let outcome =
            outcome.unwrap_or_else(|_| Err(self.env.no_answer("BatchGetItem", HANGS_AFTER)));
        self.record(Sent::Read, outcome.as_ref().err());
    }

    /// Awaits a request that is sent once for many callers. The circuit breaker gets its outcome
    /// once: a failure, if there is no response for [`HANGS_AFTER`].
    async fn observed<T>(
        &self,
        operation: &str,
        sent: Sent<'_>,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut request = pin!(self.confirming(sent, request));
        if let Ok(outcome) = timeout(HANGS_AFTER, &mut request).await {
            self.record(sent, outcome.as_ref().err());
            return outcome;
        }
        self.record(sent, Some(&self.env.no_answer(operation, HANGS_AFTER)));
        let outcome = request.await;
        if !outcome.as_ref().is_err_and(|error| is_failure(error.kind)) {
            self.record(sent, outcome.as_ref().err());
        }
        outcome
    }

    async fn recorded<T>(
        &self,
        sent: Sent<'_>,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let outcome = self.confirming(sent, request).await;
        self.record(sent, outcome.as_ref().err());
        outcome
    }

    /// Counts a request and awaits it. Its response confirms the time.
    async fn confirming<T>(
        &self,
        sent: Sent<'_>,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let counters = &self.env.counters;
        let counter = match sent {
            Sent::Read => &counters.reads,
            Sent::Write(_) | Sent::Transaction => &counters.writes,
        };
        count(counter, 1);
        let jumps = self.env.ages.jumps();
        let outcome = request.await;
        if outcome.is_ok() {
            self.env.ages.confirm(jumps);
        }
        outcome
    }

    fn record(&self, sent: Sent<'_>, error: Option<&StoreError>) {
        if self.breaker.record(sent, error) {
            count(&self.env.counters.breaker_opened, 1);
        }
    }
}

/// Returns the shard in an item.
///
/// # Errors
/// [`Error::Unreadable`] if the item is damaged.
pub(crate) fn decode_shard(item: &Item) -> Result<Shard, Error> {
    item.bucket().map_err(|error| undecodable(item, error))
}

/// Reads the usage counters of an item, of a shard that was merged away too.
pub(crate) fn decode_meter(item: &Item) -> Result<Meter, Error> {
    item.live().map_err(|error| undecodable(item, error))
}

/// Returns the error for a damaged item of a shard.
pub(crate) fn undecodable(item: &Item, error: ItemError) -> Error {
    Error::Unreadable { bucket: item.pk(), error }
}

/// Refused writes of one call, or of one queue.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Version of the item that refused the last one; `None` if there was no item.
    version: Option<i64>,
    in_a_row: u32,
}

impl Refusals {
    /// Records a refusal by the item of this version, which each write raises.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the item has not changed for [`MAX_REFUSALS`]: a write is planned on
    /// the item as it is, so it would be planned in the same way again. The count begins again then.
    pub(crate) fn record(&mut self, key: &BucketKey, version: Option<i64>) -> Result<(), Error> {
        if self.version != version {
            self.in_a_row = 0;
        }
        (self.version, self.in_a_row) = (version, self.in_a_row + 1);
        if self.in_a_row < MAX_REFUSALS {
            return Ok(());
        }
        *self = Self::default();
        let bucket = key.item_key().pk;
        Err(Error::Invalid(format!(
            "bucket {bucket} must accept writes that are planned on it, got {MAX_REFUSALS} refusals without a \
             change: its item was written by other means, correct or delete it"
        )))
    }
}

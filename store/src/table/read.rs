//! Reads items, each request with a consistency, a deadline or a bound.

use aws_sdk_dynamodb::types::KeysAndAttributes;
use tokio::time::Instant;
use weirgate_shared::{ItemKey, read_key};

use super::on_backend;
use super::retry::{ATTEMPTS, backoff};
use crate::bound::Bound;
use crate::dynamo::DynamoTable;
use crate::request::Batch;
use crate::{Consistency, ErrorKind, Item, StoreError, Table, ThrottleReason, attribute};

/// The result of a read with a size limit.
#[derive(Debug, Clone, PartialEq)]
pub enum ReadWithin {
    /// The items.
    Items {
        /// The items.
        items: Vec<Item>,
        /// Size of the responses, in bytes.
        bytes: u64,
    },
    /// A response was larger than allowed.
    TooLarge {
        /// Size of the responses, in bytes, with the one that was not read.
        bytes: u64,
    },
}

impl Table {
    /// Reads at most 100 items, in no order, without missing ones. A shard that was merged away
    /// counts as missing.
    ///
    /// # Errors
    /// [`StoreError`] of the last of four attempts, also if DynamoDB kept some back each time.
    pub async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Item>, StoreError> {
        self.read_by(keys, Consistency::Strong, None).await
    }

    /// Runs [`Self::read`] with this consistency, and includes shards that were merged away: they
    /// still have usage counters.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_all(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Item>, StoreError> {
        self.read_until_complete(keys, consistency, None, None).await
    }

    /// Runs [`Self::read`] with this consistency. With a `deadline`, repeats a throttled read until
    /// then, only for the items still missing.
    ///
    /// # Errors
    /// As [`Self::read`], or the throttle that was met last before the deadline.
    pub async fn read_by(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
        deadline: Option<Instant>,
    ) -> Result<Vec<Item>, StoreError> {
        let mut items = self.read_until_complete(keys, consistency, deadline, None).await?;
        items.retain(|item| !item.is_merged());
        Ok(items)
    }

    /// Runs [`Self::read_all`] if no response of DynamoDB exceeds `most` bytes. Returns
    /// [`ReadWithin::TooLarge`] before the first byte of a larger one is read. Items of one size
    /// differ much in memory; their memory grows with the text of the response.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_within(&self, keys: &[ItemKey], most: u64) -> Result<ReadWithin, StoreError> {
        let bound = Bound::new(most);
        match self.read_until_complete(keys, Consistency::Strong, None, Some(&bound)).await {
            Ok(items) => Ok(ReadWithin::Items { items, bytes: bound.bytes() }),
            Err(_) if bound.is_passed() => Ok(ReadWithin::TooLarge { bytes: bound.bytes() }),
            Err(error) => Err(error),
        }
    }

    /// Reads one item in one request. A shard that was merged away counts as missing.
    ///
    /// # Errors
    /// [`StoreError`], also if DynamoDB kept the item back.
    pub async fn read_once(
        &self,
        key: &ItemKey,
        consistency: Consistency,
    ) -> Result<Option<Item>, StoreError> {
        let keys = std::slice::from_ref(key);
        let batch = on_backend!(self, table => table.read(keys, consistency, None))?;
        match batch.kept_back {
            Some((_, error)) => Err(error),
            None => Ok(batch.items.into_iter().find(|item| !item.is_merged())),
        }
    }

    pub(crate) async fn read_until_complete(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
        deadline: Option<Instant>,
        bound: Option<&Bound>,
    ) -> Result<Vec<Item>, StoreError> {
        let mut left = keys.to_vec();
        let (mut items, mut failures) = (vec![], 0);
        while !left.is_empty() {
            let batch = on_backend!(self, table => table.read(&left, consistency, bound));
            let failure = match batch {
                Ok(batch) => {
                    items.extend(batch.items);
                    let Some((kept_back, why)) = batch.kept_back else {
                        break;
                    };
                    left = kept_back;
                    why
                }
                Err(error) if bound.is_some_and(Bound::is_passed) => return Err(error),
                Err(error) if error.kind.is_transient() => error,
                Err(error) => return Err(error),
            };
            failures += 1;
            let until = deadline.filter(|_| failure.kind.is_throttle());
            let next = Instant::now() + backoff(failures);
            if until.map_or(failures == ATTEMPTS, |until| next >= until) {
                return Err(failure);
            }
            tracing::debug!(error = %failure, failures, "retrying");
            tokio::time::sleep_until(next).await;
        }
        Ok(items)
    }
}

impl DynamoTable {
    /// Sends one request for items.
    pub(crate) async fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
        bound: Option<&Bound>,
    ) -> Result<Batch, StoreError> {
        let is_strong = consistency == Consistency::Strong;
        let wanted = KeysAndAttributes::builder()
            .set_keys(Some(keys.iter().map(attribute::key).collect()))
            .consistent_read(is_strong)
            .build();
        let wanted = wanted.map_err(|error| self.refused("BatchGetItem", error.into()))?;
        let request = self.client.batch_get_item().request_items(&self.name, wanted);
        let request = request.set_return_consumed_capacity(self.report());
        let found = match bound {
            Some(bound) => request.customize().interceptor(bound.clone()).send().await,
            None => request.send().await,
        };
        let mut found = found.map_err(|error| self.failed("BatchGetItem".to_owned(), error))?;
        if let Some(meter) = &self.meter {
            found.consumed_capacity().iter().for_each(|capacity| meter.count_read(capacity));
        }
        let items =
            found.responses.take().unwrap_or_default().into_values().flatten().map(Item).collect();
        let kept_back = found.unprocessed_keys.take().unwrap_or_default();
        let kept_back: Vec<_> = kept_back
            .into_values()
            .flat_map(|more| more.keys)
            .filter_map(|key| read_key(Item(key).attributes()))
            .collect();
        let kept_back = (!kept_back.is_empty()).then(|| {
            let why = self.kept_back(kept_back.len());
            (kept_back, why)
        });
        Ok(Batch { items, kept_back })
    }

    /// Returns the error for items that DynamoDB left unprocessed because their partitions are over
    /// their throughput.
    fn kept_back(&self, items: usize) -> StoreError {
        self.throttled(ThrottleReason::KeyRange);
        let kind = ErrorKind::Throttled { key_range: true };
        StoreError {
            kind,
            ..self.refused("BatchGetItem", format!("DynamoDB kept {items} items back").into())
        }
    }
}

//! Reads items, each request with a consistency, a deadline or a bound.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use tokio::time::Instant;
use weirgate_shared::ItemKey;

use super::boxed;
use super::retry::{ATTEMPTS, jitter};
use crate::bound::Bound;
use crate::{ErrorKind, Item, StoreError, Table, ThrottleReason, attribute};

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

/// Consistency of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Current items: one read unit for each 4 KB.
    Strong,
    /// Items as of a short time ago, usually within a second: half a unit for each 4 KB. Enough to
    /// plan a write, whose condition detects a changed item.
    Eventual,
}

type Key = HashMap<String, AttributeValue>;

/// The response of one `BatchGetItem`.
struct Batch {
    items: Vec<Item>,
    kept_back: Vec<Key>,
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
        self.read_until_complete(keys, consistency, None, None)
            .await
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
        let mut items = self
            .read_until_complete(keys, consistency, deadline, None)
            .await?;
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
        match self
            .read_until_complete(keys, Consistency::Strong, None, Some(&bound))
            .await
        {
            Ok(items) => Ok(ReadWithin::Items {
                items,
                bytes: bound.bytes(),
            }),
            Err(_) if bound.is_passed() => Ok(ReadWithin::TooLarge {
                bytes: bound.bytes(),
            }),
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
        let batch = self
            .batch(vec![attribute::key(key)], consistency, None)
            .await?;
        if !batch.kept_back.is_empty() {
            return Err(self.kept_back(batch.kept_back.len()));
        }
        Ok(batch.items.into_iter().find(|item| !item.is_merged()))
    }

    pub(crate) async fn read_until_complete(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
        deadline: Option<Instant>,
        bound: Option<&Bound>,
    ) -> Result<Vec<Item>, StoreError> {
        let mut left: Vec<_> = keys.iter().map(attribute::key).collect();
        let (mut items, mut failures) = (vec![], 0);
        while !left.is_empty() {
            let failure = match self.batch(left.clone(), consistency, bound).await {
                Ok(batch) => {
                    items.extend(batch.items);
                    left = batch.kept_back;
                    if left.is_empty() {
                        break;
                    }
                    self.kept_back(left.len())
                }
                Err(error) if bound.is_some_and(Bound::is_passed) => return Err(error),
                Err(error) if error.kind.is_transient() => error,
                Err(error) => return Err(error),
            };
            failures += 1;
            let until = deadline.filter(|_| failure.kind.is_throttle());
            let next = Instant::now() + jitter(failures);
            if until.map_or(failures == ATTEMPTS, |until| next >= until) {
                return Err(failure);
            }
            tracing::debug!(error = %failure, failures, "retrying");
            tokio::time::sleep_until(next).await;
        }
        Ok(items)
    }

    /// Sends one request for items.
    async fn batch(
        &self,
        keys: Vec<Key>,
        consistency: Consistency,
        bound: Option<&Bound>,
    ) -> Result<Batch, StoreError> {
        #[cfg(feature = "memory")]
        if let Some(memory) = &self.memory {
            memory.reach("BatchGetItem")?;
            return Ok(Batch {
                items: memory.read(&keys),
                kept_back: vec![],
            });
        }
        let is_strong = consistency == Consistency::Strong;
        let wanted = KeysAndAttributes::builder()
            .set_keys(Some(keys))
            .consistent_read(is_strong)
            .build();
        let wanted = wanted.map_err(|error| self.refused("BatchGetItem", error.into()))?;
        let request = self
            .client
            .batch_get_item()
            .request_items(&self.name, wanted);
        let request = request.set_return_consumed_capacity(self.report());
        let found = match bound {
            Some(bound) => boxed(request.customize().interceptor(bound.clone()).send()).await,
            None => boxed(request.send()).await,
        };
        let mut found = found.map_err(|error| self.failed("BatchGetItem".to_owned(), error))?;
        if let Some(meter) = &self.meter {
            found
                .consumed_capacity()
                .iter()
                .for_each(|capacity| meter.count_read(capacity));
        }
        let items = found
            .responses
            .take()
            .unwrap_or_default()
            .into_values()
            .flatten()
            .map(Item)
            .collect();
        let kept_back = found.unprocessed_keys.take().unwrap_or_default();
        Ok(Batch {
            items,
            kept_back: kept_back.into_values().flat_map(|more| more.keys).collect(),
        })
    }

    /// Returns the error for items that DynamoDB left unprocessed because their partitions are over
    /// their throughput.
    fn kept_back(&self, items: usize) -> StoreError {
        self.throttled(ThrottleReason::KeyRange);
        let kind = ErrorKind::Throttled { key_range: true };
        StoreError {
            kind,
            ..self.refused(
                "BatchGetItem",
                format!("DynamoDB kept {items} items back").into(),
            )
        }
    }
}

//! Runs planned writes and reads against one table.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, KeysAndAttributes, ReturnConsumedCapacity, ReturnValue,
    ReturnValuesOnConditionCheckFailure,
};
use tokio::time::Instant;
use weirgate_shared::ItemKey;
use weirgate_shared::write::Update;

use crate::bound::Bound;
use crate::{
    CapacityMeter, Connection, CorrectedClock, ErrorKind, Item, StoreError, attribute, expression,
};

/// The outcome of a planned write.
#[derive(Debug, Clone, PartialEq)]
pub enum WriteOutcome {
    /// The write was applied; the item as it is now, if it was requested.
    Applied(Option<Item>),
    /// A condition did not hold; the item as it was, if there is one. A shard that was merged away
    /// counts as missing.
    ConditionFailed(Option<Item>),
}

/// Whether a write returns the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnValues {
    /// Returns the new item.
    AllNew,
    /// Returns no new item.
    None,
    /// Returns no item, even if a condition failed: for items of any size.
    Never,
}

/// Which failed requests are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Retries requests that were certainly not applied.
    IfNotApplied,
    /// Also retries unconfirmed requests: only for reads, and for writes whose condition makes a
    /// second time harmless.
    AlsoUnconfirmed,
    /// Like `AlsoUnconfirmed`, but without retries for a throttled key range of the item: the
    /// application has other items to write in the meantime.
    Elsewhere,
}

impl RetryPolicy {
    /// Returns whether a planned write that failed with this kind is sent again.
    pub(crate) fn of_plans(self) -> impl Fn(ErrorKind) -> bool {
        move |kind| match kind {
            ErrorKind::ClockSkew => false,
            ErrorKind::Throttled { key_range: true } => self != Self::Elsewhere,
            kind => kind.is_transient() && (kind.was_not_applied() || self != Self::IfNotApplied),
        }
    }
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

const ATTEMPTS: u32 = 4;
const FIRST_DELAY: Duration = Duration::from_millis(25);

/// One table. Clones are cheap and share the connection.
#[derive(Debug, Clone)]
pub struct Table {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) meter: Option<CapacityMeter>,
    skew: CorrectedClock,
}

impl Table {
    /// Returns the table `name`, reached through a client.
    #[must_use]
    pub fn new(Connection { client, skew }: Connection, name: impl Into<String>) -> Self {
        Self {
            client,
            name: name.into(),
            meter: None,
            skew,
        }
    }

    /// Requests the capacity of every request from DynamoDB, and adds it up in `meter`.
    #[must_use]
    pub fn with_meter(mut self, meter: CapacityMeter) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the region that requests are signed for, if it is known.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.client.config().region().map(AsRef::as_ref)
    }

    /// Returns the connection's clock, corrected by every response.
    #[must_use]
    pub const fn skew(&self) -> &CorrectedClock {
        &self.skew
    }

    /// Runs a planned write once.
    ///
    /// # Errors
    /// [`StoreError`] if it could not be decided; its kind says whether the write may have been
    /// applied.
    pub async fn update(
        &self,
        update: &Update,
        answer: ReturnValues,
    ) -> Result<WriteOutcome, StoreError> {
        let rendered = expression::render(update);
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .set_key(Some(attribute::key(&update.key)))
            .update_expression(rendered.update)
            .set_condition_expression(rendered.condition)
            .set_expression_attribute_names(Some(rendered.names))
            .set_expression_attribute_values(
                (!rendered.values.is_empty()).then_some(rendered.values),
            )
            .return_values(if answer == ReturnValues::AllNew {
                ReturnValue::AllNew
            } else {
                ReturnValue::None
            })
            .return_values_on_condition_check_failure(match answer {
                ReturnValues::AllNew | ReturnValues::None => {
                    ReturnValuesOnConditionCheckFailure::AllOld
                }
                ReturnValues::Never => ReturnValuesOnConditionCheckFailure::None,
            })
            .set_return_consumed_capacity(self.report());
        // Boxed because the SDK's futures are large, and deep enough to reach the compiler's
        // recursion limit in an application.
        match Box::pin(request.send()).await {
            Ok(done) => {
                self.count(done.consumed_capacity());
                Ok(WriteOutcome::Applied(done.attributes.map(Item)))
            }
            Err(SdkError::ServiceError(service))
                if service.err().is_conditional_check_failed_exception() =>
            {
                let UpdateItemError::ConditionalCheckFailedException(lost) = service.into_err()
                else {
                    unreachable!("the guard has seen that it is this one");
                };
                let old = lost.item.map(Item);
                if let Some(meter) = &self.meter {
                    meter.count_lost(old.as_ref());
                }
                Ok(WriteOutcome::ConditionFailed(
                    old.filter(|item| !item.is_merged()),
                ))
            }
            Err(error) => Err(StoreError::new(
                &self.name,
                format!("UpdateItem of {} {}", update.key.pk, update.key.sk),
                error,
            )),
        }
    }

    /// Runs a planned write, with at most four attempts, and a pause before each retry that `retry`
    /// allows. Does not retry if the clock was off: the plan used that clock, so plan again.
    ///
    /// # Errors
    /// [`StoreError`] of the last attempt.
    pub async fn update_with(
        &self,
        update: &Update,
        answer: ReturnValues,
        retry: RetryPolicy,
    ) -> Result<WriteOutcome, StoreError> {
        self.again(retry.of_plans(), || self.update(update, answer))
            .await
    }

    /// Reads at most 100 items, in no order, without missing ones. A shard that was merged away
    /// counts as missing.
    ///
    /// # Errors
    /// [`StoreError`] of the last of four attempts, also if DynamoDB kept some back each time.
    pub async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Item>, StoreError> {
        self.read_by(keys, Consistency::Strong, None).await
    }

    /// Runs [`Self::read`], and includes shards that were merged away: they still have usage
    /// counters.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_all(&self, keys: &[ItemKey]) -> Result<Vec<Item>, StoreError> {
        self.read_until_complete(keys, Consistency::Strong, None, None)
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
            tracing::debug!(error = %failure, failures, "trying again");
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
            Some(bound) => Box::pin(request.customize().interceptor(bound.clone()).send()).await,
            None => Box::pin(request.send()).await,
        };
        let mut found =
            found.map_err(|error| StoreError::new(&self.name, "BatchGetItem".to_owned(), error))?;
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
        let kind = ErrorKind::Throttled { key_range: true };
        StoreError {
            kind,
            ..self.refused(
                "BatchGetItem",
                format!("DynamoDB kept {items} items back").into(),
            )
        }
    }

    /// Reads one item that need not exist: opens the connection, and checks early that the table
    /// exists.
    ///
    /// # Errors
    /// [`StoreError`] if it could not be read.
    pub async fn warm(&self) -> Result<(), StoreError> {
        let key = ItemKey {
            pk: "-/SYSTEM#".to_owned(),
            sk: "#VERSION".to_owned(),
        };
        let request = self
            .client
            .get_item()
            .table_name(&self.name)
            .set_key(Some(attribute::key(&key)));
        request
            .send()
            .await
            .map_err(|error| StoreError::new(&self.name, "GetItem".to_owned(), error))?;
        Ok(())
    }

    pub(crate) async fn again<T, F>(
        &self,
        may: impl Fn(ErrorKind) -> bool,
        request: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut attempt = 1;
        loop {
            match request().await {
                Err(error) if attempt < ATTEMPTS && may(error.kind) => {
                    tracing::debug!(%error, attempt, "trying again");
                    pause(attempt).await;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    pub(crate) fn report(&self) -> Option<ReturnConsumedCapacity> {
        self.meter.as_ref().map(|_| ReturnConsumedCapacity::Indexes)
    }

    pub(crate) fn count(&self, consumed: Option<&aws_sdk_dynamodb::types::ConsumedCapacity>) {
        if let Some(meter) = &self.meter {
            meter.count(consumed);
        }
    }

    fn refused(
        &self,
        request: &str,
        reason: Box<dyn std::error::Error + Send + Sync>,
    ) -> StoreError {
        StoreError {
            kind: ErrorKind::Throttled { key_range: false },
            request: request.to_owned(),
            table: self.name.clone(),
            reason: reason.to_string(),
            source: Some(reason),
        }
    }
}

async fn pause(attempt: u32) {
    tokio::time::sleep(jitter(attempt)).await;
}

/// Returns a pause with full jitter, doubling: 0 to 25 ms, 0 to 50 ms, 0 to 100 ms, up to 0 to 800
/// ms.
fn jitter(attempt: u32) -> Duration {
    let most = FIRST_DELAY.saturating_mul(1 << attempt.saturating_sub(1).min(5));
    Duration::from_micros(fastrand::u64(
        0..=u64::try_from(most.as_micros()).unwrap_or(u64::MAX),
    ))
}

//! One table, and the requests that are sent to it.
//!
//! - `update`: runs a planned write of one item
//! - `read`: reads items
//! - `retry`: which failed requests are sent again, and when

mod read;
mod retry;
mod update;

use std::error::Error;
use std::pin::Pin;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{ConsumedCapacity, ReturnConsumedCapacity};
use weirgate_shared::ItemKey;

use crate::error::throttle_reason;
use crate::request_endpoint::RequestEndpoint;
use crate::{
    CapacityMeter, Connection, CorrectedClock, ErrorKind, StoreError, ThrottleMeter,
    ThrottleReason, attribute,
};

pub use read::{Consistency, ReadWithin};
pub use retry::RetryPolicy;
pub use update::{ReturnValues, WriteOutcome};

/// Returns a request in a box, without its type: the SDK's futures are large, and so deep that those of an
/// application around them would reach the compiler's recursion limit.
pub(crate) fn boxed<'r, T>(
    request: impl Future<Output = T> + Send + 'r,
) -> Pin<Box<dyn Future<Output = T> + Send + 'r>> {
    Box::pin(request)
}

/// One table. Clones are cheap and share the connection.
#[derive(Debug, Clone)]
pub struct Table {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) meter: Option<CapacityMeter>,
    throttles: Option<ThrottleMeter>,
    skew: CorrectedClock,
    endpoint: RequestEndpoint,
    /// Table in memory that answers instead of DynamoDB.
    #[cfg(feature = "memory")]
    pub(crate) memory: Option<crate::MemoryTable>,
}

impl Table {
    /// Returns the table `name`, reached through a client.
    #[must_use]
    pub fn new(connection: Connection, name: impl Into<String>) -> Self {
        let Connection {
            client,
            skew,
            endpoint,
        } = connection;
        Self {
            client,
            name: name.into(),
            meter: None,
            throttles: None,
            skew,
            endpoint,
            #[cfg(feature = "memory")]
            memory: None,
        }
    }

    /// Returns a table in memory, as a process with this clock reaches it.
    #[cfg(feature = "memory")]
    #[must_use]
    pub fn in_memory(memory: &crate::MemoryTable, clock: impl crate::Clock + 'static) -> Self {
        // No request gets as far as the client of this connection.
        let options = crate::ConnectOptions {
            local_endpoint: Some("http://memory.invalid".to_owned()),
            clock: std::sync::Arc::new(clock),
            ..crate::ConnectOptions::default()
        };
        Self {
            memory: Some(memory.clone()),
            ..Self::new(crate::connect_with(options, |_| None), "in-memory")
        }
    }

    /// Requests the capacity of every request from DynamoDB, and adds it up in `meter`.
    #[must_use]
    pub fn with_meter(mut self, meter: CapacityMeter) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Counts every throttled request in `throttles`, each retry as well.
    #[must_use]
    pub fn with_throttle_meter(mut self, throttles: ThrottleMeter) -> Self {
        self.throttles = Some(throttles);
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

    /// Reads one item that need not exist: opens the connection, and checks early that the table
    /// exists.
    ///
    /// # Errors
    /// [`StoreError`] if it could not be read.
    pub async fn warm(&self) -> Result<(), StoreError> {
        #[cfg(feature = "memory")]
        if let Some(memory) = &self.memory {
            return memory.reach("GetItem");
        }
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
            .map_err(|error| self.failed("GetItem".to_owned(), error))?;
        Ok(())
    }

    pub(crate) fn report(&self) -> Option<ReturnConsumedCapacity> {
        self.meter.as_ref().map(|_| ReturnConsumedCapacity::Indexes)
    }

    pub(crate) fn count(&self, consumed: Option<&ConsumedCapacity>) {
        if let Some(meter) = &self.meter {
            meter.count(consumed);
        }
    }

    /// Returns the error of a request, and counts it if it was throttled.
    pub(crate) fn failed<E>(&self, request: String, error: SdkError<E>) -> StoreError
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        if let Some(reason) = throttle_reason(&error) {
            self.throttled(reason);
        }
        StoreError::new(&self.name, self.endpoint.text(), request, error)
    }

    pub(crate) fn throttled(&self, reason: ThrottleReason) {
        if let Some(throttles) = &self.throttles {
            throttles.count(reason);
        }
    }

    fn refused(&self, request: &str, reason: Box<dyn Error + Send + Sync>) -> StoreError {
        StoreError {
            kind: ErrorKind::Throttled { key_range: false },
            request: request.to_owned(),
            table: self.name.clone(),
            reason: reason.to_string(),
            source: Some(reason),
        }
    }
}

//! A table in DynamoDB, and what all requests to it have in common.

use std::error::Error;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{ConsumedCapacity, ReturnConsumedCapacity};
use weirgate_shared::ItemKey;

use crate::error::throttle_reason;
use crate::request_endpoint::RequestEndpoint;
use crate::{
    CapacityMeter, Connection, ErrorKind, StoreError, ThrottleMeter, ThrottleReason, attribute,
};

/// A table in DynamoDB.
#[derive(Debug, Clone)]
pub(crate) struct DynamoTable {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) meter: Option<CapacityMeter>,
    pub(crate) throttles: Option<ThrottleMeter>,
    pub(crate) endpoint: RequestEndpoint,
}

impl DynamoTable {
    pub(crate) fn new(connection: Connection, name: String) -> Self {
        Self {
            client: connection.client,
            name,
            meter: None,
            throttles: None,
            endpoint: connection.endpoint,
        }
    }

    pub(crate) async fn warm(&self) -> Result<(), StoreError> {
        let key = ItemKey { pk: "-/SYSTEM#".to_owned(), sk: "#VERSION".to_owned() };
        let request =
            self.client.get_item().table_name(&self.name).set_key(Some(attribute::key(&key)));
        request.send().await.map_err(|error| self.failed("GetItem".to_owned(), error))?;
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

    pub(crate) fn refused(
        &self,
        request: &str,
        reason: Box<dyn Error + Send + Sync>,
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

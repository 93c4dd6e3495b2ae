//! The URL of DynamoDB, as requests are sent to it.

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;

/// The endpoint of the last request, for errors. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastEndpoint(Arc<Mutex<String>>);

impl LastEndpoint {
    /// Returns its URL, or an empty text before the first request.
    pub(crate) fn text(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Intercept for LastEndpoint {
    fn name(&self) -> &'static str {
        "LastEndpoint"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let url = context.request().uri().trim_end_matches('/');
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != url {
            url.clone_into(&mut last);
        }
        Ok(())
    }
}

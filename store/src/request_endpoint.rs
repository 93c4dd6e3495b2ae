//! The URL of DynamoDB, as requests are sent to it.

use std::sync::{Arc, OnceLock};

use aws_sdk_dynamodb::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;

/// The endpoint of the first request, which is that of all, for errors. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestEndpoint(Arc<OnceLock<String>>);

impl RequestEndpoint {
    /// Returns its URL, or an empty text before the first request.
    pub(crate) fn text(&self) -> &str {
        self.0.get().map_or("", String::as_str)
    }
}

impl Intercept for RequestEndpoint {
    fn name(&self) -> &'static str {
        "RequestEndpoint"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.get_or_init(|| context.request().uri().trim_end_matches('/').to_owned());
        Ok(())
    }
}

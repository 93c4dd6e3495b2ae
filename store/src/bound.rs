//! Responses that are rejected for their size before they are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;

/// Maximum bytes of a response. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    most: u64,
    bytes: Arc<AtomicU64>,
    largest: Arc<AtomicU64>,
}

impl Bound {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, bytes: Arc::default(), largest: Arc::default() }
    }

    /// Counts a response. Returns why it is rejected, if so.
    pub(crate) fn count(&self, bytes: u64) -> Result<(), String> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.largest.fetch_max(bytes, Ordering::Relaxed);
        match bytes > self.most {
            true => Err(format!("the answer has {bytes} bytes, more than {}", self.most)),
            false => Ok(()),
        }
    }

    /// Returns the size of all responses, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether a response was rejected.
    pub(crate) fn is_passed(&self) -> bool {
        self.largest.load(Ordering::Relaxed) > self.most
    }
}

impl Intercept for Bound {
    fn name(&self) -> &'static str {
        "Bound"
    }

    /// At this point the length of the response is known, and its body is not read yet.
    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let bytes = context.response().body().content_length().unwrap_or_default();
        Ok(self.count(bytes)?)
    }
}

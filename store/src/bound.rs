//! Responses that are rejected for their size before they are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;

use weirgate_shared::ItemKey;

use crate::{Consistency, Item, StoreError, Table};

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
}

/// Maximum bytes of a response. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    most: u64,
    bytes: Arc<AtomicU64>,
    largest: Arc<AtomicU64>,
}

impl Bound {
    pub(crate) fn new(most: u64) -> Self {
        Self {
            most,
            bytes: Arc::default(),
            largest: Arc::default(),
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
        let bytes = context
            .response()
            .body()
            .content_length()
            .unwrap_or_default();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.largest.fetch_max(bytes, Ordering::Relaxed);
        if bytes > self.most {
            return Err(format!("the answer has {bytes} bytes, more than {}", self.most).into());
        }
        Ok(())
    }
}

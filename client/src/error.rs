//! What keeps the limiter from deciding. A denial is no error: see [`crate::Decision`].

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{ItemError, LimitError, NameError};
use weirgate_store::{ErrorKind, StoreError};

/// A decision could not be made. Nothing was taken, unless [`Error::is_unknown`] says that it may have been.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The request breaks a rule; nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// DynamoDB refused, or did not answer.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// No decision within the time allowed for one; the last error, if there was one, says why.
    #[error("no decision on bucket {bucket} within {after:?}{}", last.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
    Timeout {
        /// The bucket's partition key.
        bucket: String,
        /// The time allowed: see [`crate::Builder::timeout`].
        after: Duration,
        /// The last error met.
        last: Option<Arc<StoreError>>,
    },
    /// Nothing was sent: the last requests had no answer, so DynamoDB is left alone for a while.
    #[error("DynamoDB is away, and not asked for {retry_after:?} more: {last}")]
    Away {
        /// Until it is asked again.
        retry_after: Duration,
        /// The failure after which it was left alone.
        last: String,
    },
    /// The bucket's item cannot be read. Somebody else has written to it.
    #[error("bucket {bucket} cannot be read: {error}; correct or delete the item")]
    Unreadable {
        /// The bucket's partition key.
        bucket: String,
        /// What is wrong with it.
        error: ItemError,
    },
}

impl Error {
    /// Whether the write may have been applied all the same.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Store(error) => error.kind == ErrorKind::Unknown,
            Self::Timeout { last, .. } => last.as_ref().is_some_and(|error| error.kind == ErrorKind::Unknown),
            Self::Invalid(_) | Self::Unreadable { .. } | Self::Away { .. } => false,
        }
    }

    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient(),
            Self::Timeout { .. } | Self::Away { .. } => true,
            Self::Invalid(_) | Self::Unreadable { .. } => false,
        }
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<LimitError> for Error {
    fn from(error: LimitError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

//! What keeps the limiter from deciding. A denial is no error: see [`crate::Decision`].

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{ConfigError, EntityId, ItemError, LimitError, NameError, Resource};
use weirgate_store::{ErrorKind, StoreError};

/// A decision could not be made. Nothing was taken, unless [`Error::is_unknown`] says that it may
/// have been.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The request breaks a rule; nothing was changed.
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
    Unavailable {
        /// Until it is asked again.
        retry_after: Duration,
        /// The failure after which it was left alone.
        last: String,
    },
    /// No limits were given, and no level has a configuration.
    #[error(
        "no limits are configured for entity {entity} on resource {resource}: set_config() for one of them, their resource or the system, or give limits()"
    )]
    NotConfigured {
        /// Who is limited.
        entity: EntityId,
        /// On what.
        resource: Resource,
    },
    /// The namespace is written in another version of the schema than this code knows.
    #[error(
        "namespace {namespace} is of schema version {found}, this limiter knows {supported}: use one that knows {found}"
    )]
    UnsupportedSchema {
        /// The namespace.
        namespace: String,
        /// The version it is of.
        found: i64,
        /// The version that this code reads and writes.
        supported: i64,
    },
    /// Others changed the same thing all the time; nothing was changed.
    #[error("{what} was changed by others again and again for {after:?}: try again")]
    Contended {
        /// What was to be changed.
        what: String,
        /// The time allowed: see [`crate::Builder::timeout`].
        after: Duration,
    },
    /// An item of what is configured cannot be read. Somebody else has written to it.
    #[error("item {pk} {sk} cannot be read: {error}; correct or delete it")]
    UnreadableItem {
        /// Its partition key.
        pk: String,
        /// Its sort key.
        sk: String,
        /// What is wrong with it.
        error: ItemError,
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
            Self::Store(error) => error.kind == ErrorKind::Unconfirmed,
            Self::Timeout { last, .. } => last
                .as_ref()
                .is_some_and(|error| error.kind == ErrorKind::Unconfirmed),
            _ => false,
        }
    }

    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient(),
            Self::Timeout { .. } | Self::Unavailable { .. } | Self::Contended { .. } => true,
            _ => false,
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

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

//! Errors that prevent a decision. A denial is no error: see [`crate::Decision`].

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{
    BucketKey, ConfigError, EntityId, ItemError, LimitError, NameError, PlanName, Resource,
    WindowError, rounded_span,
};
use weirgate_store::{ErrorKind, StoreError};

/// A decision could not be made. Nothing was taken, unless [`Error::is_unknown`] returns true.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The request is invalid; nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// DynamoDB rejected a request, or did not respond.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// No decision within the time allowed; `last` has the reason, if there was an error.
    #[error("no decision on bucket {bucket} within {}{}", rounded_span(*after), last.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
    Timeout {
        /// The bucket's partition key.
        bucket: String,
        /// The time allowed: see [`crate::Builder::timeout`].
        after: Duration,
        /// The last error, if there was one.
        last: Option<Arc<StoreError>>,
    },
    /// Nothing was sent, because the circuit breaker is open after failed requests.
    #[error("the table is unavailable; circuit breaker open for another {}: {last}", rounded_span(*retry_after))]
    Unavailable {
        /// Time until the next attempt.
        retry_after: Duration,
        /// The failure that opened the circuit breaker.
        last: String,
    },
    /// No limits were given, and no limit level has a configuration. It is remembered for a second.
    #[error(
        "no limits are configured for entity {entity}{} on resource {resource}: run `weirgate limits set {} rpm=600/minute`, or give limits with the call",
        missing_plan.as_ref().map(|plan| format!(", whose plan {plan} does not exist,")).unwrap_or_default(),
        missing_plan.as_ref().map_or_else(|| format!("--resource {resource}"), |plan| format!("--plan {plan}"))
    )]
    NotConfigured {
        /// The entity.
        entity: EntityId,
        /// The resource.
        resource: Resource,
        /// Plan of the entity, if no level of it has a configuration.
        missing_plan: Option<PlanName>,
    },
    /// The namespace has a schema version that this code does not support.
    #[error(
        "namespace {namespace} has schema version {found}, this limiter supports {supported}: use a limiter that supports {found}"
    )]
    UnsupportedSchema {
        /// The namespace.
        namespace: String,
        /// Its schema version.
        found: i64,
        /// The schema version that this code reads and writes.
        supported: i64,
    },
    /// The deployed functions are not known to know quotas, and a limit is one. Older functions would
    /// neither split the bucket nor count its usage. It is remembered for 5 s.
    #[error(
        "namespace {namespace} cannot have quotas: no item FUNCTIONS, which this principal may read, says that the deployed functions know them: deploy the stack of this release, and wait for one run of the reconciler"
    )]
    FunctionsTooOld {
        /// The namespace.
        namespace: String,
    },
    /// Other processes kept changing the same item; nothing was changed.
    #[error("{what} was changed by other processes for {}, before each attempt: try again", rounded_span(*after))]
    Contended {
        /// The item to be changed.
        what: String,
        /// The time allowed: see [`crate::Builder::timeout`].
        after: Duration,
    },
    /// One of several writes failed after others of the same call were applied.
    #[error("{0}; other writes of this call were applied")]
    Halfway(Arc<Error>),
    /// A configuration item cannot be read, because it was changed by other means.
    #[error("item {pk} {sk} cannot be read: {error}; correct or delete it")]
    UnreadableItem {
        /// Its partition key.
        pk: String,
        /// Its sort key.
        sk: String,
        /// The decoding error.
        error: ItemError,
    },
    /// A bucket's item cannot be read, because it was changed by other means.
    #[error("bucket {bucket} cannot be read: {error}; correct or delete the item")]
    Unreadable {
        /// The bucket's partition key.
        bucket: String,
        /// The decoding error.
        error: ItemError,
    },
}

impl Error {
    /// Returns the error of a call of which other writes were applied, if `is_begun`.
    pub(crate) fn halfway(self, is_begun: bool) -> Self {
        match is_begun && !self.is_unknown() {
            true => Self::Halfway(Arc::new(self)),
            false => self,
        }
    }

    /// Returns whether the outcome of a write is not known, so nothing knows what a grant has.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.is_unknown() && !matches!(self, Self::Halfway(_))
    }

    /// Returns the error of a decision that took longer than `after`; `last` is the last error.
    pub(crate) fn timeout(
        bucket: &BucketKey,
        after: Duration,
        last: Option<Arc<StoreError>>,
    ) -> Self {
        let bucket = bucket.item_key().pk;
        Self::Timeout { bucket, after, last }
    }

    /// Returns a short name for traces and logs, from a small fixed set: `invalid`,
    /// `not_configured`, `unsupported_schema`, `functions_too_old`, `contended`, `timeout`, `unavailable`,
    /// `unreadable`; and of DynamoDB's errors `throttled`, `conflict`, `unreachable`, `clock_skew`,
    /// `unconfirmed`, `access_denied`, `missing_credentials`, `credentials_unavailable`,
    /// `table_not_found`, `refused`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::Store(error) => store_name(error.kind),
            Self::Halfway(error) => error.name(),
            Self::Timeout { .. } => "timeout",
            Self::Unavailable { .. } => "unavailable",
            Self::NotConfigured { .. } => "not_configured",
            Self::UnsupportedSchema { .. } => "unsupported_schema",
            Self::FunctionsTooOld { .. } => "functions_too_old",
            Self::Contended { .. } => "contended",
            Self::UnreadableItem { .. } | Self::Unreadable { .. } => "unreadable",
        }
    }

    /// Returns whether a write was applied, or may have been, anyway.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Store(error) => is_unconfirmed_write(error),
            Self::Timeout { last, .. } => last.as_deref().is_some_and(is_unconfirmed_write),
            Self::Halfway(_) => true,
            _ => false,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient(),
            Self::Timeout { .. } | Self::Unavailable { .. } | Self::Contended { .. } => true,
            Self::Halfway(error) => error.is_transient(),
            _ => false,
        }
    }
}

fn is_unconfirmed_write(error: &StoreError) -> bool {
    error.kind == ErrorKind::Unconfirmed && !error.is_read()
}

const fn store_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Throttled { .. } | ErrorKind::IndexThrottled => "throttled",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::ClockSkew => "clock_skew",
        ErrorKind::Unconfirmed => "unconfirmed",
        ErrorKind::AccessDenied => "access_denied",
        ErrorKind::MissingCredentials => "missing_credentials",
        ErrorKind::CredentialsUnavailable => "credentials_unavailable",
        ErrorKind::TableNotFound => "table_not_found",
        ErrorKind::Invalid | ErrorKind::Rejected => "refused",
    }
}

/// Returns the error of an invalid request.
pub(crate) fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::Invalid(message))
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

impl From<WindowError> for Error {
    fn from(error: WindowError) -> Self {
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

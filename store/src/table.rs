//! One table, and the requests that are sent to it.
//!
//! - `update`: runs a planned write of one item
//! - `read`: reads items
//! - `retry`: which failed requests are sent again, and when

mod read;
mod retry;
mod update;

use std::ops::Range;
use std::pin::Pin;

use weirgate_shared::EpochMillis;

use crate::dynamo::DynamoTable;
use crate::{CapacityMeter, Connection, CorrectedClock, StoreError, ThrottleMeter};

pub use read::ReadWithin;
pub use retry::{RetryPolicy, backoff};

/// Returns a request in a box, without its type: they are large, and so deep that those of an application
/// around them would reach the compiler's recursion limit.
pub(crate) fn boxed<'r, T>(
    request: impl Future<Output = T> + Send + 'r,
) -> Pin<Box<dyn Future<Output = T> + Send + 'r>> {
    Box::pin(request)
}

/// One table. Clones are cheap and share the connection.
#[derive(Debug, Clone)]
pub struct Table {
    pub(crate) name: String,
    pub(crate) backend: Backend,
    skew: CorrectedClock,
}

/// What answers the requests. All have the same methods, see [`on_backend`].
#[derive(Debug, Clone)]
pub(crate) enum Backend {
    DynamoDb(Box<DynamoTable>),
    #[cfg(feature = "memory")]
    Memory(crate::MemoryTable),
    #[cfg(feature = "redis")]
    Redis(crate::redis::RedisTable),
}

/// Sends a request to the backend of a table: `on_backend!(self, table => table.warm())`.
macro_rules! on_backend {
    ($of:expr, $table:ident => $request:expr) => {
        match &$of.backend {
            crate::table::Backend::DynamoDb($table) => crate::table::boxed($request).await,
            #[cfg(feature = "memory")]
            crate::table::Backend::Memory($table) => crate::table::boxed($request).await,
            #[cfg(feature = "redis")]
            crate::table::Backend::Redis($table) => crate::table::boxed($request).await,
        }
    };
}
pub(crate) use on_backend;

/// Refuses a URL in place of the name of a table. The error shows its scheme alone, because it may have a password.
///
/// # Errors
/// A sentence with the remedy.
pub fn refuse_url(name: &str, remedy: &str) -> Result<(), String> {
    let Some((scheme, _)) = name.split_once("://") else {
        return Ok(());
    };
    let is_scheme = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let scheme = if is_scheme { scheme } else { ".." };
    Err(format!("the table must be a name or an ARN, got {scheme}://..; {remedy}"))
}

/// Returns a table's own name: what an ARN ends with, or else the whole text.
#[must_use]
pub fn short_name(name: &str) -> &str {
    let of_arn = name.strip_prefix("arn:").and_then(|arn| arn.split_once(":table/"));
    of_arn.map_or(name, |(_, short)| short)
}

impl Table {
    /// Returns the table `name`, reached through a client.
    #[must_use]
    pub fn new(connection: Connection, name: impl Into<String>) -> Self {
        let (skew, name) = (connection.skew.clone(), name.into());
        let table = DynamoTable::new(connection, name.clone());
        Self { name, backend: Backend::DynamoDb(Box::new(table)), skew }
    }

    /// Returns a table in memory, as a process with this clock reaches it.
    #[cfg(feature = "memory")]
    #[must_use]
    pub fn in_memory(memory: &crate::MemoryTable, clock: impl crate::Clock + 'static) -> Self {
        Self {
            name: "in-memory".to_owned(),
            backend: Backend::Memory(memory.clone()),
            skew: CorrectedClock::of(std::sync::Arc::new(clock)),
        }
    }

    /// Returns a table in Redis or Valkey. Sends nothing.
    ///
    /// # Errors
    /// [`StoreError`] if the URL is invalid.
    #[cfg(feature = "redis")]
    pub fn on_redis(options: &crate::RedisOptions) -> Result<Self, StoreError> {
        let skew = CorrectedClock::of(std::sync::Arc::clone(&options.clock));
        let table = crate::redis::RedisTable::new(options, skew.clone())?;
        Ok(Self { name: options.table.clone(), backend: Backend::Redis(table), skew })
    }

    /// Requests the capacity of every request from DynamoDB, and adds it up in `meter`.
    #[must_use]
    pub fn with_meter(mut self, meter: CapacityMeter) -> Self {
        match &mut self.backend {
            Backend::DynamoDb(table) => table.meter = Some(meter),
            #[cfg(any(feature = "memory", feature = "redis"))]
            _ => {}
        }
        self
    }

    /// Counts every throttled request in `throttles`, each retry as well.
    #[must_use]
    pub fn with_throttle_meter(mut self, throttles: ThrottleMeter) -> Self {
        match &mut self.backend {
            Backend::DynamoDb(table) => table.throttles = Some(throttles),
            #[cfg(any(feature = "memory", feature = "redis"))]
            _ => {}
        }
        self
    }

    /// Returns the table's name, or its ARN, as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the region that requests are signed for, if it is known.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        match &self.backend {
            Backend::DynamoDb(table) => table.client.config().region().map(AsRef::as_ref),
            #[cfg(any(feature = "memory", feature = "redis"))]
            _ => None,
        }
    }

    /// Returns the URL that requests are sent to: empty before the first one, and if the table is not
    /// in DynamoDB.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        match &self.backend {
            Backend::DynamoDb(table) => table.endpoint.text(),
            #[cfg(any(feature = "memory", feature = "redis"))]
            _ => "",
        }
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
        on_backend!(self, table => table.warm())
    }

    /// Returns whether the table is in Redis or Valkey.
    #[must_use]
    pub const fn is_in_redis(&self) -> bool {
        #[cfg(feature = "redis")]
        return matches!(self.backend, Backend::Redis(_));
        #[cfg(not(feature = "redis"))]
        false
    }

    /// Returns when windows were used of which a table in Redis has no record on its way any more at `now`: none
    /// while there is no stream, or after it was full. `None` for other tables, which are not asked.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    pub async fn delivered(
        &self,
        now: EpochMillis,
    ) -> Result<Option<Range<EpochMillis>>, StoreError> {
        #[cfg(feature = "redis")]
        if let Backend::Redis(table) = &self.backend {
            let delivered = self.again(crate::ErrorKind::is_transient, || table.delivered(now));
            return delivered.await.map(Some);
        }
        Ok(None)
    }

    /// Asks a server of Redis whether it fits: its version, and that it evicts nothing. Tables in DynamoDB are not
    /// asked. A server that cannot be asked now is asked at the first request.
    ///
    /// # Errors
    /// [`StoreError`] if the server is refused, or refuses the user.
    pub async fn check_server(&self) -> Result<(), StoreError> {
        #[cfg(feature = "redis")]
        if let Backend::Redis(table) = &self.backend
            && let Err(error) = table.warm().await
            && !error.kind.is_transient()
        {
            return Err(error);
        }
        Ok(())
    }

    /// Returns the table in DynamoDB, for what no other backend has.
    pub(crate) fn in_dynamodb(&self) -> Result<&DynamoTable, StoreError> {
        match &self.backend {
            Backend::DynamoDb(table) => Ok(table),
            #[cfg(any(feature = "memory", feature = "redis"))]
            _ => Err(StoreError {
                kind: crate::ErrorKind::Rejected,
                request: "Describe".to_owned(),
                table: self.name.clone(),
                reason: "the table is not in DynamoDB".to_owned(),
                source: None,
            }),
        }
    }
}

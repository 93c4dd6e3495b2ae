//! What operators call: limits, entities, switches, balances, shards, leases, and what is kept of
//! them. An application needs none of it.

mod audit;
mod buckets;
mod configs;
mod descriptions;
mod effective;
mod entities;
mod erase;
mod kinds;
mod leases;
mod operate;
mod plans;
mod purge;
mod reshard;

use std::sync::Arc;

pub use buckets::StoredBucket;
pub(super) use buckets::listed_of_resource;
pub use configs::{ConfigChange, ConfigReport};
pub use effective::{ConfiguredLevel, EffectiveBucket, EffectiveLimits, LimitScale};
pub use erase::{EraseReport, LiveLeases};
pub use leases::StoredLease;
pub use operate::{
    BalanceEdit, BalanceReport, LimitsEdit, LimitsReport, OperationOutcome, PauseEdit, PauseReport,
    PolicyEdit, PolicyReport, SwitchEdit, SwitchReport,
};
pub use plans::PlanUse;
pub use purge::{Purge, PurgeReport};

use crate::bucket::BucketRegistry;
use crate::session::Session;
use crate::values::Error;

/// The operators' side of a limiter: configured limits and entities, stops, balances, shards, leases,
/// lists and reports.
///
/// ```no_run
/// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
/// let config = limiter.admin().config(&weirgate::ConfigLevel::System).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Admin {
    pub(super) session: Arc<Session>,
    pub(super) buckets: Arc<BucketRegistry>,
}

impl Admin {
    pub(super) const fn new(session: Arc<Session>, buckets: Arc<BucketRegistry>) -> Self {
        Self { session, buckets }
    }

    /// Creates the limiter's table, for DynamoDB Local and for tests. On AWS the stack's template
    /// creates it, with recovery, alarms and the functions.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), weirgate::Error> {
    /// let connection = weirgate::ConnectOptions {
    ///     local_endpoint: Some("http://127.0.0.1:8000".to_owned()),
    ///     ..weirgate::ConnectOptions::default()
    /// };
    /// let limiter = weirgate::RateLimiter::builder("limits").connection(connection).build().await?;
    /// limiter.admin().create_table().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] if the table exists already, or DynamoDB refuses.
    pub async fn create_table(&self) -> Result<(), Error> {
        self.session.at_home(async { Ok(self.session.table.create().await?) }).await
    }
}

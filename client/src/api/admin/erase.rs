//! Erases what the table has of an entity.

pub(super) mod remains;
mod report;
mod steps;

use weirgate_shared::EntityId;

use self::steps::Erasure;
use super::Admin;
use crate::values::Error;

pub use report::{EraseReport, LiveLeases};

impl Admin {
    /// Erases an entity: its limits, its own item, the links of its children, its buckets with
    /// their leases, its usage and its audit events. An audit event remains of each call that
    /// deleted something, which says when and by which principal; so do the versions of its limits.
    ///
    /// Stop its callers first: an acquire creates a bucket again. A call that failed or was dropped
    /// is completed by another call. Call again some minutes later, and in Redis when no records wait:
    /// until then the aggregator may write a snapshot from records that were on their way.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use weirgate::LiveLeases;
    /// let report = limiter.admin().erase_entity(&"user-1".try_into()?, LiveLeases::Refuse).await?;
    /// println!("{} shards, {} snapshots", report.shards, report.snapshots);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if a bucket holds leases that have not expired, and `leases` is
    /// [`LiveLeases::Refuse`]: before anything is deleted, unless they were taken during the
    /// erasure. [`Error::Unreadable`] or [`Error::UnreadableItem`] for an item that was changed by
    /// other means. [`Error::Contended`] or [`Error::Store`] if it is incomplete: call again.
    pub async fn erase_entity(
        &self,
        id: &EntityId,
        leases: LiveLeases,
    ) -> Result<EraseReport, Error> {
        self.session
            .at_home(async {
                let mut erasure = Erasure::new(self, id, leases);
                erasure.prepare().await?;
                let resources = erasure.resources().await?;
                for resource in &resources {
                    erasure.shards(resource).await?;
                }
                erasure.configs().await?;
                erasure.children().await?;
                erasure.entity().await?;
                for resource in resources {
                    erasure.bucket(resource).await?;
                }
                erasure.snapshots().await?;
                erasure.audit_events().await?;
                Ok(erasure.report)
            })
            .await
    }

    /// Returns what [`erase_entity`](Self::erase_entity) would delete now, and deletes nothing.
    ///
    /// # Errors
    /// As [`erase_entity`](Self::erase_entity), with its errors of reads.
    pub async fn preview_erasure(
        &self,
        id: &EntityId,
        leases: LiveLeases,
    ) -> Result<EraseReport, Error> {
        self.session.at_home(async { Erasure::new(self, id, leases).preview().await }).await
    }
}

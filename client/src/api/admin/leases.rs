//! Leases as the table has them: listed, and released for a holder that cannot.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::{
    AuditChange, BucketKey, EpochMillis, Lease, LimitName, MAX_SHARDS, MilliTokens, WriteId,
    by_limit, read_readable_leases,
};
use weirgate_store::{Consistency, Item};

use super::Admin;
use crate::api::page::{Page, Unreadable};
use crate::bucket::{BucketState, Ending, Hold, refresh_all};
use crate::config::ConfigEdit;
use crate::queue::HoldPart;
use crate::session::decode_shard;
use crate::values::{Error, HoldSettlement, Limits};

/// A durable lease as the table has it. A grant over several shards has one in each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StoredLease {
    /// Id, as [`Grant::lease_id`](crate::Grant::lease_id) returns it.
    pub id: String,
    /// Owner, as the holder's [`Builder::owner`](crate::Builder::owner) says.
    pub owner: String,
    /// Instant at which the lease expires, and its tokens return.
    #[cfg_attr(feature = "serde", serde(rename = "expires_at_ms"))]
    pub expires_at: EpochMillis,
    /// Amount held of each limit.
    pub tokens: BTreeMap<LimitName, MilliTokens>,
    /// Shard that has the lease.
    pub shard: u32,
}

impl StoredLease {
    fn new(id: &WriteId, lease: &Lease, shard: u32) -> Self {
        Self {
            id: id.to_string(),
            owner: lease.owner.clone(),
            expires_at: lease.expires_at,
            tokens: by_limit(lease.tokens.clone()),
            shard,
        }
    }
}

impl Admin {
    /// Returns the leases of a bucket, the first to expire first. One that has expired is listed
    /// until its tokens are returned. Costs a read unit, or 1.5 and 0.5 for each shard of a split
    /// bucket; more for items above 4 KB.
    ///
    /// There is one page. A shard that cannot be read is among its [unreadable](Page::unreadable)
    /// entries, and its other leases are listed anyway.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name; [`Error::Store`].
    pub async fn leases(&self, entity: &str, resource: &str) -> Result<Page<StoredLease>, Error> {
        self.session
            .at_home(async {
                let (mut items, mut unreadable) = (vec![], vec![]);
                match self.read_bucket(entity, resource).await {
                    Ok(bucket) => {
                        for view in bucket.views() {
                            let leases = view.shard.leases.iter().flatten();
                            let shard = view.shard.key.shard;
                            items.extend(
                                leases.map(|(id, lease)| StoredLease::new(id, lease, shard)),
                            );
                        }
                    }
                    Err(Error::Unreadable { .. }) => {
                        for item in self.read_every_shard(entity, resource).await? {
                            let shard = BucketKey::parse(&item.pk()).map_or(0, |key| key.shard);
                            let leases = read_readable_leases(item.attributes());
                            let leases = leases.iter();
                            items.extend(
                                leases.map(|(id, lease)| StoredLease::new(id, lease, shard)),
                            );
                            if let Err(error) = decode_shard(&item) {
                                unreadable.push(Unreadable::of(error)?);
                            }
                        }
                    }
                    Err(error) => return Err(error),
                }
                items.sort_by(|one, other| {
                    (one.expires_at, &one.id).cmp(&(other.expires_at, &other.id))
                });
                Ok(Page { items, unreadable, next: None })
            })
            .await
    }

    /// Releases a lease for its holder: slots return, rate tokens stay consumed. The holder's own
    /// release, renewal or adjustment then finds that the lease is gone. Returns whether it was
    /// there.
    ///
    /// It returns tokens that a holder may still use: make sure that the holder is gone. An audit
    /// event is written before.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// for lease in limiter.admin().leases("openai", "gpt-4").await?.items {
    ///     if lease.owner == "batch-17" {
    ///         limiter.admin().release_lease("openai", "gpt-4", &lease.id).await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name; [`Error::Unreadable`] for an item that cannot be
    /// read; [`Error::Store`] or [`Error::Timeout`] if the outcome is not known: a second call finds
    /// out.
    pub async fn release_lease(
        &self,
        entity: &str,
        resource: &str,
        id: &str,
    ) -> Result<bool, Error> {
        self.session
            .at_home(async {
                let bucket = self.read_bucket(entity, resource).await?;
                let views = bucket.views().map(|view| view.shard);
                let found = views.into_iter().find_map(|shard| {
                    let leases = shard.leases.as_ref()?;
                    let (id, lease) = leases.iter().find(|(known, _)| known.as_str() == id)?;
                    Some((id.clone(), lease.clone(), Arc::clone(&shard)))
                });
                let Some((id, lease, shard)) = found else {
                    return Ok(false);
                };
                let event = AuditChange::LeaseEnded {
                    entity: bucket.key.entity.clone(),
                    resource: bucket.key.resource.clone(),
                    lease: id.to_string(),
                    held: lease.tokens.clone(),
                };
                ConfigEdit::announce(&self.session, format!("lease {id}"), event).await?;
                let state = bucket.shard(shard.key.shard);
                let part = HoldPart {
                    windows: lease.windows,
                    lease: Some((id, lease.expires_at)),
                    ..HoldPart::of(state, Arc::clone(&shard), lease.tokens)
                };
                // Rate tokens stay consumed.
                let slots = shard.enforced_limits().filter(|limit| limit.rule().kind().is_held());
                let limits = Limits::new(slots.collect(), None);
                let hold =
                    Hold::new(&self.session, &bucket, vec![part], limits, self.session.now());
                let ended = self.session.in_task(hold.end(Ending::Release(vec![])));
                Ok(ended.await? != HoldSettlement::LeaseGone)
            })
            .await
    }

    /// Reads the items of all shards that a bucket may have.
    async fn read_every_shard(&self, entity: &str, resource: &str) -> Result<Vec<Item>, Error> {
        let first = BucketKey {
            namespace: self.session.namespace.clone(),
            entity: entity.try_into()?,
            resource: resource.try_into()?,
            shard: 0,
        };
        let keys = (0..MAX_SHARDS).map(|shard| first.with_shard(shard).item_key());
        let keys: Vec<_> = keys.collect();
        let read = self.session.read_with(&keys, Consistency::Strong, None);
        Ok(self.session.in_time("BatchGetItem", read).await?)
    }

    /// Reads all shards of a bucket.
    async fn read_bucket(&self, entity: &str, resource: &str) -> Result<Arc<BucketState>, Error> {
        let bucket = self.buckets.bucket(entity.try_into()?, resource.try_into()?);
        refresh_all(&self.session, &[&bucket], self.session.env.ages.now()).await?;
        Ok(bucket)
    }
}

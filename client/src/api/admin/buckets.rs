//! Lists of buckets as the table has them.

use std::sync::Arc;

use weirgate_shared::{
    Bucket, BucketKey, EntityId, Resource, Shard, ShardIndex, Usage, resource_partitions,
};
use weirgate_store::{BY_ENTITY, BY_RESOURCE, Item, Position};

use super::Admin;
use crate::api::page::{Page, PageToken, Unreadable, within};
use crate::bucket::{BucketState, refresh_each};
use crate::session::Session;
use crate::values::{Error, LimitStatus, Limits, bucket_status, whole};

/// Prefix of the sort keys of buckets in both indexes.
const BUCKET: &str = "BUCKET#";

/// A bucket as the table has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StoredBucket {
    /// The entity.
    pub entity: EntityId,
    /// The resource.
    pub resource: Resource,
    /// Number of shards.
    pub shards: u32,
    /// Number of leases, over all shards.
    pub leases: usize,
    /// Every limit, with its balance over all shards, refilled up to the read. Modes are those of
    /// configurations, so all limits are shown as enforced here.
    pub limits: Vec<LimitStatus>,
    /// Acquires granted and net tokens consumed, as its shards have counted since their items were
    /// created. The difference between two reads is a rate. It falls when shards merge or expire.
    #[cfg_attr(feature = "serde", serde(default))]
    pub counted: Usage,
}

impl StoredBucket {
    /// Returns the limit `name`.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&LimitStatus> {
        self.limits.iter().find(|status| status.limit == name)
    }
}

impl Admin {
    /// Returns the buckets of an entity, by resource, one page at a time; `after` is the previous
    /// page's token. Buckets created or deleted in the last second may be missing.
    ///
    /// Costs half a read unit for each page, and one for each bucket, or 1.5 and 0.5 for each shard of
    /// a split one.
    ///
    /// A bucket with a shard that cannot be read is among the page's
    /// [unreadable](Page::unreadable) entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page token of another list; [`Error::Store`].
    pub async fn entity_buckets(
        &self,
        entity: &EntityId,
        after: Option<&PageToken>,
    ) -> Result<Page<StoredBucket>, Error> {
        self.session
            .at_home(async {
                let session = &*self.session;
                let partition = format!("{}/ENTITY#{entity}", session.namespace);
                let list = format!("buckets of the entity {partition}");
                let position = within(after, &list)?;
                let part = std::iter::once(partition);
                let page = session.partitioned_page((BY_ENTITY, BUCKET), part, position);
                let (found, next) = page.await?;
                let (items, damaged) = read(session, first_shards(&found, position)).await?;
                let unreadable = unreadable(damaged)?;
                Ok(Page {
                    items,
                    unreadable,
                    next: next.map(|position| PageToken::new(list, position)),
                })
            })
            .await
    }

    /// Returns one bucket; `None` if the table has no item of it. Costs a read unit, or 1.5 and 0.5
    /// for each shard of a split bucket.
    ///
    /// # Errors
    /// [`Error::Unreadable`] for a shard that cannot be read; [`Error::Store`].
    pub async fn bucket(
        &self,
        entity: &EntityId,
        resource: &Resource,
    ) -> Result<Option<StoredBucket>, Error> {
        self.session
            .at_home(async {
                let key = BucketKey {
                    namespace: self.session.namespace.clone(),
                    entity: entity.clone(),
                    resource: resource.clone(),
                    shard: 0,
                };
                let (stored, damaged) = read(&self.session, vec![key]).await?;
                match damaged.into_iter().next() {
                    Some(error) => Err(error),
                    None => Ok(stored.into_iter().next()),
                }
            })
            .await
    }

    /// Returns the buckets of a resource, one page at a time; `after` is the previous page's token.
    /// Buckets created or deleted in the last second may be missing.
    ///
    /// The list has 16 parts, and no page has entries of two, so pages may be short or empty.
    ///
    /// # Errors
    /// As [`entity_buckets`](Self::entity_buckets).
    pub async fn resource_buckets(
        &self,
        resource: &Resource,
        after: Option<&PageToken>,
    ) -> Result<Page<StoredBucket>, Error> {
        self.resource_buckets_starting_with(resource, "", after).await
    }

    /// Returns those [buckets of a resource](Self::resource_buckets) whose entity's id starts with
    /// `prefix`. The others cost nothing.
    ///
    /// # Errors
    /// As [`entity_buckets`](Self::entity_buckets).
    pub async fn resource_buckets_starting_with(
        &self,
        resource: &Resource,
        prefix: &str,
        after: Option<&PageToken>,
    ) -> Result<Page<StoredBucket>, Error> {
        self.session
            .at_home(async {
                let session = &*self.session;
                let mut list = format!("buckets of the resource {}/{resource}", session.namespace);
                if !prefix.is_empty() {
                    list += &format!(" of entities {prefix}...");
                }
                let position = within(after, &list)?;
                let (buckets, next) =
                    listed_of_resource(session, resource, prefix, position).await?;
                let (items, damaged) = read(session, buckets).await?;
                let unreadable = unreadable(damaged)?;
                Ok(Page {
                    items,
                    unreadable,
                    next: next.map(|position| PageToken::new(list, position)),
                })
            })
            .await
    }
}

/// Returns some buckets of a resource whose entities' ids start with `prefix`, each by its first
/// shard, and the position after them.
pub(in crate::api) async fn listed_of_resource(
    session: &Session,
    resource: &Resource,
    prefix: &str,
    position: Option<&Position>,
) -> Result<(Vec<BucketKey>, Option<Position>), Error> {
    let partitions = resource_partitions(&session.namespace, resource);
    let keys = format!("{BUCKET}{prefix}");
    let page = session.partitioned_page((BY_RESOURCE, &keys), partitions, position);
    let (found, next) = page.await?;
    let mut buckets = first_shards(&found, position);
    buckets.retain(|key| key.resource == *resource && key.entity.as_str().starts_with(prefix));
    Ok((buckets, next))
}

/// Returns the buckets of some index entries, each by its first shard. The shards of a bucket
/// follow each other, so those of the bucket at `position` were on the last page.
fn first_shards(entries: &[Item], position: Option<&Position>) -> Vec<BucketKey> {
    let first = |pk: &str| Some(BucketKey::parse(pk)?.with_shard(0));
    let last = position.and_then(|position| first(position.get("PK")?));
    let mut buckets: Vec<_> = entries
        .iter()
        .filter_map(|item| first(&item.pk()))
        .filter(|key| last.as_ref() != Some(key))
        .collect();
    buckets.dedup();
    buckets
}

/// Returns what cannot be read.
fn unreadable(damaged: Vec<Error>) -> Result<Vec<Unreadable>, Error> {
    damaged.into_iter().map(Unreadable::of).collect()
}

/// Reads all shards of the buckets that still exist. Returns those that can be read, and an error
/// for each shard that cannot be.
async fn read(
    session: &Session,
    keys: Vec<BucketKey>,
) -> Result<(Vec<StoredBucket>, Vec<Error>), Error> {
    let buckets: Vec<_> = keys
        .into_iter()
        .map(|key| Arc::new(BucketState::new(key, None, session.env.ages.clone())))
        .collect();
    let all: Vec<_> = buckets.iter().collect();
    let damaged = refresh_each(session, &all, session.env.ages.now()).await?;
    let now = session.now();
    let stored = buckets.iter().filter_map(|state| {
        // A view of a damaged bucket is of some of its shards.
        if is_damaged(&state.key, &damaged) {
            return None;
        }
        let shards: Vec<_> = state.views().map(|view| (*view.shard).clone()).collect();
        let ShardIndex { count, .. } = shards.first()?.shard();
        let leases = shards.iter().filter_map(|shard| shard.leases.as_ref());
        let leases = leases.map(std::collections::BTreeMap::len).sum();
        let counted = counted(&shards);
        let bucket = Bucket::new(shards);
        Some(StoredBucket {
            entity: state.key.entity.clone(),
            resource: state.key.resource.clone(),
            shards: count,
            leases,
            limits: whole(bucket_status(&bucket, &Limits::default(), |_| None, now)),
            counted,
        })
    });
    let stored = stored.collect();
    Ok((stored, damaged))
}

/// Returns whether one of the errors is about a shard of this bucket.
fn is_damaged(bucket: &BucketKey, damaged: &[Error]) -> bool {
    damaged.iter().any(|error| {
        let Error::Unreadable { bucket: pk, .. } = error else {
            return false;
        };
        BucketKey::parse(pk).is_some_and(|shard| shard.with_shard(0) == *bucket)
    })
}

/// Returns the sum of what shards have counted.
fn counted(shards: &[Shard]) -> Usage {
    let mut counted = Usage::default();
    for shard in shards {
        counted.acquires = counted.acquires.saturating_add(shard.acquires.total);
        for (name, limit) in &shard.limits {
            *counted.tokens.entry(name.clone()).or_default() += limit.consumed;
        }
    }
    counted.whole()
}

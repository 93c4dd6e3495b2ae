//! Keys of the table: each builder stands beside its parser.

mod audit;
mod config;

use std::fmt::Write as _;

use crate::{EntityId, EpochMillis, Namespace, Resource, Window};

pub use audit::{AuditId, AuditKey, AuditSubject, LISTED_AUDIT, audit_partitions};
pub use config::{
    ConfigFilter, ConfigKey, EntityKey, LISTED_CONFIG, LISTED_ENTITY, LISTED_NAMESPACE, NAMESPACES,
    PlanKey, config_partitions, entity_partitions, functions_key, operation_key, plan_partitions,
    schema_key, switches_key,
};

/// Sort key of every bucket shard.
pub const BUCKET_SK: &str = "#STATE";
/// How the sort key of each snapshot begins.
pub const SNAPSHOT_SK: &str = "#USAGE#";

/// Primary key of an item: partition and sort key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemKey {
    /// Partition key, `PK`.
    pub pk: String,
    /// Sort key, `SK`.
    pub sk: String,
}

/// One shard of a bucket: all limits of one (entity, resource).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketKey {
    /// Namespace of the tenant.
    pub namespace: Namespace,
    /// Entity.
    pub entity: EntityId,
    /// Resource.
    pub resource: Resource,
    /// Shard index, from 0.
    pub shard: u32,
}

impl BucketKey {
    /// Returns `{ns}/BUCKET#{entity}#{resource}#{shard}`, `#STATE`.
    #[must_use]
    pub fn item_key(&self) -> ItemKey {
        let Self { namespace, entity, resource, shard } = self;
        ItemKey {
            pk: format!("{namespace}/BUCKET#{entity}#{resource}#{shard}"),
            sk: BUCKET_SK.to_owned(),
        }
    }

    /// Returns the shard whose partition key is `pk`; `None` if it is not a bucket's.
    #[must_use]
    pub fn parse(pk: &str) -> Option<Self> {
        let (namespace, rest) = pk.split_once('/')?;
        let mut parts = rest.strip_prefix("BUCKET#")?.split('#');
        let key = Self {
            namespace: Namespace::new(namespace).ok()?,
            entity: EntityId::new(parts.next()?).ok()?,
            resource: Resource::new(parts.next()?).ok()?,
            shard: canonical_shard(parts.next()?)?,
        };
        parts.next().is_none().then_some(key)
    }

    /// Returns the key of another shard of the same bucket.
    #[must_use]
    pub fn with_shard(&self, shard: u32) -> Self {
        Self { shard, ..self.clone() }
    }

    /// Returns `GSI2PK` and `GSI2SK`: the buckets of a resource, in one of [`resource_partitions`].
    /// Many new buckets of one resource spread over all of them, because a partition accepts 1,000
    /// writes a second.
    #[must_use]
    pub fn by_resource(&self) -> (String, String) {
        let Self { namespace, entity, resource, shard } = self;
        (
            resource_partition(namespace, resource, spread(entity.as_str())),
            format!("BUCKET#{entity}#{shard}"),
        )
    }

    /// Returns `GSI3PK` and `GSI3SK`: the buckets of an entity.
    #[must_use]
    pub fn by_entity(&self) -> (String, String) {
        let Self { namespace, entity, resource, shard } = self;
        (format!("{namespace}/ENTITY#{entity}"), format!("BUCKET#{resource}#{shard}"))
    }

    /// Returns the partition of `DueIndex` for this bucket: one of [`due_shards`].
    #[must_use]
    pub fn due_shard(&self) -> String {
        due_shard(spread(&self.item_key().pk))
    }
}

/// Returns a number from 0 to 15, by FNV-1a. Every writer must permanently use the same hash.
fn spread(text: &str) -> u32 {
    text.bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
        % PARTITIONS
}

/// Parses a shard index. Rejects leading zeros, so that each shard has one spelling.
fn canonical_shard(digits: &str) -> Option<u32> {
    let shard: u32 = digits.parse().ok()?;
    (shard.to_string() == digits).then_some(shard)
}

/// Number of partitions over which an index spreads items that would otherwise share one key.
const PARTITIONS: u32 = 16;

fn due_shard(shard: u32) -> String {
    format!("DUE#{shard:02}")
}

/// Returns the partitions of `DueIndex`: `DUE#00` to `DUE#15`.
pub fn due_shards() -> impl Iterator<Item = String> {
    (0..PARTITIONS).map(due_shard)
}

fn resource_partition(namespace: &Namespace, resource: &Resource, partition: u32) -> String {
    format!("{namespace}/RESOURCE#{resource}#{partition:02}")
}

/// Returns the partitions of `GSI2` with the buckets of a resource: `{ns}/RESOURCE#{resource}#00`
/// to `#15`.
pub fn resource_partitions(
    namespace: &Namespace,
    resource: &Resource,
) -> impl Iterator<Item = String> {
    (0..PARTITIONS).map(move |partition| resource_partition(namespace, resource, partition))
}

/// The usage snapshot of one (entity, resource) in one window.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotKey {
    /// Namespace of the tenant.
    pub namespace: Namespace,
    /// Entity.
    pub entity: EntityId,
    /// Resource.
    pub resource: Resource,
    /// Length of the window.
    pub window: Window,
    /// First instant of the window, on the window's boundary.
    pub start: EpochMillis,
}

impl SnapshotKey {
    /// Returns `{ns}/ENTITY#{entity}`, `#USAGE#{resource}#{window}#{start}`.
    #[must_use]
    pub fn item_key(&self) -> ItemKey {
        let Self { namespace, entity, resource, window, start } = self;
        let mut sk = format!("{SNAPSHOT_SK}{resource}#{window}#");
        // Writing to a String cannot fail.
        let _ = write!(sk, "{}", crate::window::Iso8601(*start));
        ItemKey { pk: format!("{namespace}/ENTITY#{entity}"), sk }
    }

    /// Returns the snapshot that an item is; `None` if the keys are not a snapshot's.
    #[must_use]
    pub fn parse(key: &ItemKey) -> Option<Self> {
        let (namespace, entity) = key.pk.split_once("/ENTITY#")?;
        let mut parts = key.sk.strip_prefix(SNAPSHOT_SK)?.split('#');
        let (resource, window, start) = (parts.next()?, parts.next()?, parts.next()?);
        let window: Window = window.parse().ok()?;
        let parsed = Self {
            namespace: Namespace::new(namespace).ok()?,
            entity: EntityId::new(entity).ok()?,
            resource: Resource::new(resource).ok()?,
            window,
            start: crate::window::parse_iso8601(start)?,
        };
        (parts.next().is_none() && window.start(parsed.start) == parsed.start).then_some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_shards_are_two_digits_and_stable() {
        let shards: Vec<_> = due_shards().collect();
        assert_eq!(
            (shards.len(), shards[0].as_str(), shards[15].as_str()),
            (16, "DUE#00", "DUE#15")
        );
        let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap();
        assert_eq!(key.due_shard(), "DUE#07", "a change here strands every bucket that is due");
    }

    #[test]
    fn indexes_find_a_bucket_by_its_resource_and_by_its_entity() {
        let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#3").unwrap();
        let pair = |pk: &str, sk: &str| (pk.to_owned(), sk.to_owned());
        assert_eq!(key.by_resource(), pair("default/RESOURCE#gpt-4#02", "BUCKET#e-1#3"));
        assert_eq!(key.by_entity(), pair("default/ENTITY#e-1", "BUCKET#gpt-4#3"));
    }

    /// A partition of an index takes 1,000 units a second, so 10,000 new keys a second need ten at
    /// least.
    #[test]
    fn new_keys_of_one_resource_spread_evenly_over_16_partitions_of_the_index() {
        let (namespace, resource) =
            (Namespace::new("ns").unwrap(), Resource::new("gpt-4").unwrap());
        for name in [|at: u32| format!("user-{at}"), |at| format!("10.0.{}.{}", at / 256, at % 256)]
        {
            let mut found = std::collections::BTreeMap::<_, u32>::new();
            for at in 0..10_000 {
                let entity = EntityId::new(&*name(at)).unwrap();
                let (namespace, resource) = (namespace.clone(), resource.clone());
                let key = BucketKey { namespace, entity, resource, shard: 0 };
                *found.entry(key.by_resource().0).or_default() += 1;
            }
            assert!(
                found.keys().cloned().eq(resource_partitions(&namespace, &resource)),
                "{found:?}"
            );
            assert!(found.values().all(|writes| *writes < 1_000), "{found:?}");
        }
    }

    #[test]
    fn keys_of_other_items_are_no_snapshots() {
        let of = |sk: &str| {
            SnapshotKey::parse(&ItemKey { pk: "default/ENTITY#e-1".to_owned(), sk: sk.to_owned() })
        };
        assert!(of("#USAGE#gpt-4#hourly#2026-11-20T18:00:00Z").is_some());
        for sk in [
            "#USAGE#gpt-4#hourly#2026-11-20T18:00:00Z#",
            "#USAGE#gpt-4#hourly#2026-11-20T18:30:00Z",
        ] {
            assert_eq!(of(sk), None, "{sk}");
        }
    }

    #[test]
    fn keys_of_other_items_are_no_buckets() {
        for pk in [
            "default/ENTITY#e-1",
            "default/BUCKET#e-1#gpt-4",
            "default/BUCKET#e-1#gpt-4#00",
            "default/BUCKET#e-1#gpt-4#-1",
            "default/BUCKET#e-1#gpt-4#0#1",
            "a/b/BUCKET#e-1#gpt-4#0",
            "BUCKET#e-1#gpt-4#0",
            "",
        ] {
            assert_eq!(BucketKey::parse(pk), None, "{pk}");
        }
    }
}

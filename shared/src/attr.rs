//! Attribute names of the table's items, with the unit of each.

use crate::LimitName;

/// Partition key.
pub const PK: &str = "PK";
/// Sort key.
pub const SK: &str = "SK";
/// Epoch ms up to which refill has been credited; also the refill's optimistic lock.
pub const RF: &str = "rf";
/// Counts every write to the bucket; starts at creation epoch ms × 1000.
pub const V: &str = "v";
/// How many shards there were when this one was last split or merged.
pub const SHARD_COUNT: &str = "shard_count";
/// Leases held in this item: `h.{id} = {e, t, w}`.
pub const LEASES: &str = "h";
/// Expiry of a lease, epoch ms.
pub const LEASE_EXPIRY: &str = "e";
/// Millitokens a lease holds, by limit.
pub const LEASE_TOKENS: &str = "t";
/// Owner of a lease.
pub const LEASE_OWNER: &str = "w";
/// Epoch ms at or before the earliest expiry of a lease.
pub const DUE: &str = "due";
/// Partition of `DueIndex`.
pub const DUE_SHARD: &str = "due_shard";
/// Id of the last write.
pub const OP: &str = "op";
/// Counts granted acquires.
pub const TAKES: &str = "takes";
/// A client asks for a split: the shard was throttled, or is out of write units.
pub const HOT: &str = "hot";
/// Epoch ms of the last look at how often the shard is written to; also of its last split or merge.
pub const LOOK_AT: &str = "look_at";
/// `v` at the last look.
pub const LOOK_V: &str = "look_v";
/// Shards an operator asked for; cold ones are not merged below it.
pub const MIN_SHARDS: &str = "min_shards";
/// Bytes of the leases when the shard was last split: those stay where they are, so they are no reason to split again.
pub const SPLIT_BYTES: &str = "split_bytes";
/// Version of a configuration: counts its changes. In a bucket, the sum of all levels' whose limits it has; absent where
/// a caller has brought them with a call.
pub const VERSION: &str = "cv";
/// Limits of a configuration, by name.
pub const LIMITS: &str = "limits";
/// What becomes of a request that a limit of a configuration has not enough for.
pub const MODE: &str = "mode";
/// Whether the limits of a configuration are asked.
pub const STATUS: &str = "status";
/// All limits of a configuration deny nobody.
pub const SHADOW: &str = "shadow";
/// What an entity is a part of.
pub const PARENT_ID: &str = "parent_id";
/// What an entity takes is taken of its parent too.
pub const CASCADE: &str = "cascade";
/// Version of the schema that a namespace is written in.
pub const SCHEMA: &str = "schema";
/// When a change was made, epoch ms.
pub const AT: &str = "at";
/// Who made a change.
pub const PRINCIPAL: &str = "principal";
/// What a change did.
pub const ACTION: &str = "action";
/// What was changed, as it was.
pub const BEFORE: &str = "before";
/// What was changed, as it is from then on.
pub const AFTER: &str = "after";
/// Partition key of the index of children.
pub const GSI1PK: &str = "GSI1PK";
/// Sort key of the index of children.
pub const GSI1SK: &str = "GSI1SK";
/// Partition key of the index of who uses a resource, and for whom it is configured.
pub const GSI2PK: &str = "GSI2PK";
/// Sort key of the same.
pub const GSI2SK: &str = "GSI2SK";
/// Partition key of the index of an entity's buckets.
pub const GSI3PK: &str = "GSI3PK";
/// Sort key of the same.
pub const GSI3SK: &str = "GSI3SK";
/// Who is limited.
pub const ENTITY_ID: &str = "entity_id";
/// What is used.
pub const RESOURCE: &str = "resource";
/// Epoch seconds after which DynamoDB may delete the item.
pub const TTL: &str = "ttl";
/// Kind of a snapshot's window.
pub const WINDOW: &str = "window";
/// First instant of a snapshot's window, ISO 8601.
pub const WINDOW_START: &str = "window_start";
/// First instant after a snapshot's window, ISO 8601.
pub const WINDOW_END: &str = "window_end";
/// Granted acquires counted by a snapshot.
pub const TOTAL_EVENTS: &str = "total_events";
/// The index of what the reconciler must look at.
pub const DUE_INDEX: &str = "DueIndex";

/// A number of one limit in a bucket: `b_{limit}_{field}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Millitokens available in this shard; may be negative.
    Tokens,
    /// Millitokens net consumed in this shard.
    Consumed,
    /// Capacity of the whole bucket in millitokens.
    Capacity,
    /// Refill amount of the whole bucket in millitokens.
    RefillAmount,
    /// Refill period in ms.
    RefillPeriod,
}

impl Field {
    const ALL: [Self; 5] = [Self::Tokens, Self::Consumed, Self::Capacity, Self::RefillAmount, Self::RefillPeriod];

    /// The last part of the attribute's name.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Tokens => "tk",
            Self::Consumed => "tc",
            Self::Capacity => "cp",
            Self::RefillAmount => "ra",
            Self::RefillPeriod => "rp",
        }
    }

    /// The attribute's name for one limit.
    #[must_use]
    pub fn of(self, limit: &LimitName) -> String {
        format!("b_{limit}_{}", self.suffix())
    }

    /// The limit and field an attribute is of; `None` if it is another attribute.
    #[must_use]
    pub fn parse(attribute: &str) -> Option<(&str, Self)> {
        let (limit, suffix) = attribute.strip_prefix("b_")?.rsplit_once('_')?;
        let field = Self::ALL.into_iter().find(|field| field.suffix() == suffix)?;
        Some((limit, field))
    }
}

/// Attribute of a snapshot: the last `v` counted of one bucket shard.
#[must_use]
pub fn counted_through(shard: u32) -> String {
    format!("q{shard}")
}

/// Attribute of a snapshot: the ranges of `v` below `q{shard}` that were not counted.
#[must_use]
pub fn not_counted(shard: u32) -> String {
    format!("g{shard}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limits_attribute_and_its_parser_agree() {
        for limit in ["rpm", "a_b", "a.b-c", "x_tk"] {
            let name = LimitName::new(limit).unwrap();
            for field in Field::ALL {
                assert_eq!(Field::parse(&field.of(&name)), Some((limit, field)));
            }
        }
        for other in ["rf", "b_", "b_rpm", "b_rpm_xx", "brpm_tk", "takes"] {
            assert_eq!(Field::parse(other), None);
        }
    }
}

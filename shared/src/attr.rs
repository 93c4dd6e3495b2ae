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
/// `v` at creation. A later life of the same key has a higher one than any `v` of the earlier life.
pub const BIRTH: &str = "birth";
/// The hour that usage is counted for, in hours since 1970.
pub const HOUR: &str = "uh";
/// Write units left in the partition at `rf`, in thousandths of a unit; may be negative.
pub const WRITE_UNITS: &str = "wcu";
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
/// `takes` at the start of the hour.
pub const TAKES_HOUR_BASE: &str = "th";
/// `takes` at the start of the day.
pub const TAKES_DAY_BASE: &str = "td";
/// A client asks for a split: the shard was throttled, or is out of write units.
pub const HOT: &str = "hot";
/// Epoch ms of the last look at how often the shard is written to; also of its last split or merge.
pub const LOOK_AT: &str = "look_at";
/// `v` at the last look.
pub const LOOK_V: &str = "look_v";
/// Shards an operator asked for; cold ones are not merged below it.
pub const MIN_SHARDS: &str = "min_shards";
/// Bytes of the leases when the shard was last split: those stay where they are, so they are no
/// reason to split again.
pub const SPLIT_BYTES: &str = "split_bytes";
/// What a split has taken off the shard for its new half, until that is made: a map of the new
/// half's attributes.
pub const ESCROW: &str = "escrow";
/// Version of a configuration: counts its changes. In a bucket, the sum of all levels' whose limits
/// it has; absent where a caller has brought them with a call.
pub const VERSION: &str = "cv";
/// Limits of a configuration, or of a stamp, by name.
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
/// When a change was made, or a bucket held what a stamp says, epoch ms.
pub const AT: &str = "at";
/// Until when what a stamp says is true, epoch ms.
pub const UNTIL: &str = "until";
/// Shards that a stamp is of.
pub const SHARDS: &str = "n";
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
/// Epoch ms at which a call without a version last changed a rule of the bucket.
pub const RULE_AT: &str = "rt";
/// Epoch seconds after which DynamoDB may delete the item.
pub const TTL: &str = "ttl";
/// Granted acquires of shard 0 in a snapshot. Those of shard i are in `#{i}`.
pub const TOTAL_EVENTS: &str = "total_events";
/// Number set in a snapshot: the shards whose numbers are final, because the window was over when
/// they were copied.
pub const FINAL: &str = "final";
/// Number set in a snapshot: the shards of which an earlier life ended without a final copy.
pub const UNFINISHED: &str = "unfinished#c";
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
    /// Net consumed at the start of the hour, in millitokens.
    HourBase,
    /// Net consumed at the start of the day, in millitokens.
    DayBase,
}

impl Field {
    /// Every field, in the order of [`Self::index`].
    pub const ALL: [Self; 7] = [
        Self::Tokens,
        Self::Consumed,
        Self::Capacity,
        Self::RefillAmount,
        Self::RefillPeriod,
        Self::HourBase,
        Self::DayBase,
    ];

    /// The field's place in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Tokens => 0,
            Self::Consumed => 1,
            Self::Capacity => 2,
            Self::RefillAmount => 3,
            Self::RefillPeriod => 4,
            Self::HourBase => 5,
            Self::DayBase => 6,
        }
    }

    /// The last part of the attribute's name.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Tokens => "tk",
            Self::Consumed => "tc",
            Self::Capacity => "cp",
            Self::RefillAmount => "ra",
            Self::RefillPeriod => "rp",
            Self::HourBase => "bh",
            Self::DayBase => "bd",
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
        let field = Self::ALL
            .into_iter()
            .find(|field| field.suffix() == suffix)?;
        Some((limit, field))
    }
}

/// Attribute of a snapshot: the `v` of the image that a shard's numbers were copied from.
#[must_use]
pub fn copied_at(shard: u32) -> String {
    format!("q{shard}")
}

/// Attribute of a snapshot: what a shard used of `limit`, in tokens. Shard 0 has the limit's plain
/// name, so that the snapshot of an unsharded bucket reads at a glance.
#[must_use]
pub fn copied(limit: &LimitName, shard: u32) -> String {
    if shard == 0 {
        limit.to_string()
    } else {
        format!("{limit}#{shard}")
    }
}

/// Attribute of a snapshot: the acquires of a shard.
#[must_use]
pub fn copied_takes(shard: u32) -> String {
    if shard == 0 {
        TOTAL_EVENTS.to_owned()
    } else {
        format!("#{shard}")
    }
}

/// Attribute of a snapshot, a number set: the `v` at which each earlier life of a shard was added
/// to the carry.
#[must_use]
pub fn carried(shard: u32) -> String {
    format!("#c{shard}")
}

/// What the attribute of a limit ends with that holds the usage of earlier lives of all shards.
pub const CARRY: &str = "#c";

/// Whether an attribute of a bucket shard counts usage. A shard that is merged away keeps these,
/// and `v`.
#[must_use]
pub fn counts_usage(attribute: &str) -> bool {
    const COUNTERS: [&str; 5] = [BIRTH, HOUR, TAKES, TAKES_HOUR_BASE, TAKES_DAY_BASE];
    let of_limit = |field| matches!(field, Field::Consumed | Field::HourBase | Field::DayBase);
    COUNTERS.contains(&attribute)
        || Field::parse(attribute).is_some_and(|(_, field)| of_limit(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limits_attribute_and_its_parser_agree() {
        for limit in ["rpm", "a_b", "a.b-c", "x_tk"] {
            let name = LimitName::new(limit).unwrap();
            for (at, field) in Field::ALL.into_iter().enumerate() {
                assert_eq!(field.index(), at);
                assert_eq!(Field::parse(&field.of(&name)), Some((limit, field)));
            }
        }
        for other in ["rf", "b_", "b_rpm", "b_rpm_xx", "brpm_tk", "takes"] {
            assert_eq!(Field::parse(other), None);
        }
    }
}

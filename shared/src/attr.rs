//! Attribute names of the table's items, with the unit of each.

use crate::LimitName;

/// Partition key.
pub const PK: &str = "PK";
/// Sort key.
pub const SK: &str = "SK";
/// Epoch ms up to which refill is credited; also the optimistic lock of refills.
pub const REFILLED_AT: &str = "rf";
/// Write sequence: number of writes to the shard. Starts at creation epoch ms × 1000.
pub const WRITE_SEQ: &str = "v";
/// `v` at creation. It is above every `v` of an earlier life of the same key.
pub const BIRTH: &str = "birth";
/// Hour in which usage is counted, in hours since 1970.
pub const HOUR: &str = "uh";
/// Written at creation, because releases before 0.9 read no shard without it. Nothing reads it.
pub const WRITE_UNITS: &str = "wcu";
/// Number of shards when this one was last split or merged.
pub const SHARD_COUNT: &str = "shard_count";
/// Leases held in this item: `h.{id} = {e, t, w}`.
pub const LEASES: &str = "h";
/// Expiry of a lease, epoch ms.
pub const LEASE_EXPIRY: &str = "e";
/// Millitokens a lease holds, by limit.
pub const LEASE_TOKENS: &str = "t";
/// Ends of the windows that a lease's tokens of quotas are from, epoch ms, by limit.
pub const LEASE_WINDOWS: &str = "q";
/// Owner of a lease.
pub const LEASE_OWNER: &str = "w";
/// Epoch ms at or before the earliest expiry of a lease.
pub const DUE: &str = "due";
/// Partition of `DueIndex`.
pub const DUE_SHARD: &str = "due_shard";
/// Id of the last write.
pub const LAST_WRITE_ID: &str = "op";
/// Number of granted acquires.
pub const TAKES: &str = "takes";
/// `takes` at the start of the hour.
pub const TAKES_HOUR_BASE: &str = "th";
/// `takes` at the start of the day.
pub const TAKES_DAY_BASE: &str = "td";
/// Epoch ms of the last request of a client for a split: the shard was throttled. `true` in
/// requests of older clients.
pub const HOT: &str = "hot";
/// Epoch ms of the last activity sample, split or merge.
pub const SAMPLE_AT: &str = "look_at";
/// `v` of the last activity sample.
pub const SAMPLE_WRITE_SEQ: &str = "look_v";
/// Epoch ms until which the shard grants nothing: the vendor asked for it, or an operator.
pub const PAUSED_UNTIL: &str = "pz";
/// Length of that pause in ms, which the next one doubles; 0 if its end was named.
pub const PAUSE_LENGTH: &str = "pl";
/// Number of shards that an operator set; idle ones are not merged below it.
pub const MIN_SHARDS: &str = "min_shards";
/// Bytes of the leases at the last split. They stay in the shard, so they are no reason to split
/// again.
pub const SPLIT_BYTES: &str = "split_bytes";
/// Escrow: a map of the new half's attributes, until that half has an item.
pub const ESCROW: &str = "escrow";
/// Id of the last change of an operator that the shard has.
pub const EDIT: &str = "edit";
/// Plan of a change of an operator that is under way.
pub const PLAN: &str = "plan";
/// Whether planned limits are configured for exactly this entity and resource.
pub const OWN: &str = "own";
/// Version of a configuration: number of its changes. In an entity, what the changes of its plan add. In a
/// bucket, the sum over the levels that its limits are from, and the entity; absent if an acquire without
/// a version brought them.
pub const VERSION: &str = "cv";
/// Epoch ms of the last boundary of a schedule by which a bucket's limits of this version are scaled;
/// absent without schedules.
pub const BOUNDARY: &str = "cb";
/// Limits of a configuration, or of a stamp, by name.
pub const LIMITS: &str = "limits";
/// Mode of a limit in a configuration: what happens to a request that the limit cannot cover.
pub const MODE: &str = "mode";
/// Text of a quota's window in a configuration, for people and for releases that do not know its code.
pub const WINDOW: &str = "w";
/// Text of a limit's schedule in a configuration.
pub const SCHEDULE: &str = "schedule";
/// Release of the zone data by which a quota's window or a schedule was written; absent for UTC.
pub const ZONES: &str = "zd";
/// Status of a configuration: whether its limits apply.
pub const STATUS: &str = "status";
/// Switches of a namespace, by level.
pub const SWITCHES: &str = "switches";
/// Decision while DynamoDB is unavailable, of all limiters of a namespace.
pub const ON_UNAVAILABLE: &str = "on_unavailable";
/// A switch in an audit event.
pub const SWITCH: &str = "switch";
/// What was changed under an idempotency key, or by an audit event.
pub const WHAT: &str = "what";
/// Whether all limits of a configuration are in shadow mode.
pub const SHADOW: &str = "shadow";
/// Parent of an entity.
pub const PARENT_ID: &str = "parent_id";
/// Plan of an entity.
pub const ENTITY_PLAN: &str = "plan";
/// Number of entities that have a plan.
pub const ENTITIES: &str = "entities";
/// Number of levels of a plan that have a configuration.
pub const LEVELS: &str = "levels";
/// Whether takes of an entity also take from its parent.
pub const CASCADE: &str = "cascade";
/// Classes of callers of a configured limit, by name; their percentages are in text.
pub const CLASSES: &str = "classes";
/// Class of the callers of a configuration's entities.
pub const CLASS: &str = "class";
/// Display name of an entity.
pub const DISPLAY_NAME: &str = "display_name";
/// Labels of an entity, by name.
pub const LABELS: &str = "labels";
/// Whether the deployed functions know quotas.
pub const QUOTAS: &str = "quotas";
/// Version of the schema that a namespace is written in.
pub const SCHEMA: &str = "schema";
/// Epoch ms of a change, or of the balances in a stamp.
pub const AT: &str = "at";
/// Epoch ms until which a stamp is valid.
pub const UNTIL: &str = "until";
/// Number of shards that a stamp covers.
pub const SHARDS: &str = "n";
/// Principal that made a change.
pub const PRINCIPAL: &str = "principal";
/// Id of the lease that a change ended.
pub const LEASE: &str = "lease";
/// Idempotency key of a change.
pub const IDEMPOTENCY_KEY: &str = "key";
/// Kind of a change.
pub const ACTION: &str = "action";
/// Value before a change.
pub const BEFORE: &str = "before";
/// Value after a change.
pub const AFTER: &str = "after";
/// Partition key of the index of children.
pub const GSI1PK: &str = "GSI1PK";
/// Sort key of the index of children.
pub const GSI1SK: &str = "GSI1SK";
/// Partition key of the index of a resource's buckets and configured entities.
pub const GSI2PK: &str = "GSI2PK";
/// Sort key of the same.
pub const GSI2SK: &str = "GSI2SK";
/// Partition key of the index of an entity's buckets.
pub const GSI3PK: &str = "GSI3PK";
/// Sort key of the same.
pub const GSI3SK: &str = "GSI3SK";
/// Id of the entity.
pub const ENTITY_ID: &str = "entity_id";
/// Name of the resource.
pub const RESOURCE: &str = "resource";
/// Epoch ms at which an acquire without a version last changed a rule of the bucket.
pub const RULE_AT: &str = "rt";
/// Epoch seconds after which DynamoDB may delete the item.
pub const TTL: &str = "ttl";
/// Number set in a snapshot: shards with a final copy, made after the window had ended.
pub const FINAL: &str = "final";
/// Keys of the table and of its indexes.
pub const INDEXED: [&str; 10] =
    [PK, SK, GSI1PK, GSI1SK, GSI2PK, GSI2SK, GSI3PK, GSI3SK, DUE_SHARD, DUE];
/// Index of the shards that the reconciler must process.
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
    /// Refill period in ms; of a quota, the code of its window.
    RefillPeriod,
    /// End of a quota's window, epoch ms; other limits lack it. 0 before the first.
    WindowEnd,
    /// Net consumed at the start of the hour, in millitokens.
    HourBase,
    /// Net consumed at the start of the day, in millitokens.
    DayBase,
}

impl Field {
    /// All fields, in the order of [`Self::index`].
    pub const ALL: [Self; 8] = [
        Self::Tokens,
        Self::Consumed,
        Self::Capacity,
        Self::RefillAmount,
        Self::RefillPeriod,
        Self::WindowEnd,
        Self::HourBase,
        Self::DayBase,
    ];

    /// Returns the field's position in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Tokens => 0,
            Self::Consumed => 1,
            Self::Capacity => 2,
            Self::RefillAmount => 3,
            Self::RefillPeriod => 4,
            Self::WindowEnd => 5,
            Self::HourBase => 6,
            Self::DayBase => 7,
        }
    }

    /// Returns the last part of the attribute's name.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Tokens => "tk",
            Self::Consumed => "tc",
            Self::Capacity => "cp",
            Self::RefillAmount => "ra",
            Self::RefillPeriod => "rp",
            Self::WindowEnd => "we",
            Self::HourBase => "bh",
            Self::DayBase => "bd",
        }
    }

    /// Returns whether the field counts usage, in 128 bits. The others are amounts of 64 bits.
    #[must_use]
    pub const fn is_count(self) -> bool {
        matches!(self, Self::Consumed | Self::HourBase | Self::DayBase)
    }

    /// Returns the attribute's name for one limit.
    #[must_use]
    pub fn of(self, limit: &LimitName) -> String {
        format!("b_{limit}_{}", self.suffix())
    }

    /// Returns the limit and field of an attribute; `None` if it is another attribute.
    #[must_use]
    pub fn parse(attribute: &str) -> Option<(&str, Self)> {
        let (limit, suffix) = attribute.strip_prefix("b_")?.rsplit_once('_')?;
        let field = Self::ALL.into_iter().find(|field| field.suffix() == suffix)?;
        Some((limit, field))
    }
}

/// Returns the snapshot attribute with the `v` of the image that a shard's usage was copied from.
#[must_use]
pub fn copied_at(shard: u32) -> String {
    format!("q{shard}")
}

/// Returns the snapshot attribute with a shard's usage of `limit`, in tokens. No name of a limit has
/// a `#`; another attribute has none, or begins with it.
#[must_use]
pub fn copied(limit: &LimitName, shard: u32) -> String {
    format!("{limit}#{shard}")
}

/// Returns the snapshot attribute with the acquires of a shard.
#[must_use]
pub fn copied_takes(shard: u32) -> String {
    format!("#{shard}")
}

/// Returns the snapshot attribute with the usage of a shard's earlier life until `v`: a map, of
/// which `#` are the acquires. It has no final copy yet.
#[must_use]
pub fn unfinished(shard: u32, v: i64) -> String {
    format!("#u{shard}#{v}")
}

/// Returns the snapshot attribute, a number set, with the `v` of the final copy of each earlier life
/// of a shard that was added to the carry.
#[must_use]
pub fn carried(shard: u32) -> String {
    format!("#c{shard}")
}

/// Suffix of a limit's attribute with the usage of earlier lives of all shards; alone, that with
/// their acquires.
pub const CARRY: &str = "#c";

/// Returns whether an attribute of a shard counts usage. A shard that is merged away keeps these,
/// and `v`.
#[must_use]
pub fn counts_usage(attribute: &str) -> bool {
    const COUNTERS: [&str; 5] = [BIRTH, HOUR, TAKES, TAKES_HOUR_BASE, TAKES_DAY_BASE];
    COUNTERS.contains(&attribute)
        || Field::parse(attribute).is_some_and(|(_, field)| field.is_count())
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

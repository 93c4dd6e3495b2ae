//! The pure part of Weirgate: no I/O, no clock, no environment, no arithmetic of floats. Only the
//! feature `files` reads something.
//!
//! # Layout
//!
//! - `units`: [`MilliTokens`], [`MilliTotal`], [`EpochMillis`], [`Millis`]: one type per unit
//! - `id`: validated names that cannot hold a key delimiter
//! - `asks`: [`Asks`]: amounts of limits, and what becomes of them
//! - `limit`: [`Limit`] and its text, its [`RefillRule`] (capacity and refill) and its [`LimitKind`]
//! - `quota`: [`QuotaWindow`] of a quota, [`Every`] that builds it, and its [`WindowCode`]
//! - `schedule`: [`Schedule`]: rules by which a limit is scaled at certain times
//! - [`calendar`] (feature `calendar`): when windows end and which rule holds, in time zones
//! - `config`: [`Config`]: limits at four levels, and the entities they are for
//! - `description`: [`EntityDescription`]: display name and labels of an entity
//! - `switch`: [`Switches`]: levels that an operator has stopped
//! - `on_unavailable`: [`OnUnavailable`]: what to decide while DynamoDB is unavailable
//! - `operation`: [`Operation`]: a change that its idempotency key remembers
//! - `edit`: [`BucketEdit`]: a change of all shards of a bucket, while it is under way
//! - `audit`: [`AuditEvent`]: a change of the configuration or of a bucket, with its principal
//! - `versioned_limits`: [`VersionedLimits`]: the limits of an acquire, and their version
//! - `math`: refill, share, retry-after
//! - `shard`: [`Shard`]: one shard as a value, its balance, and the limits that overrule its own
//! - `lease`: [`Lease`]: tokens held under an id until an expiry
//! - `bucket`: [`Bucket`]: all shards of a bucket together
//! - `meter`: [`Meter`]: what a shard has used in its current hour and day
//! - `snapshot`: [`Snapshot`]: usage that was copied, and the [`usage`] of a window from copies and
//!   live items
//! - `span`: durations as text
//! - `address`: where a server is reached on this machine
//! - `docs`: [`docs!`]: the address of a page of the documentation
//! - `stamp`: [`Stamp`]: the balances of all shards, which a denied process writes
//! - `granularity`: [`Granularity`]: hours, days and months of usage reports
//! - `key`, `attr`, `window`: keys beside their parsers, attribute names, usage windows
//! - `item`: attributes to values and back
//! - [`evaluator`] (feature `evaluator`): planned writes evaluated in memory, as DynamoDB does
//! - [`files`] (feature `files`): YAML files whose errors have line and column, read again when they
//!   change
//! - `json` (feature `serde`): public values to JSON and back
//! - [`write`](mod@write): planned writes as data: take, settle, refill, expire, split, merge,
//!   copy, configure

mod address;
mod asks;
pub mod attr;
mod audit;
mod bucket;
#[cfg(feature = "calendar")]
pub mod calendar;
mod config;
mod description;
mod docs;
mod edit;
#[cfg(feature = "evaluator")]
pub mod evaluator;
#[cfg(feature = "files")]
pub mod files;
mod granularity;
mod id;
mod item;
#[cfg(feature = "serde")]
mod json;
mod key;
mod lease;
mod limit;
mod math;
mod meter;
mod on_unavailable;
mod operation;
mod pause;
mod quota;
mod schedule;
mod shard;
mod snapshot;
mod span;
mod stamp;
mod switch;
mod units;
mod versioned_limits;
mod window;
pub mod write;

pub use address::reached;
pub use asks::{Ask, Asks, Effect, by_limit};
pub use audit::{AuditChange, AuditEvent};
pub use bucket::Bucket;
pub use config::{
    Config, ConfigError, ConfigLevel, ConfigPatch, ConfigStatus, Entity, MAX_BUCKET_LIMITS,
    MAX_LIMITS, SCHEMA_VERSION, Versioned,
};
pub use description::{DescriptionError, EntityDescription};
pub use edit::{BalanceStep, BucketEdit, EditChange};
pub use granularity::Granularity;
pub use id::{
    ClassName, EntityId, IdempotencyKey, LimitName, NameError, Namespace, PlanName, Resource,
    WriteId,
};
pub use item::{
    Attr, ItemError, PURGE, PlanCount, ShardReader, is_merged, know_quotas, read_audit,
    read_config, read_description, read_edit, read_entity, read_key, read_leases, read_live,
    read_operation, read_plan_count, read_readable_leases, read_schema, read_shard, read_snapshot,
    read_stamp, read_switches, write_audit, write_config, write_description, write_entity,
    write_lease, write_leases, write_shard, write_units,
};
pub use key::{
    AuditId, AuditKey, AuditSubject, BUCKET_SK, BucketKey, ConfigFilter, ConfigKey, EntityKey,
    ItemKey, LISTED_AUDIT, LISTED_CONFIG, LISTED_ENTITY, LISTED_NAMESPACE, NAMESPACES, PlanKey,
    SNAPSHOT_SK, SnapshotKey, audit_partitions, config_partitions, due_shards, entity_partitions,
    functions_key, operation_key, plan_partitions, resource_partitions, schema_key, switches_key,
};
pub use lease::{Lease, LeaseReturn};
pub use limit::{
    Class, Limit, LimitError, LimitKind, LimitMode, MAX_PERIOD_MS, MAX_TOKENS, PoolChoice,
    RefillRule, rate_text,
};
pub use math::{MAX_SHARDS, MIN_BALANCE, ShardIndex, ready_at, refill_between, refilled};
pub use meter::{Bases, Counter, Meter, Usage};
pub use on_unavailable::OnUnavailable;
pub use operation::{EditId, Operation};
pub use pause::Pause;
pub use quota::{
    CalendarWindow, Every, Period, QuotaWindow, SessionWindow, Weekday, WindowCode, WindowError,
    ZONE_DATA, ZoneName,
};
pub use schedule::{ActiveScale, ClockMinute, Cron, Scale, Schedule, ScheduleRule};
pub use shard::{ActivitySample, LimitState, Scaling, Shard};
pub use snapshot::{
    ARRIVAL, DELIVERY, IntervalUsage, ShardUsageCopy, Snapshot, Snapshots, UsageHorizon,
    UsageState, WindowUsage, interval_usage, is_kept, usage,
};
pub use span::{exact_span, parse_span, parse_timeout, rounded_span};
pub use stamp::Stamp;
pub use switch::{MAX_SWITCHES, Switch, Switches};
pub use units::{EpochMillis, EpochSeconds, MilliTokens, MilliTotal, Millis};
pub use versioned_limits::{Calendar, LimitsVersion, RULES_STAND, VersionedLimits};
pub use window::{Hour, Iso8601, Window, parse_iso8601};

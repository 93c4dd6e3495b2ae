//! What a usage report is about, and its rows.

use std::ops::Range;

use weirgate_shared::{EntityId, EpochMillis, Granularity, PlanName, Resource, Usage, UsageState};

/// Whose usage a report has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageScope {
    /// That of an entity on a resource.
    Bucket(EntityId, Resource),
    /// That of an entity on all resources it has used.
    Entity(EntityId),
    /// That of the entities which have a plan now, on a resource or on all resources they have used.
    Plan(PlanName, Option<Resource>),
    /// That of all entities on a resource. An entity is in it while it has a bucket: one that lives
    /// on default limits loses its bucket about a day after its last use.
    Resource(Resource),
}

/// Usage of one bucket in one interval.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UsageRow {
    /// The entity.
    pub entity: EntityId,
    /// The resource.
    pub resource: Resource,
    /// First instant of the interval.
    #[cfg_attr(feature = "serde", serde(rename = "start_ms"))]
    pub start: EpochMillis,
    /// First instant after it.
    #[cfg_attr(feature = "serde", serde(rename = "end_ms"))]
    pub end: EpochMillis,
    /// Amount of each limit, and the number of acquires. An amount may be negative: tokens taken in
    /// one interval may return in the next.
    pub usage: Usage,
    /// Whether the amounts can change. If they are unknown, a part of them may be missing.
    pub state: UsageState,
    /// Instant before which all usage is included: `end` if the row is final, the time of the read
    /// in an interval in progress.
    #[cfg_attr(feature = "serde", serde(rename = "complete_until_ms"))]
    pub complete_until: EpochMillis,
}

impl UsageRow {
    /// Returns whether the row never changes.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.state == UsageState::Final
    }
}

/// The intervals of a report.
#[derive(Debug, Clone)]
pub(super) struct UsageQuery {
    pub(super) scope: UsageScope,
    pub(super) granularity: Granularity,
    /// On boundaries of intervals.
    pub(super) range: Range<EpochMillis>,
}

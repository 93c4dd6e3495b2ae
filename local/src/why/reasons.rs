//! What decides about a bucket, as values.

use serde::Serialize;
use weirgate::{
    AuditEvent, Config, ConfigLevel, Entity, EntityId, Limit, LimitStatus, PlanName, Resource,
    Schedule, StoredLease, Switch, Unreadable,
};

use super::fields::Field;
use super::saturation::Saturation;

/// Leases that are told, the first to expire first.
pub const LEASES: usize = 20;

/// All that decides about a bucket. Its JSON is documented in `docs/guide/command-line.md`.
#[derive(Debug, Clone, Serialize)]
pub struct Reasons {
    /// The bucket's entity.
    pub entity: EntityId,
    /// The bucket's resource.
    pub resource: Resource,
    /// The entity and its ancestors, the entity first.
    pub entities: Vec<Entity>,
    /// Every level of them, the narrowest first.
    pub levels: Vec<Level>,
    /// Plan of the entity or of an ancestor, although no level of it has limits: those of the resource and
    /// of the system hold instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_plan: Option<PlanName>,
    /// The level that stops the bucket.
    pub stopped_at: Option<ConfigLevel>,
    /// Limits of the bucket, and of those of its ancestors that its acquires take from.
    pub limits: Vec<Known>,
    /// Number of leases of the bucket.
    pub lease_count: usize,
    /// The leases of the bucket that expire first, at most [`LEASES`].
    pub leases: Vec<StoredLease>,
    /// The last changes of all its levels.
    pub changes: Vec<Change>,
    /// Switches, leases and changes that cannot be read, so that nothing above has them. A level whose
    /// switch cannot be read is stopped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
    /// Commands to run next, each with its reason.
    pub next: Vec<Next>,
    /// What the reads cost, in halves of a read unit, by the documented cost of each.
    #[serde(skip)]
    pub halves: u64,
}

/// A level of the bucket.
#[derive(Debug, Clone, Serialize)]
pub struct Level {
    /// The level.
    #[serde(flatten)]
    pub level: ConfigLevel,
    /// What is configured for it.
    pub config: Option<Config>,
    /// Whether an operator stopped or exempted it.
    pub switch: Option<Switch>,
}

/// A limit with the level that it comes from.
#[derive(Debug, Clone, Serialize)]
pub struct Known {
    /// The limit, with its balance.
    #[serde(flatten)]
    pub status: LimitStatus,
    /// The level that it comes from; `None` if the bucket has another limit than the table: callers
    /// bring it with the call or from a file, or none has taken since a change.
    pub from: Option<ConfigLevel>,
    /// The limit of this name that is configured for the bucket, if it is of another kind: acquires
    /// fail until it has another name, or the bucket's kind.
    #[serde(skip)]
    pub other_kind: Option<(ConfigLevel, Limit)>,
    /// How much of it is in use; `None` if that is unknown.
    pub saturation: Option<Saturation>,
    /// When the window of a quota ends, as people read it; `None` for other limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets: Option<String>,
    /// Scale of its schedule's rule in force, with the next boundary, as people read it; `None` without
    /// a schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<String>,
}

/// A change of a level or a bucket.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// The audit event.
    #[serde(flatten)]
    pub event: AuditEvent,
    /// Its fields, as text.
    pub fields: Vec<Field>,
}

/// A command to run next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Next {
    /// Why.
    pub reason: String,
    /// The command, as a shell takes it.
    pub command: String,
}

/// Returns the narrowest configured level of an entity, which wins.
#[must_use]
pub fn in_force<'l>(
    levels: &'l [Level],
    entity: &EntityId,
    plan: Option<&PlanName>,
    resource: &Resource,
) -> Option<(&'l ConfigLevel, &'l Config)> {
    let of = ConfigLevel::of_entity(entity, plan, resource);
    of.iter().find_map(|of| {
        let level = levels.iter().find(|level| level.level == *of)?;
        Some((&level.level, level.config.as_ref()?))
    })
}

impl Reasons {
    /// Returns the level that the limits of the entity come from.
    #[must_use]
    pub fn in_force(&self) -> Option<(&ConfigLevel, &Config)> {
        self.entities.first().and_then(|of| self.in_force_for(of))
    }

    /// Returns the level that the limits of the entity or of an ancestor come from.
    pub(super) fn in_force_for(&self, of: &Entity) -> Option<(&ConfigLevel, &Config)> {
        in_force(&self.levels, &of.id, of.plan.as_ref(), &self.resource)
    }
}

/// Returns whether a bucket's limit is that of a configuration, at any scale of its schedule: a bucket
/// follows a boundary with its next take.
#[must_use]
pub fn is_of(status: &LimitStatus, config: &Config) -> bool {
    let is_rule = |limit: &Limit| {
        let rule = limit.rule();
        let is_period = match rule.window_code() {
            None => {
                let period_ms = u128::from(rule.refill_period_ms.unsigned_abs());
                status.refill_period.as_millis() == period_ms
            }
            window => status.window == window,
        };
        limit.name().as_str() == status.limit
            && status.capacity == rule.capacity
            && status.refill_amount == rule.refill_amount
            && is_period
    };
    let is_scaled = |limit: &Limit| {
        let mut rules = limit.schedule().into_iter().flat_map(Schedule::rules);
        rules.any(|rule| limit.scaled(rule.scale()).as_ref().is_some_and(is_rule))
    };
    let mut limits = config.limits.iter();
    limits.any(|limit| is_rule(limit) || is_scaled(limit))
}

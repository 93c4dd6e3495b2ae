//! The limits in force for an entity on a resource, and where they come from.

use std::sync::Arc;

use weirgate_shared::{
    Config, ConfigLevel, ConfigStatus, Entity, EntityId, EpochMillis, Limit, LimitName, PlanName,
    Resource, Scale, ZoneName,
};

use super::Admin;
use crate::values::calendar::active_scale;
use crate::values::{EffectiveConfig, Error, FileLevels};

/// The limits that an acquire has which brings none itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EffectiveLimits {
    /// The bucket of the entity, then that of each ancestor which it cascades to and which has limits.
    /// An acquire takes of all of them, or of none.
    pub buckets: Vec<EffectiveBucket>,
    /// The levels of the entity on the resource, in the order of [`ConfigLevel::of_entity`]: the first one
    /// with a configuration wins.
    pub levels: Vec<ConfiguredLevel>,
    /// Plan of the entity, or else of an ancestor that it cascades to, although no level of it has a
    /// configuration: the limits of the resource and of the system hold instead.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub missing_plan: Option<PlanName>,
}

/// The limits in force for one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EffectiveBucket {
    /// Entity of the bucket.
    pub entity: EntityId,
    /// Level that the limits come from; `None` if no level has a configuration.
    pub level: Option<ConfigLevel>,
    /// Whether the limits apply; `None` without a configuration. A [stop](Admin::stop) is not a part
    /// of it.
    pub status: Option<ConfigStatus>,
    /// Limits in their effective modes, as their schedules scale them now.
    pub limits: Vec<Limit>,
    /// What the schedules of limits say now; empty without schedules.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub scales: Vec<LimitScale>,
}

/// What the schedule of a limit says now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LimitScale {
    /// Name of the limit.
    pub limit: LimitName,
    /// Scale of the rule in force; `1/1` if no rule is.
    pub scale: Scale,
    /// Instant until which it is in force: the next boundary of the schedule.
    #[cfg_attr(feature = "serde", serde(rename = "until_ms"))]
    pub until: EpochMillis,
    /// Zone of the schedule.
    pub tz: ZoneName,
}

/// A level, and its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ConfiguredLevel {
    /// Level.
    pub level: ConfigLevel,
    /// Configuration, if it has one: the limits file's, or else the table's.
    pub config: Option<Config>,
    /// Whether it is the limits file's, so that a change in the table has no effect.
    pub is_from_file: bool,
}

impl Admin {
    /// Returns the limits in force for an entity on a resource, with the levels that they come from:
    /// those of the table, read from it, and of the limits file of this limiter.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let effective = limiter.admin().effective_limits(&"user-1".try_into()?, &"gpt-4".try_into()?).await?;
    /// for bucket in effective.buckets {
    ///     println!("{}: {:?} from {:?}", bucket.entity, bucket.limits, bucket.level);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if an item was changed by other means.
    pub async fn effective_limits(
        &self,
        entity: &EntityId,
        resource: &Resource,
    ) -> Result<EffectiveLimits, Error> {
        self.session
            .at_home(async {
                let file = self.session.file_levels();
                let file = file.as_deref();
                let of = self.membership(file, entity).await?;
                let plan = of.plan.as_ref();
                let levels = self.levels(file, entity, plan, resource).await?;
                let now = self.session.now();
                let mut buckets = vec![EffectiveBucket::of(entity, &levels, now)];
                let mut missing_plan = self.missing(file, plan, &levels).await?;
                let (mut entities, mut next) = (vec![entity.clone()], of.parent);
                while let Some(parent) = next.filter(|id| !entities.contains(id)) {
                    let of = self.membership(file, &parent).await?;
                    let plan = of.plan.as_ref();
                    let levels = self.levels(file, &parent, plan, resource).await?;
                    if missing_plan.is_none() {
                        missing_plan = self.missing(file, plan, &levels).await?;
                    }
                    let bucket = EffectiveBucket::of(&parent, &levels, now);
                    buckets.extend(bucket.level.is_some().then_some(bucket));
                    entities.push(parent);
                    next = of.parent;
                }
                Ok(EffectiveLimits { buckets, levels, missing_plan })
            })
            .await
    }

    async fn levels(
        &self,
        file: Option<&FileLevels>,
        entity: &EntityId,
        plan: Option<&PlanName>,
        resource: &Resource,
    ) -> Result<Vec<ConfiguredLevel>, Error> {
        let levels = ConfigLevel::of_entity(entity, plan, resource);
        let stored = self.read_configs(&levels).await?;
        let levels = levels.into_iter().zip(stored);
        let configured = levels.map(|(level, stored)| {
            let of_file = file.and_then(|file| file.config(&level));
            let of_file = of_file.map(in_effective_modes);
            ConfiguredLevel {
                level,
                is_from_file: of_file.is_some(),
                config: of_file.or(stored.value),
            }
        });
        Ok(configured.collect())
    }

    /// Returns a plan of which no level has a configuration. `levels` are those of an entity with it.
    async fn missing(
        &self,
        file: Option<&FileLevels>,
        plan: Option<&PlanName>,
        levels: &[ConfiguredLevel],
    ) -> Result<Option<PlanName>, Error> {
        let is_found = |of: &ConfiguredLevel| of.level.plan().is_some() && of.config.is_some();
        let Some(plan) = plan.filter(|plan| file.is_none_or(|file| !file.has_plan(plan))) else {
            return Ok(None);
        };
        let is_missing = !levels.iter().any(is_found) && !self.is_configured(plan).await?;
        Ok(is_missing.then(|| plan.clone()))
    }

    /// Returns an entity with the parent that it cascades to and its plan: the file's, or else the
    /// table's.
    async fn membership(&self, file: Option<&FileLevels>, id: &EntityId) -> Result<Entity, Error> {
        let stored = self.entity(id).await?;
        let stored = stored.unwrap_or_else(|| Entity::new(id.clone()));
        let parent = match file.and_then(|file| file.cascades_to(id)) {
            Some(parent) => parent.cloned(),
            None => stored.parent.filter(|_| stored.cascades),
        };
        Ok(Entity {
            parent,
            plan: file.and_then(|file| file.plan(id)).cloned().or(stored.plan),
            ..Entity::new(stored.id)
        })
    }
}

impl EffectiveBucket {
    fn of(entity: &EntityId, levels: &[ConfiguredLevel], now: EpochMillis) -> Self {
        let in_force = levels.iter().find_map(|of| Some((&of.level, of.config.as_ref()?)));
        let limits = in_force.map_or(&[][..], |(_, config)| &config.limits);
        let scales = limits.iter().filter_map(|limit| LimitScale::of(limit, now));
        let scales = scales.collect();
        let in_force = in_force.map(|(level, config)| {
            let config = EffectiveConfig::new(level.clone(), config, None);
            Arc::new(config).at(now)
        });
        let in_force = in_force.as_ref();
        Self {
            entity: entity.clone(),
            status: in_force.map(|config| config.status),
            limits: in_force.map_or_else(Vec::new, |config| config.limits.named().to_vec()),
            level: in_force.map(|config| config.level.clone()),
            scales,
        }
    }
}

impl LimitScale {
    fn of(limit: &Limit, now: EpochMillis) -> Option<Self> {
        let schedule = limit.schedule()?;
        let active = active_scale(schedule, now)?;
        Some(Self {
            limit: limit.name().clone(),
            scale: active.scale,
            until: active.until,
            tz: schedule.zone_name(),
        })
    }
}

/// Returns a configuration of a limits file, its limits in their effective modes.
fn in_effective_modes(config: &Arc<EffectiveConfig>) -> Config {
    Config {
        limits: config.limits.named().to_vec(),
        status: config.status,
        is_shadow: false,
        class: config.class.clone(),
    }
}

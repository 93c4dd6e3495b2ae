//! The configuration that applies to a bucket.

use std::ops::Range;
use std::sync::Arc;

use weirgate_shared::{
    ActiveScale, ClassName, Config, ConfigLevel, ConfigStatus, EpochMillis, Limit, LimitMode,
    LimitName, LimitsVersion,
};

use super::calendar;
use super::limits::Limits;

/// Configuration of the level that applies.
#[derive(Debug)]
pub(crate) struct EffectiveConfig {
    pub(crate) level: ConfigLevel,
    pub(crate) status: ConfigStatus,
    /// Limits, with the sum of all levels' versions, which rises with every change of any level.
    pub(crate) limits: Limits,
    /// Class of the entity's callers, whatever a request says.
    pub(crate) class: Option<ClassName>,
    /// Names of the limits of all levels, where this one is unlimited: what a request can mean.
    pub(crate) names: Vec<LimitName>,
    /// Boundaries of the schedules between which these limits are in force; `None` without schedules.
    pub(crate) in_force: Option<Range<EpochMillis>>,
}

impl EffectiveConfig {
    /// Creates it. In shadow mode all enforced limits become shadow limits.
    pub(crate) fn new(level: ConfigLevel, config: &Config, version: Option<LimitsVersion>) -> Self {
        let in_mode = |limit: &Limit| {
            let is_shadow = config.is_shadow && limit.mode() == LimitMode::Enforced;
            if is_shadow { limit.clone().in_mode(LimitMode::Shadow) } else { limit.clone() }
        };
        let limits = Limits::new(config.limits.iter().map(in_mode).collect(), version);
        let limits =
            if matches!(level, ConfigLevel::EntityResource(..)) { limits.own() } else { limits };
        Self {
            level,
            status: config.status,
            limits,
            class: config.class.clone(),
            names: vec![],
            in_force: None,
        }
    }

    /// Adds the names of the limits of all levels, if this one is unlimited.
    pub(crate) fn among<I: Iterator<Item = Arc<Self>>>(
        self: Arc<Self>,
        levels: impl FnOnce() -> I,
    ) -> Arc<Self> {
        if self.status != ConfigStatus::Unlimited {
            return self;
        }
        let names = levels().flat_map(|level| {
            let names = level.limits.named().iter().map(|limit| limit.name().clone());
            names.collect::<Vec<_>>()
        });
        Arc::new(Self {
            level: self.level.clone(),
            status: self.status,
            limits: self.limits.clone(),
            class: self.class.clone(),
            names: names.collect(),
            in_force: None,
        })
    }

    /// Returns the configuration with its limits as their schedules scale them at `now`. A limit whose
    /// schedule this process does not know keeps it, so a request is refused.
    pub(crate) fn at(self: Arc<Self>, now: EpochMillis) -> Arc<Self> {
        if self.limits.named().iter().all(|limit| limit.schedule().is_none()) {
            return self;
        }
        let mut in_force = EpochMillis(0)..EpochMillis(i64::MAX);
        let scaled = |limit: &Limit| {
            let active = limit.schedule().and_then(|of| calendar::active_scale(of, now));
            let ActiveScale { scale, since, until } = active?;
            in_force = in_force.start.max(since)..in_force.end.min(until);
            limit.scaled(scale)
        };
        let scaled = self.limits.named().iter().map(scaled).collect::<Vec<_>>();
        let limits = self.limits.named().iter().zip(scaled);
        let limits = limits.map(|(limit, scaled)| scaled.unwrap_or_else(|| limit.clone()));
        let limits = self.limits.at(limits.collect(), in_force.start);
        Arc::new(Self {
            level: self.level.clone(),
            status: self.status,
            limits,
            class: self.class.clone(),
            names: self.names.clone(),
            in_force: Some(in_force),
        })
    }
}

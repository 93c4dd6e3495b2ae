//! The configuration that applies to a bucket.

use std::sync::Arc;

use weirgate_shared::{
    Config, ConfigLevel, ConfigStatus, Limit, LimitMode, LimitName, LimitsVersion,
};

use super::limits::Limits;

/// Configuration of the level that applies.
#[derive(Debug)]
pub(crate) struct EffectiveConfig {
    pub(crate) level: ConfigLevel,
    pub(crate) status: ConfigStatus,
    /// Limits, with the sum of all levels' versions, which rises with every change of any level.
    pub(crate) limits: Limits,
    /// Names of the limits of all levels, where this one is unlimited: what a request can mean.
    pub(crate) names: Vec<LimitName>,
}

impl EffectiveConfig {
    /// Creates it. In shadow mode all enforced limits become shadow limits.
    pub(crate) fn new(level: ConfigLevel, config: &Config, version: Option<LimitsVersion>) -> Self {
        let in_mode = |limit: &Limit| {
            let is_shadow = config.is_shadow && limit.mode() == LimitMode::Enforced;
            if is_shadow {
                limit.clone().in_mode(LimitMode::Shadow)
            } else {
                limit.clone()
            }
        };
        let limits = Limits::new(config.limits.iter().map(in_mode).collect(), version);
        let limits = if matches!(level, ConfigLevel::EntityResource(..)) {
            limits.own()
        } else {
            limits
        };
        Self {
            level,
            status: config.status,
            limits,
            names: vec![],
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
            let names = level.limits.iter().map(|limit| limit.name().clone());
            names.collect::<Vec<_>>()
        });
        Arc::new(Self {
            level: self.level.clone(),
            status: self.status,
            limits: self.limits.clone(),
            names: names.collect(),
        })
    }
}

//! The configuration that applies to a bucket.

use weirgate_shared::{Config, ConfigLevel, ConfigStatus, Limit, LimitMode, LimitName};

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
    pub(crate) fn new(level: ConfigLevel, config: &Config, version: Option<i64>) -> Self {
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

    /// Sets the names of the limits of all levels, if this one is unlimited.
    pub(crate) fn among(mut self, levels: impl Iterator<Item = LimitName>) -> Self {
        if self.status == ConfigStatus::Unlimited {
            self.names = levels.collect();
        }
        self
    }
}

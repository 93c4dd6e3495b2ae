//! The limits in force for an entity on a resource.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::EntityId;

use crate::session::{Moment, Session};
use crate::values::EffectiveConfig;

/// Age below which a configuration is not read again for any reason, 1 s.
pub(crate) const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// The limits in force for an entity on a resource, and the parent.
#[derive(Debug)]
pub(crate) struct ResolvedConfig {
    /// `None` if no level has a configuration.
    pub(crate) config: Option<Arc<EffectiveConfig>>,
    /// Parent that the entity cascades to.
    pub(crate) parent: Option<EntityId>,
    /// Time of the last read of the oldest part, successful or not.
    pub(super) read_at: Moment,
    pub(super) valid_until: Moment,
    pub(super) generation: u64,
}

/// Greatest age of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The limiter's setting.
    AnyAge,
    /// [`MIN_REREAD_INTERVAL`], because the limits have probably changed.
    Recent,
    /// Read for this purpose.
    Now,
}

impl ResolvedConfig {
    /// Returns the configuration of a file, which needs no table.
    #[cfg(feature = "yaml")]
    pub(super) fn of_file(
        file: &crate::file::LimitsFile,
        session: &Session,
        key: &weirgate_shared::BucketKey,
    ) -> Option<Arc<Self>> {
        let (config, parent) =
            file.rules((&key.entity, &key.resource), session.table.skew().local())?;
        let now = session.ages.now();
        Some(Arc::new(Self {
            config: Some(config),
            parent,
            read_at: now,
            valid_until: now,
            generation: 0,
        }))
    }

    /// Returns whether it is old enough to be read again.
    pub(crate) fn may_be_stale(&self, now: Moment) -> bool {
        now.since(self.read_at) >= MIN_REREAD_INTERVAL
    }

    /// Returns whether a bucket showed a `newer` version, and this one is old enough to be read
    /// again.
    pub(super) fn is_older_than(&self, newer: i64, now: Moment) -> bool {
        self.config
            .as_ref()
            .is_some_and(|config| config.limits.version < Some(newer))
            && self.may_be_stale(now)
    }
}

//! The limits in force for an entity on a resource.

use std::sync::Arc;

use weirgate_shared::EntityId;

use crate::session::Moment;
use crate::values::EffectiveConfig;

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

impl ResolvedConfig {
    /// Returns the configuration of a file, which needs no table.
    #[cfg(feature = "yaml")]
    pub(super) fn of_file(
        file: &crate::file::LimitsFile,
        session: &crate::session::Session,
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
}

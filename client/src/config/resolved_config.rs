//! The limits in force for an entity on a resource.

use std::sync::Arc;

use weirgate_shared::EntityId;

#[cfg(feature = "yaml")]
use crate::file::FileLevels;
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
    /// Sum of the versions of the table's levels, which rises with every change of any of them.
    pub(super) version: i64,
    /// The limits file that it was resolved with.
    #[cfg(feature = "yaml")]
    pub(super) file: Option<Arc<FileLevels>>,
}

//! The level that a command is about.

use clap::Args;
use weirgate::{ConfigLevel, EntityId, Resource};

use crate::failure::Failure;

/// Exactly one level: the system, a resource, an entity, or an entity on a resource.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = true)]
pub struct LevelArgs {
    /// The whole namespace
    #[arg(long, conflicts_with_all = ["entity", "resource"])]
    system: bool,
    /// An entity; with --resource, on that resource only
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// A resource, for every entity unless --entity is given
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
}

impl LevelArgs {
    /// Returns the level.
    ///
    /// # Errors
    /// [`Failure::Refused`] for a wrong name.
    pub fn level(&self) -> Result<ConfigLevel, Failure> {
        let entity = self.entity.as_deref().map(EntityId::new).transpose()?;
        let resource = self.resource.as_deref().map(Resource::new).transpose()?;
        Ok(match (entity, resource) {
            (Some(entity), Some(resource)) => ConfigLevel::EntityResource(entity, resource),
            (Some(entity), None) => ConfigLevel::Entity(entity),
            (None, Some(resource)) => ConfigLevel::Resource(resource),
            (None, None) => ConfigLevel::System,
        })
    }
}

//! The level that a command is about.

/// The usage of a command about a level, in lines of 80 columns.
macro_rules! level_usage {
    ($command:literal, $rest:literal) => {
        concat!(
            "weirgate ",
            $command,
            " [OPTIONS] --system",
            $rest,
            "\n       ",
            "weirgate ",
            $command,
            " [--resource <NAME>] [--entity <ID>]",
            $rest,
            "\n       ",
            "weirgate ",
            $command,
            " [--resource <NAME>] --plan <NAME>",
            $rest
        )
    };
}
pub(crate) use level_usage;

use clap::Args;
use weirgate::{ConfigLevel, EntityId, PlanName, Resource};

use crate::amounts;

/// Exactly one level: the system, a resource, a plan, an entity, or one of the latter on a resource.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = true)]
pub struct LevelArgs {
    /// The whole namespace
    #[arg(long, conflicts_with_all = ["entity", "plan", "resource"])]
    system: bool,
    /// An entity; with --resource, on that resource only
    #[arg(long, value_name = "ID", value_parser = amounts::entity)]
    entity: Option<EntityId>,
    /// The entities of a plan; with --resource, on that resource only
    #[arg(long, value_name = "NAME", conflicts_with = "entity", value_parser = amounts::plan)]
    plan: Option<PlanName>,
    /// A resource, for every entity unless --entity or --plan is given
    #[arg(long, value_name = "NAME", value_parser = amounts::resource)]
    resource: Option<Resource>,
}

impl LevelArgs {
    /// Returns the level.
    pub fn level(&self) -> ConfigLevel {
        let Self { entity, plan, resource, .. } = self.clone();
        ConfigLevel::of_names(entity, plan, resource)
    }
}

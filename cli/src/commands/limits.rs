//! `weirgate limits`.

mod apply;
mod diff;
mod plan;
mod show;

use clap::{Args, Subcommand};
use serde::Serialize;
use weirgate::{Config, ConfigFilter, ConfigLevel, ConfigStatus, EntityId, Limit, Resource};

use super::list::PageArgs;
use super::report::done;
use crate::amounts;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::level::LevelArgs;

/// Commands about configured limits.
#[derive(Debug, Subcommand)]
pub enum Limits {
    /// Shows the configuration of a level
    #[command(after_help = "Example: weirgate limits get --resource gpt-4")]
    Get(Get),
    /// Sets the configuration of a level, and replaces the one before
    #[command(
        after_help = "Example: weirgate limits set --resource gpt-4 rpm=500/minute tpm=100000/minute,burst=200000 slots=20"
    )]
    Set(Set),
    /// Deletes the configuration of a level
    #[command(after_help = "Example: weirgate limits delete --entity user-1 --resource gpt-4")]
    Delete(Delete),
    /// Lists configurations
    #[command(after_help = "Example: weirgate limits list --resource gpt-4 --all")]
    List(List),
    /// Shows what a limits file would change in the table
    #[command(after_help = "Example: weirgate limits diff limits.yaml --exit-code")]
    Diff(diff::Diff),
    /// Plans the changes of a limits file, for `limits apply`
    #[command(after_help = "Example: weirgate limits plan limits.yaml --out limits.plan")]
    Plan(plan::Plan),
    /// Makes the changes of a plan, if nothing has changed since
    #[command(after_help = "Example: weirgate limits apply limits.plan")]
    Apply(apply::Apply),
}

/// Shows the configuration of a level.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    level: LevelArgs,
}

/// Sets the configuration of a level.
#[derive(Debug, Args)]
pub struct Set {
    #[command(flatten)]
    level: LevelArgs,
    /// Limits: NAME=TOKENS/PERIOD (second, minute, hour, day) or NAME=SLOTS, with ,burst=TOKENS and
    /// ,mode=enforced, shadow or soft
    #[arg(value_name = "LIMIT", value_parser = amounts::limit)]
    limits: Vec<Limit>,
    /// Denies every acquire of the level
    #[arg(long, conflicts_with = "unlimited")]
    disabled: bool,
    /// Enforces no limit
    #[arg(long)]
    unlimited: bool,
    /// Counts what the limits would deny, and denies nothing
    #[arg(long)]
    shadow: bool,
}

/// Deletes the configuration of a level.
#[derive(Debug, Args)]
pub struct Delete {
    #[command(flatten)]
    level: LevelArgs,
}

/// Lists configurations.
#[derive(Debug, Args)]
#[group(required = true, multiple = false, args = ["entity", "resource", "entities", "resources"])]
pub struct List {
    /// All of one entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Those of all entities for one resource
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// The defaults of all entities
    #[arg(long)]
    entities: bool,
    /// Those of all resources
    #[arg(long)]
    resources: bool,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Serialize)]
struct Configured {
    level: ConfigLevel,
    config: Option<Config>,
}

impl Limits {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        match self {
            Self::Get(command) => command.run(context).await,
            Self::Set(command) => command.run(context).await,
            Self::Delete(command) => command.run(context).await,
            Self::List(command) => command.run(context).await,
            Self::Diff(command) => command.run(context).await,
            Self::Plan(command) => command.run(context).await,
            Self::Apply(command) => command.run(context).await,
        }
    }
}

impl Get {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let level = self.level.level()?;
        let config = context.limiter().await?.config(&level).await?;
        let configured = Configured { level, config };
        let output = context.output();
        output.print(&configured, |Configured { level, config }| match config {
            Some(config) => show::config(output, config),
            None => format!("{level} has no configuration"),
        })?;
        Ok(Outcome::Done)
    }
}

impl Set {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let level = self.level.level()?;
        let status = match (self.disabled, self.unlimited) {
            (true, _) => ConfigStatus::Disabled,
            (false, true) => ConfigStatus::Unlimited,
            (false, false) => ConfigStatus::default(),
        };
        let config = Config {
            limits: self.limits,
            status,
            is_shadow: self.shadow,
        };
        context.limiter().await?.set_config(&level, &config).await?;
        done(context, true, &format!("{level} is configured"))
    }
}

impl Delete {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let level = self.level.level()?;
        let is_deleted = context.limiter().await?.delete_config(&level).await?;
        let text = match is_deleted {
            true => format!("the configuration of {level} is deleted"),
            false => format!("{level} had no configuration"),
        };
        done(context, is_deleted, &text)
    }
}

impl List {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let filter = match (&self.entity, &self.resource) {
            (Some(entity), _) => ConfigFilter::Entity(EntityId::new(&**entity)?),
            (None, Some(resource)) => ConfigFilter::Resource(Resource::new(&**resource)?),
            (None, None) if self.entities => ConfigFilter::Entities,
            (None, None) => ConfigFilter::Resources,
        };
        let limiter = context.limiter().await?;
        let row = |(level, config): &(ConfigLevel, Config)| {
            vec![level.to_string(), show::one_line(config)]
        };
        self.page
            .print(context, &["level", "limits"], row, async |page| {
                limiter.configs(&filter, page).await
            })
            .await
    }
}

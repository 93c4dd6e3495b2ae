//! `weirgate limits`.

mod apply;
mod change;
pub mod diff;
mod export;
mod given;
mod plan;
pub mod show;
mod stored;

use clap::{ArgGroup, Args, Subcommand};
use serde::Serialize;
use weirgate::{Config, ConfigFilter, ConfigLevel, EntityId, Page, PlanName, Resource};
use weirgate_local::why::options;

use super::list::PageArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::level::{LevelArgs, level_usage};

/// Commands about configured limits.
#[derive(Debug, Subcommand)]
pub enum Limits {
    #[command(
        override_usage = level_usage!("limits get", ""),
        after_help = "Example: weirgate limits get --resource gpt-4"
    )]
    Get(Get),
    #[command(
        override_usage = level_usage!("limits set", " [LIMIT]..."),
        after_help = "Examples:\n  weirgate limits set --resource gpt-4 rpm=500/minute,burst=800 slots=20\n  \
                      weirgate limits set --entity user-1 tpm=quota:10000/month,tz=Europe/Berlin\n  \
                      weirgate limits set --resource gpt-4 rpm=600/minute --shadow=false"
    )]
    Set(change::Set),
    #[command(
        override_usage = level_usage!("limits delete", ""),
        after_help = "Example: weirgate limits delete --entity user-1 --resource gpt-4"
    )]
    Delete(change::Delete),
    #[command(
        after_help = "Examples:\n  weirgate limits list\n  weirgate limits list --resource gpt-4"
    )]
    List(List),
    #[command(after_help = "Example: weirgate limits export > limits.yaml")]
    Export(export::Export),
    #[command(after_help = "Example: weirgate limits diff limits.yaml --exit-code")]
    Diff(diff::Diff),
    #[command(after_help = "Example: weirgate limits plan limits.yaml --out limits.plan")]
    Plan(plan::Plan),
    #[command(
        after_help = "Examples:\n  weirgate limits apply limits.yaml --prune\n  weirgate limits apply limits.plan"
    )]
    Apply(apply::Apply),
}

/// Shows the configuration of a level.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    level: LevelArgs,
}

/// Lists the configurations of all levels, or of some.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("of").args(["entity", "plan", "resource", "entities", "plans", "resources"])))]
pub struct List {
    /// Those of one entity: its default, and for each resource
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Those of one plan: its default, and for each resource
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    /// Those on one resource: its own, and those of entities and plans
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// The defaults of all entities
    #[arg(long)]
    entities: bool,
    /// Those of all plans
    #[arg(long)]
    plans: bool,
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

impl From<(ConfigLevel, Config)> for Configured {
    fn from((level, config): (ConfigLevel, Config)) -> Self {
        Self { level, config: Some(config) }
    }
}

impl Limits {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        match self {
            Self::Get(command) => command.run(context).await,
            Self::Set(command) => command.run(context).await,
            Self::Delete(command) => command.run(context).await,
            Self::List(command) => command.run(context).await,
            Self::Export(command) => command.run(context).await,
            Self::Diff(command) => command.run(context).await,
            Self::Plan(command) => command.run(context).await,
            Self::Apply(command) => command.run(context).await,
        }
    }
}

impl Get {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let level = self.level.level();
        let config = context.limiter().await?.admin().config(&level).await?;
        let Some(config) = config else {
            return Err(Failure::Failed(format!(
                "{level} has no configuration in namespace {}: set one by weirgate limits set {}",
                context.options().namespace,
                options(&level)
            )));
        };
        let configured = Configured::from((level, config));
        context.output().print(&configured, |configured| {
            configured.config.as_ref().map(show::lines).unwrap_or_default()
        })?;
        Ok(Outcome::Done)
    }
}

impl List {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let filter = match (&self.entity, &self.plan, &self.resource) {
            (Some(entity), ..) => ConfigFilter::Entity(EntityId::new(&**entity)?),
            (_, Some(plan), _) => ConfigFilter::Plan(PlanName::new(&**plan)?),
            (.., Some(resource)) => ConfigFilter::Resource(Resource::new(&**resource)?),
            _ if self.entities => ConfigFilter::Entities,
            _ if self.plans => ConfigFilter::Plans,
            _ if self.resources => ConfigFilter::Resources,
            _ => ConfigFilter::All,
        };
        let limiter = context.limiter().await?;
        let row = |Configured { level, config }: &Configured| {
            let limits = config.as_ref().map(show::one_line);
            [vec![level.to_string(), limits.unwrap_or_default()]]
        };
        self.page
            .print(context, &["level", "limits"], row, async |page| {
                let page = limiter.admin().configs(&filter, page).await?;
                Ok(Page {
                    items: page.items.into_iter().map(Configured::from).collect(),
                    unreadable: page.unreadable,
                    next: page.next,
                })
            })
            .await
    }
}

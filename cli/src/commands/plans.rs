//! `weirgate plans`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::Serialize;
use weirgate::{Config, ConfigFilter, PlanName, Resource, Unreadable};

use super::confirm::Destroy;
use super::limits::show;
use super::report::{done, dry_run};
use super::unreadable;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Commands about plans: limits of all entities that have one.
#[derive(Debug, Subcommand)]
pub enum Plans {
    #[command(after_help = "Example: weirgate plans list")]
    List(List),
    #[command(after_help = "Example: weirgate plans delete trial")]
    Delete(Delete),
}

/// Lists the plans with their limits.
///
/// Entities of a plan: weirgate entities list --plan NAME.
#[derive(Debug, Args)]
pub struct List {}

/// Deletes the limits of all levels of a plan.
///
/// Refused while entities have it, unless --force is given: they then have the limits of the resource
/// and of the system.
#[derive(Debug, Args)]
pub struct Delete {
    /// The plan
    plan: String,
    /// Also if entities have it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    destroy: Destroy,
}

#[derive(Serialize)]
struct Listed {
    plans: BTreeMap<String, Plan>,
    unreadable: Vec<Unreadable>,
}

#[derive(Default, Serialize)]
struct Plan {
    /// On every resource without a configuration for the plan.
    default: Option<Config>,
    resources: BTreeMap<String, Config>,
}

impl Plans {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        match self {
            Self::List(List {}) => list(context).await,
            Self::Delete(command) => command.run(context).await,
        }
    }
}

async fn list(context: &Context) -> Result<Outcome, Failure> {
    let limiter = context.limiter().await?;
    let (mut listed, mut after) = (
        Listed {
            plans: BTreeMap::new(),
            unreadable: vec![],
        },
        None,
    );
    loop {
        let admin = limiter.admin();
        let page = admin.configs(&ConfigFilter::Plans, after.as_ref()).await?;
        for (level, config) in page.items {
            let Some(name) = level.plan().map(ToString::to_string) else {
                continue;
            };
            let plan = listed.plans.entry(name).or_default();
            match level.resource().map(Resource::to_string) {
                Some(resource) => drop(plan.resources.insert(resource, config)),
                None => plan.default = Some(config),
            }
        }
        listed.unreadable.extend(page.unreadable);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let output = context.output();
    output.print(&listed, |Listed { plans, unreadable }| {
        let rows = plans.iter().flat_map(|(name, plan)| {
            let row = |resource: &str, config| {
                vec![name.clone(), resource.to_owned(), show::one_line(config)]
            };
            let default = plan
                .default
                .iter()
                .map(move |config| row("all others", config));
            let own = plan.resources.iter();
            default.chain(own.map(move |(resource, config)| row(resource, config)))
        });
        let table = match plans.is_empty() {
            true => String::new(),
            false => output.table(&["plan", "resource", "limits"], rows) + "\n",
        };
        table + &unreadable::table(output, unreadable)
    })?;
    if listed.plans.is_empty() && listed.unreadable.is_empty() {
        output.note("none: weirgate limits set --plan NAME makes one");
    }
    Ok(unreadable::outcome(&listed.unreadable))
}

impl Delete {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let plan = PlanName::new(&*self.plan)?;
        let namespace = &context.options().namespace;
        let deed = format!("delete the limits of plan {plan} in namespace {namespace}");
        self.destroy.confirm(&deed, "yes")?;
        let limiter = context.limiter().await?;
        if self.destroy.dry_run {
            let is_there = limiter.admin().has_plan(&plan).await?;
            let text = match is_there {
                true => format!("plan {plan} would be deleted"),
                false => format!("plan {plan} has no limits"),
            };
            return dry_run(context, is_there, &text);
        }
        let deleted = limiter.admin().delete_plan(&plan, self.force).await?;
        let text = match deleted {
            0 => format!("plan {plan} had no limits"),
            _ => format!("plan {plan} is deleted"),
        };
        done(context, deleted > 0, &text)
    }
}

//! `weirgate plans`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::Serialize;
use weirgate::{Config, ConfigFilter, Page, PlanName, Resource};

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
struct Plan {
    plan: PlanName,
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
    let (mut plans, mut unreadable) = (BTreeMap::new(), vec![]);
    let mut after = None;
    loop {
        let admin = limiter.admin();
        let page = admin.configs(&ConfigFilter::Plans, after.as_ref()).await?;
        for (level, config) in page.items {
            let Some(name) = level.plan() else {
                continue;
            };
            let plan = plans.entry(name.clone()).or_insert_with(|| Plan {
                plan: name.clone(),
                default: None,
                resources: BTreeMap::new(),
            });
            match level.resource().map(Resource::to_string) {
                Some(resource) => drop(plan.resources.insert(resource, config)),
                None => plan.default = Some(config),
            }
        }
        unreadable.extend(page.unreadable);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // All are read, because a plan may have its levels in several pages.
    let list = Page { items: plans.into_values().collect(), unreadable, next: None };
    let output = context.output();
    output.print(&list, |list| {
        let rows = list.items.iter().flat_map(|plan| {
            let name = plan.plan.to_string();
            let row = move |resource: &str, config| {
                vec![name.clone(), resource.to_owned(), show::one_line(config)]
            };
            let own = plan.resources.iter();
            let own = own.map(|(resource, config)| (&**resource, config));
            let default = plan.default.iter().map(|config| ("all others", config));
            default.chain(own).map(move |(resource, config)| row(resource, config))
        });
        let table = match list.items.is_empty() {
            true => String::new(),
            false => output.table(&["plan", "resource", "limits"], rows) + "\n",
        };
        table + &unreadable::table(output, &list.unreadable)
    })?;
    if list.items.is_empty() && list.unreadable.is_empty() {
        output.note("none: weirgate limits set --plan NAME makes one");
    }
    Ok(unreadable::outcome(&list.unreadable))
}

impl Delete {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let plan = PlanName::new(&*self.plan)?;
        let namespace = &context.options().namespace;
        let deed = format!("delete the limits of plan {plan} in namespace {namespace}");
        self.destroy.confirm(&deed, "yes")?;
        let limiter = context.limiter().await?;
        let admin = limiter.admin();
        if self.destroy.dry_run {
            let levels = admin.preview_plan_deletion(&plan, self.force).await?;
            let text = match levels {
                0 => format!("plan {plan} has no limits"),
                _ => format!("plan {plan} would be deleted"),
            };
            return dry_run(context, levels > 0, &text);
        }
        let deleted = admin.delete_plan(&plan, self.force).await?;
        let text = match deleted {
            0 => format!("plan {plan} had no limits"),
            _ => format!("plan {plan} is deleted"),
        };
        done(context, deleted > 0, &text)
    }
}

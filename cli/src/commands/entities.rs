//! `weirgate entities`.

use clap::{Args, Subcommand};
use serde::Serialize;
use weirgate::{Entity, EntityDescription, EntityId, PlanName};

use super::confirm::Destroy;
use super::list::PageArgs;
use super::report::{done, dry_run};
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Commands about entities.
#[derive(Debug, Subcommand)]
pub enum Entities {
    #[command(after_help = "Example: weirgate entities list")]
    List(List),
    #[command(after_help = "Example: weirgate entities children team-a")]
    Children(Children),
    #[command(after_help = "Example: weirgate entities get user-1")]
    Get(Get),
    #[command(
        after_help = "Examples:\n  weirgate entities set user-1 --parent team-a --cascades\n  weirgate entities set acme --plan pro"
    )]
    Set(Set),
    #[command(
        after_help = "Example: weirgate entities describe user-1 --name 'Acme Inc.' --label plan=pro"
    )]
    Describe(Describe),
    #[command(after_help = "Example: weirgate entities delete user-1")]
    Delete(Delete),
}

/// Lists the entities of the namespace, or of a plan.
#[derive(Debug, Args)]
pub struct List {
    /// Those that have this plan
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

/// Lists the children of an entity.
#[derive(Debug, Args)]
pub struct Children {
    /// The parent
    parent: String,
    #[command(flatten)]
    page: PageArgs,
}

/// Shows an entity.
#[derive(Debug, Args)]
pub struct Get {
    /// The entity
    entity: String,
}

/// Sets the parent or the plan of an entity.
///
/// What is not given stays. Without options, it creates the entity if there is none.
#[derive(Debug, Args)]
pub struct Set {
    /// The entity
    entity: String,
    /// Its parent
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// It has no parent
    #[arg(long, conflicts_with_all = ["parent", "cascades"])]
    no_parent: bool,
    /// What is taken from the entity is taken from its parent too
    #[arg(long)]
    cascades: bool,
    /// Nothing is taken from its parent
    #[arg(long, conflicts_with = "cascades")]
    no_cascades: bool,
    /// Its plan, whose limits hold where it has none of its own
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    /// It has no plan
    #[arg(long, conflicts_with = "plan")]
    no_plan: bool,
}

/// Sets the display name and labels of an entity.
///
/// What is not given stays.
#[derive(Debug, Args)]
pub struct Describe {
    /// The entity
    entity: String,
    /// Display name, 1 to 256 bytes; empty to remove it
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A label to add or replace, all together at most 2 KB
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// A label to remove
    #[arg(long = "remove-label", value_name = "NAME")]
    removed: Vec<String>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE, for example plan=pro")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Deletes an entity's own item.
///
/// It has no parent and no plan then. Its limits and buckets stay.
#[derive(Debug, Args)]
pub struct Delete {
    /// The entity
    entity: String,
    #[command(flatten)]
    destroy: Destroy,
}

impl Entities {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let row = |id: &EntityId| [vec![id.to_string()]];
        match self {
            Self::List(List { plan, page }) => {
                let plan = plan.as_deref().map(PlanName::new).transpose()?;
                let limiter = context.limiter().await?;
                page.print(context, &["entity"], row, async |page| match &plan {
                    Some(plan) => limiter.admin().plan_entities(plan, page).await,
                    None => limiter.admin().entities(page).await,
                })
                .await
            }
            Self::Children(Children { parent, page }) => {
                let parent = EntityId::new(&*parent)?;
                let limiter = context.limiter().await?;
                page.print(context, &["entity"], row, async |page| {
                    limiter.admin().children(&parent, page).await
                })
                .await
            }
            Self::Get(Get { entity }) => get(context, &entity).await,
            Self::Set(command) => command.run(context).await,
            Self::Describe(command) => command.run(context).await,
            Self::Delete(command) => command.run(context).await,
        }
    }
}

impl Set {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let id = EntityId::new(&*self.entity)?;
        let parent = self.parent.as_deref().map(EntityId::new).transpose()?;
        let plan = self.plan.as_deref().map(PlanName::new).transpose()?;
        let limiter = context.limiter().await?;
        let before = limiter.admin().entity(&id).await?;
        let kept = before.clone().unwrap_or_else(|| Entity::new(id.clone()));
        let mut after = kept.clone();
        after.parent = parent.or(kept.parent.filter(|_| !self.no_parent));
        after.plan = plan.or(kept.plan.filter(|_| !self.no_plan));
        let ends = self.no_cascades || self.no_parent;
        after.cascades = self.cascades || kept.cascades && !ends;
        if self.cascades && after.parent.is_none() {
            return Err(Failure::Refused(format!(
                "entity {id} has no parent to take from: give --parent ID with --cascades"
            )));
        }
        if before.as_ref() == Some(&after) {
            return done(context, false, &format!("no changes: entity {id} is set so"));
        }
        let admin = limiter.admin();
        if !admin.replace_entity(&id, before.as_ref(), Some(&after)).await? {
            return Err(Failure::Failed(format!(
                "entity {id} was changed by another command in the meantime, and is not changed by \
                 this one: run it again"
            )));
        }
        done(context, true, &format!("entity {id} is set"))
    }
}

impl Delete {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let Self { entity, destroy } = self;
        let id = EntityId::new(&*entity)?;
        let namespace = &context.options().namespace;
        let deed = format!("delete the item of entity {id} in namespace {namespace}");
        destroy.confirm(&deed, "yes")?;
        let limiter = context.limiter().await?;
        if destroy.dry_run {
            let is_there = limiter.admin().entity(&id).await?.is_some();
            let deleted = [Entity::new(id.clone())];
            limiter.admin().check_entities(&deleted, &[]).await?;
            let text = match is_there {
                true => format!("entity {id} would be deleted"),
                false => format!("entity {id} has no item"),
            };
            return dry_run(context, is_there, &text);
        }
        let is_deleted = limiter.admin().delete_entity(&id).await?;
        let text = match is_deleted {
            true => format!("entity {id} is deleted"),
            false => format!("entity {id} had no item"),
        };
        done(context, is_deleted, &text)
    }
}

#[derive(Serialize)]
struct Described {
    changed: bool,
    before: EntityDescription,
    after: EntityDescription,
}

impl Describe {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let is_removed = |(name, _): &&(String, String)| self.removed.contains(name);
        if let Some((name, _)) = self.labels.iter().find(is_removed) {
            return Err(Failure::Refused(format!(
                "label {name:?} is to be set and to be removed: give it to one of --label and \
                 --remove-label"
            )));
        }
        let id = EntityId::new(&*self.entity)?;
        let limiter = context.limiter().await?;
        if limiter.admin().entity(&id).await?.is_none() {
            return Err(not_set(&id, context));
        }
        let edit = |before| self.apply(before);
        let (before, after) = limiter.admin().edit_entity_description(&id, edit).await?;
        let described = Described { changed: before != after, before, after };
        let output = context.output();
        output.print(&described, |Described { after, .. }| {
            output.table(&["field", "value"], fields(after))
        })?;
        Ok(Outcome::Done)
    }

    fn apply(&self, mut description: EntityDescription) -> Result<EntityDescription, Failure> {
        for name in &self.removed {
            description = description.without_label(name);
        }
        for (name, value) in &self.labels {
            description = description.labelled(name, value)?;
        }
        Ok(match &self.name {
            None => description,
            Some(name) if name.is_empty() => description.unnamed(),
            Some(name) => description.named(name)?,
        })
    }
}

/// Returns a row for the display name and for each label.
fn fields(description: &EntityDescription) -> Vec<Vec<String>> {
    let name = description.display_name().unwrap_or("-");
    let name = ("name".to_owned(), name.to_owned());
    let labels = description.labels().iter();
    let labels = labels.map(|(name, value)| (format!("label {name}"), value.clone()));
    let rows = [name].into_iter().chain(labels);
    rows.map(|(name, value)| vec![name, value]).collect()
}

fn not_set(id: &EntityId, context: &Context) -> Failure {
    Failure::Failed(format!(
        "entity {id} has no item in namespace {}: set one by weirgate entities set",
        context.options().namespace
    ))
}

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    entity: Entity,
    #[serde(flatten)]
    description: EntityDescription,
}

async fn get(context: &Context, entity: &str) -> Result<Outcome, Failure> {
    let id = EntityId::new(entity)?;
    let limiter = context.limiter().await?;
    let entity = limiter.admin().entity(&id).await?;
    let entity = entity.ok_or_else(|| not_set(&id, context))?;
    let description = limiter.admin().entity_description(&id).await?;
    let found = Found { entity, description: description.unwrap_or_default() };
    let output = context.output();
    output.print(&found, |Found { entity, description }| {
        let parent = entity.parent.as_ref().map_or("-", |parent| parent.as_str());
        let cascades = if entity.cascades { "yes" } else { "no" };
        let plan = entity.plan.as_ref().map_or("-", |plan| plan.as_str());
        let rows =
            [("entity", id.as_str()), ("parent", parent), ("cascades", cascades), ("plan", plan)];
        let rows = rows.map(|(name, value)| vec![name.to_owned(), value.to_owned()]);
        output.table(&["field", "value"], rows.into_iter().chain(fields(description)))
    })?;
    Ok(Outcome::Done)
}

//! `weirgate entities`.

use clap::{Args, Subcommand};
use weirgate::{Entity, EntityId};

use super::list::PageArgs;
use super::report::done;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Commands about entities.
#[derive(Debug, Subcommand)]
pub enum Entities {
    /// Lists the entities of the namespace
    List(List),
    /// Lists the children of an entity
    Children(Children),
    /// Shows an entity
    Get(Get),
    /// Sets the parent of an entity
    #[command(after_help = "Example: weirgate entities set user-1 --parent team-a --cascades")]
    Set(Set),
    /// Deletes an entity's own item: it has no parent then. Its limits and buckets stay
    Delete(Delete),
}

/// Lists the entities of the namespace.
#[derive(Debug, Args)]
pub struct List {
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

/// Sets the parent of an entity.
#[derive(Debug, Args)]
pub struct Set {
    /// The entity
    entity: String,
    /// Its parent; without it, none
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// What is taken from the entity is taken from its parent too
    #[arg(long, requires = "parent")]
    cascades: bool,
}

/// Deletes an entity's own item.
#[derive(Debug, Args)]
pub struct Delete {
    /// The entity
    entity: String,
}

impl Entities {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let row = |id: &EntityId| vec![id.to_string()];
        match self {
            Self::List(List { page }) => {
                let limiter = context.limiter().await?;
                page.print(context, &["entity"], row, async |page| {
                    limiter.entities(page).await
                })
                .await
            }
            Self::Children(Children { parent, page }) => {
                let parent = EntityId::new(&*parent)?;
                let limiter = context.limiter().await?;
                page.print(context, &["entity"], row, async |page| {
                    limiter.children(&parent, page).await
                })
                .await
            }
            Self::Get(Get { entity }) => get(context, &entity).await,
            Self::Set(set) => {
                let entity = Entity {
                    id: EntityId::new(&*set.entity)?,
                    parent: set.parent.as_deref().map(EntityId::new).transpose()?,
                    cascades: set.cascades,
                };
                context.limiter().await?.set_entity(&entity).await?;
                done(context, true, &format!("entity {} is set", entity.id))
            }
            Self::Delete(Delete { entity }) => {
                let id = EntityId::new(&*entity)?;
                let is_deleted = context.limiter().await?.delete_entity(&id).await?;
                let text = match is_deleted {
                    true => format!("entity {id} is deleted"),
                    false => format!("entity {id} had no item"),
                };
                done(context, is_deleted, &text)
            }
        }
    }
}

async fn get(context: &Context, entity: &str) -> Result<Outcome, Failure> {
    let id = EntityId::new(entity)?;
    let found = context.limiter().await?.entity(&id).await?;
    let Some(entity) = found else {
        return Err(Failure::Failed(format!(
            "entity {id} has no item in namespace {}: set one by weirgate entities set",
            context.options().namespace
        )));
    };
    let output = context.output();
    output.print(&entity, |entity| {
        let parent = entity
            .parent
            .as_ref()
            .map_or("-".to_owned(), EntityId::to_string);
        let cascades = if entity.cascades { "yes" } else { "no" };
        let row = vec![entity.id.to_string(), parent, cascades.to_owned()];
        output.table(&["entity", "parent", "cascades"], [row])
    })?;
    Ok(Outcome::Done)
}

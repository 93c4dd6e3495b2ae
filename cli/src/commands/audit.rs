//! `weirgate audit`.

use clap::Args;
use weirgate::{AuditEvent, AuditSubject, EntityId, Resource};

use super::list::PageArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;

/// Lists the changes of configurations and balances.
#[derive(Debug, Args)]
#[group(required = true, multiple = false, args = ["system", "entity", "resource"])]
#[command(after_help = "Example: weirgate audit --entity customer-1")]
pub struct Audit {
    /// Changes of the system level
    #[arg(long)]
    system: bool,
    /// Changes of an entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Changes of a resource
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

impl Audit {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let of = match (&self.entity, &self.resource) {
            (Some(entity), _) => AuditSubject::Entity(EntityId::new(&**entity)?),
            (None, Some(resource)) => AuditSubject::Resource(Resource::new(&**resource)?),
            (None, None) => AuditSubject::System,
        };
        let limiter = context.limiter().await?;
        self.page
            .print(context, &["at", "principal", "change"], row, async |page| {
                limiter.audit(&of, page).await
            })
            .await
    }
}

fn row(event: &AuditEvent) -> Vec<String> {
    // Every change has a JSON form, with before and after of every field.
    let change = serde_json::to_string(&event.change).unwrap_or_default();
    vec![
        instant::text(event.id.at()),
        event.principal.clone(),
        change,
    ]
}

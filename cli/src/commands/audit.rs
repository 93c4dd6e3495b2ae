//! `weirgate audit`.

use clap::{ArgGroup, Args};
use weirgate::{AuditEvent, AuditSubject, EntityId, EpochMillis, Resource};

use super::list::PageArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;

/// Lists the changes of configurations and balances.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("of").required(true).args(["system", "entity", "resource"])))]
#[command(after_help = "Example: weirgate audit --entity customer-1 --since 1d --json")]
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
    /// All changes from this time on: a date, an instant, or a span before now (36h)
    #[arg(long, value_name = "TIME", value_parser = instant::instant)]
    since: Option<EpochMillis>,
    /// Changes before this time
    #[arg(long, value_name = "TIME", value_parser = instant::instant)]
    until: Option<EpochMillis>,
    #[command(flatten)]
    page: PageArgs,
}

impl Audit {
    pub async fn run(mut self, context: &Context) -> Result<Outcome, Failure> {
        let of = match (&self.entity, &self.resource) {
            (Some(entity), _) => AuditSubject::Entity(EntityId::new(&**entity)?),
            (None, Some(resource)) => AuditSubject::Resource(Resource::new(&**resource)?),
            (None, None) => AuditSubject::System,
        };
        let limiter = context.limiter().await?;
        let (since, until) = (self.since, self.until);
        // They are listed newest first, so `since` ends the list.
        self.page.all |= since.is_some();
        self.page
            .print(context, &["at", "principal", "change"], row, async |page| {
                let mut page = limiter.admin().audit(&of, page).await?;
                let is_early = |event: &AuditEvent| since.is_some_and(|at| event.id.at() < at);
                let is_late = |event: &AuditEvent| until.is_some_and(|at| event.id.at() >= at);
                page.next = page
                    .next
                    .filter(|_| !page.items.last().is_some_and(is_early));
                page.items
                    .retain(|event| !is_early(event) && !is_late(event));
                Ok(page)
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

//! `weirgate audit`.

use clap::{ArgGroup, Args};
use weirgate::{AuditEvent, AuditSubject, EntityId, EpochMillis, PlanName, Resource};
use weirgate_local::why::{Field, change_fields};

use super::list::PageArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;

/// Lists changes of configurations and balances, the newest first.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("of").args(["system", "entity", "plan", "resource"])))]
#[command(
    after_help = "Examples:\n  weirgate audit --from 1h\n  weirgate audit --entity customer-1 --from 1d"
)]
pub struct Audit {
    /// Changes of the system level; without any of these, all of the namespace
    #[arg(long)]
    system: bool,
    /// Changes of an entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Changes of a plan
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    /// Changes of a resource
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// All changes from this instant on: a date, an instant, or a span before now (36h)
    #[arg(long, value_name = "WHEN", value_parser = instant::instant)]
    from: Option<EpochMillis>,
    /// Changes before this instant
    #[arg(long, value_name = "WHEN", value_parser = instant::instant)]
    to: Option<EpochMillis>,
    #[command(flatten)]
    page: PageArgs,
}

impl Audit {
    pub async fn run(mut self, context: &Context) -> Result<Outcome, Failure> {
        let of = match (&self.entity, &self.plan, &self.resource) {
            (Some(entity), ..) => Some(AuditSubject::Entity(EntityId::new(&**entity)?)),
            (_, Some(plan), _) => Some(AuditSubject::Plan(PlanName::new(&**plan)?)),
            (.., Some(resource)) => Some(AuditSubject::Resource(Resource::new(&**resource)?)),
            _ => self.system.then_some(AuditSubject::System),
        };
        let (from, to) = (self.from, self.to);
        instant::check_range(from, to)?;
        let limiter = context.limiter().await?;
        // They are listed newest first, so `from` ends the list.
        self.page.all |= from.is_some();
        self.page.is_ordered = true;
        self.page
            .print(context, &COLUMNS, rows, async |page| {
                let admin = limiter.admin();
                let mut page = match &of {
                    Some(of) => admin.audit(of, page).await?,
                    None => admin.audit_all(page).await?,
                };
                let is_early = |event: &AuditEvent| from.is_some_and(|at| event.id.at() < at);
                let is_late = |event: &AuditEvent| to.is_some_and(|at| event.id.at() >= at);
                page.next = page.next.filter(|_| !page.items.last().is_some_and(is_early));
                page.items.retain(|event| !is_early(event) && !is_late(event));
                Ok(page)
            })
            .await
    }
}

/// Columns of changed fields.
pub const COLUMNS: [&str; 6] = ["at", "author", "what", "before", "after", "operation"];

/// Returns a row of [`COLUMNS`] for each field that an event changed, and one if it changed none.
pub fn rows(event: &AuditEvent) -> Vec<Vec<String>> {
    let operation = match (&event.operation, &event.key) {
        (Some(operation), Some(key)) => format!("{operation} ({key})"),
        (Some(operation), None) => operation.clone(),
        (None, _) => "-".to_owned(),
    };
    let row = |field: Field| {
        let (at, principal) = (instant::text(event.id.at()), event.principal.clone());
        let what = format!("{} {}", field.of, field.field);
        let what = what.trim_end().to_owned();
        vec![at, principal, what, field.before, field.after, operation.clone()]
    };
    change_fields(&event.change).into_iter().map(row).collect()
}

//! `weirgate erase`.

use clap::Args;
use weirgate::{EntityId, EraseReport, LiveLeases};

use super::confirm::Destroy;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Erases an entity with all that the table has of it.
///
/// Its limits, its buckets with their leases, its usage, its audit events. Stop its callers
/// first.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate stop --entity user-1 && weirgate erase user-1")]
pub struct Erase {
    /// The entity
    entity: String,
    /// Deletes leases that have not expired; without it, they prevent the erasure
    #[arg(long)]
    discard_leases: bool,
    #[command(flatten)]
    destroy: Destroy,
}

impl Erase {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let id = EntityId::new(&*self.entity)?;
        let leases = match self.discard_leases {
            true => LiveLeases::Discard,
            false => LiveLeases::Refuse,
        };
        let namespace = &context.options().namespace;
        let deed = format!("erase all that namespace {namespace} has of {id}");
        self.destroy.confirm(&deed, id.as_str())?;
        let limiter = context.limiter().await?;
        let admin = limiter.admin();
        let is_dry_run = self.destroy.dry_run;
        let report = match is_dry_run {
            true => admin.preview_erasure(&id, leases).await?,
            false => admin.erase_entity(&id, leases).await?,
        };
        let output = context.output();
        output.print(&report, |report| text(report, is_dry_run))?;
        Ok(match report.in_use.is_empty() {
            true => Outcome::Done,
            false => Outcome::Incomplete,
        })
    }
}

fn text(report: &EraseReport, is_dry_run: bool) -> String {
    let EraseReport { configs, entity, children, shards, snapshots, audit_events, in_use, .. } =
        report;
    let entity = if *entity { "its item" } else { "no item" };
    let erased = match is_dry_run {
        true => "would be erased",
        false => "erased",
    };
    let mut text = format!(
        "{erased}: {configs} configurations, {entity}, {children} links of children, {shards} shards, \
         {snapshots} snapshots, {audit_events} audit events"
    );
    if !in_use.is_empty() {
        let names: Vec<_> = in_use.iter().map(ToString::to_string).collect();
        text += &format!("\nin use again: {}: stop the callers, and erase again", names.join(", "));
    }
    text
}

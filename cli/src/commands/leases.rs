//! `weirgate leases`.

use clap::{Args, Subcommand};
use weirgate::StoredLease;

use super::report::done;
use super::unreadable;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;

/// Commands about leases.
#[derive(Debug, Subcommand)]
pub enum Leases {
    #[command(after_help = "Example: weirgate leases list user-1 gpt-4")]
    List(List),
    #[command(after_help = "Example: weirgate leases release user-1 gpt-4 LEASE_ID")]
    Release(Release),
}

/// Lists the leases of a bucket.
#[derive(Debug, Args)]
pub struct List {
    /// The entity
    entity: String,
    /// The resource
    resource: String,
}

/// Ends a lease in place of its holder, and returns its slots.
#[derive(Debug, Args)]
pub struct Release {
    /// The entity
    entity: String,
    /// The resource
    resource: String,
    /// Id of the lease, as listed
    lease: String,
}

impl Leases {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        match self {
            Self::List(List { entity, resource }) => {
                let leases = limiter.admin().leases(&entity, &resource).await?;
                let output = context.output();
                output.print(&leases, |leases| {
                    let items = match leases.items.is_empty() {
                        true => String::new(),
                        false => output.table(&COLUMNS, leases.items.iter().map(row)) + "\n",
                    };
                    items + &unreadable::table(output, &leases.unreadable)
                })?;
                if leases.items.is_empty() && leases.unreadable.is_empty() {
                    output.note("none");
                }
                Ok(unreadable::outcome(&leases.unreadable))
            }
            Self::Release(Release {
                entity,
                resource,
                lease,
            }) => {
                let is_released = limiter
                    .admin()
                    .release_lease(&entity, &resource, &lease)
                    .await?;
                let text = match is_released {
                    true => format!("lease {lease} is released"),
                    false => format!("lease {lease} is not in this bucket any more"),
                };
                done(context, is_released, &text)
            }
        }
    }
}

/// Columns of leases.
pub const COLUMNS: [&str; 5] = ["lease", "tokens", "expires", "owner", "#shard"];

/// Returns a lease as a row of [`COLUMNS`].
pub fn row(lease: &StoredLease) -> Vec<String> {
    let tokens: Vec<_> = lease
        .tokens
        .iter()
        .map(|(limit, tokens)| format!("{limit} {tokens}"))
        .collect();
    vec![
        lease.id.clone(),
        tokens.join("  "),
        instant::text(lease.expires_at),
        lease.owner.clone(),
        lease.shard.to_string(),
    ]
}

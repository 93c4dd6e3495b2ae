//! `weirgate leases`.

use clap::{Args, Subcommand};
use weirgate::StoredLease;

use super::balances::BucketArgs;
use super::confirm::Destroy;
use super::report::{done, dry_run};
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
    #[command(flatten)]
    bucket: BucketArgs,
}

/// Ends a lease in place of its holder, and returns its slots.
#[derive(Debug, Args)]
pub struct Release {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Id of the lease, as listed
    lease: String,
    #[command(flatten)]
    destroy: Destroy,
}

impl Leases {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        match self {
            Self::List(List { bucket }) => {
                let BucketArgs { entity, resource } = &bucket;
                let limiter = context.limiter().await?;
                let leases = limiter.admin();
                let leases = leases.leases(entity.as_str(), resource.as_str()).await?;
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
            Self::Release(command) => command.run(context).await,
        }
    }
}

impl Release {
    async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let Self { bucket, lease, destroy } = self;
        let BucketArgs { entity, resource } = &bucket;
        let namespace = &context.options().namespace;
        let deed = format!("end lease {lease} of {entity} on {resource} in namespace {namespace}");
        destroy.confirm(&deed, "yes")?;
        let limiter = context.limiter().await?;
        let admin = limiter.admin();
        let (of, on) = (entity.as_str(), resource.as_str());
        let (is_there, report): (_, fn(&Context, bool, &str) -> _) = match destroy.dry_run {
            true => {
                let mut leases = admin.leases(of, on).await?.items.into_iter();
                (leases.any(|known| known.id == lease), dry_run)
            }
            false => (admin.release_lease(of, on, &lease).await?, done),
        };
        if is_there {
            let is = if destroy.dry_run { "would be" } else { "is" };
            return report(context, true, &format!("lease {lease} {is} released"));
        }
        let text = format!(
            "lease {lease} is not in this bucket: it has ended, or has another id; see weirgate \
             leases list {entity} {resource}"
        );
        report(context, false, &text)?;
        Ok(Outcome::Incomplete)
    }
}

/// Columns of leases.
pub const COLUMNS: [&str; 5] = ["lease", "tokens", "expires", "owner", "#shard"];

/// Returns a lease as a row of [`COLUMNS`].
pub fn row(lease: &StoredLease) -> Vec<String> {
    let tokens: Vec<_> =
        lease.tokens.iter().map(|(limit, tokens)| format!("{limit} {tokens}")).collect();
    vec![
        lease.id.clone(),
        tokens.join("  "),
        instant::text(lease.expires_at),
        lease.owner.clone(),
        lease.shard.to_string(),
    ]
}

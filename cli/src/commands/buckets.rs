//! `weirgate buckets`.

use clap::{ArgGroup, Args};
use weirgate::{EntityId, LimitStatus, Resource, StoredBucket};
use weirgate_shared::rounded_span;

use super::list::PageArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Lists the buckets of an entity or a resource, with their balances.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("of").required(true).args(["entity", "resource"])))]
#[command(after_help = "Example: weirgate buckets --entity user-1")]
pub struct Buckets {
    /// The buckets of this entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// The buckets of this resource
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

impl Buckets {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let entity = self.entity.as_deref().map(EntityId::new).transpose()?;
        let resource = self.resource.as_deref().map(Resource::new).transpose()?;
        let limiter = context.limiter().await?;
        let columns = ["entity", "resource", "limits", "#shards", "#leases"];
        self.page
            .print(context, &columns, row, async |page| match (&entity, &resource) {
                (Some(entity), _) => limiter.admin().entity_buckets(entity, page).await,
                (None, Some(resource)) => limiter.admin().resource_buckets(resource, page).await,
                (None, None) => unreachable!("one of them is required"),
            })
            .await
    }
}

fn row(bucket: &StoredBucket) -> [Vec<String>; 1] {
    let paused = bucket.limits.iter().find_map(|status| status.paused_for);
    let paused = paused.map(|left| format!("paused, {}", rounded_span(left)));
    let limits: Vec<_> = bucket.limits.iter().map(balance).chain(paused).collect();
    [vec![
        bucket.entity.to_string(),
        bucket.resource.to_string(),
        limits.join("  "),
        bucket.shards.to_string(),
        bucket.leases.to_string(),
    ]]
}

/// Returns a balance as text: `tpm 500/1000`.
fn balance(status: &LimitStatus) -> String {
    let available = status.available.whole_tokens();
    format!("{} {available}/{}", status.limit, status.capacity)
}

//! `weirgate split` and `merge`.

use clap::Args;
use serde::Serialize;
use weirgate::{EntityId, Resource, StoredBucket};

use super::balances::BucketArgs;
use crate::amounts;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Why a store has neither.
const ONE_SHARD: &str =
    "a bucket in Redis is one shard, which has no limit of writes; leave it out";

/// Splits a bucket into more shards.
///
/// Each is in a partition of its own, for 1,000 writes a second.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate split customer-1 gpt-4 --shards 8")]
pub struct Split {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Number of shards: a power of two
    #[arg(long, value_name = "COUNT", value_parser = amounts::within::<1, 4_294_967_295, u32>)]
    shards: u32,
}

/// Merges the shards of a bucket.
///
/// A shard that holds leases, or is written to all the time, stays.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate merge customer-1 gpt-4")]
pub struct Merge {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Number of shards: a power of two
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = amounts::within::<1, 4_294_967_295, u32>)]
    shards: u32,
}

impl Split {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        context.needs_dynamodb("split", ONE_SHARD)?;
        let bucket = stored(context, &self.bucket).await?;
        if let Some(more) = bucket.filter(|bucket| bucket.shards > self.shards) {
            return Err(Failure::Refused(format!(
                "{} has {} shards, got --shards {}: give as many or more, or merge it with `weirgate merge`",
                name(&self.bucket),
                more.shards,
                self.shards
            )));
        }
        set(context, &self.bucket, self.shards).await
    }
}

impl Merge {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        context.needs_dynamodb("merge", ONE_SHARD)?;
        match stored(context, &self.bucket).await? {
            None => {
                return Err(Failure::Failed(format!(
                    "{} has no shards: nothing was taken from it yet",
                    name(&self.bucket)
                )));
            }
            Some(fewer) if fewer.shards < self.shards => {
                return Err(Failure::Refused(format!(
                    "{} has {} shards, got --shards {}: give as many or fewer, or split it with `weirgate split`",
                    name(&self.bucket),
                    fewer.shards,
                    self.shards
                )));
            }
            Some(_) => {}
        }
        set(context, &self.bucket, self.shards).await
    }
}

#[derive(Serialize)]
struct Shards {
    shards: u32,
}

fn name(BucketArgs { entity, resource }: &BucketArgs) -> String {
    format!("the bucket of {resource} for {entity}")
}

/// Reads the bucket: only a split makes shards, and only a merge removes them.
async fn stored(context: &Context, bucket: &BucketArgs) -> Result<Option<StoredBucket>, Failure> {
    let limiter = context.limiter().await?;
    let BucketArgs { entity, resource } = bucket;
    let (id, on) = (EntityId::new(&**entity)?, Resource::new(&**resource)?);
    Ok(limiter.admin().bucket(&id, &on).await?)
}

async fn set(context: &Context, bucket: &BucketArgs, shards: u32) -> Result<Outcome, Failure> {
    let limiter = context.limiter().await?;
    let BucketArgs { entity, resource } = bucket;
    let (id, on) = (EntityId::new(&**entity)?, Resource::new(&**resource)?);
    // A missing bucket is created with its configured limits.
    let effective = limiter.admin().effective_limits(&id, &on).await?;
    let own = effective.buckets.into_iter().next();
    let limits = own.map(|bucket| bucket.limits).unwrap_or_default();
    let found = limiter
        .admin()
        .set_shards(entity, resource, &limits, shards)
        .await?;
    context
        .output()
        .print(&Shards { shards: found }, |Shards { shards }| {
            format!("shards: {shards}")
        })?;
    Ok(Outcome::Done)
}

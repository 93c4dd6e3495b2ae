//! `weirgate split` and `merge`.

use clap::Args;
use serde::Serialize;
use weirgate::{Error, RateLimiter, StoredBucket};

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
        let limiter = context.limiter().await?;
        let bucket = stored(&limiter, &self.bucket).await?;
        let is_there = bucket.is_some();
        if let Some(more) = bucket.filter(|bucket| bucket.shards > self.shards) {
            return Err(Failure::Refused(format!(
                "{} has {} shards, got --shards {}: give as many or more, or merge it with `weirgate merge`",
                name(&self.bucket),
                more.shards,
                self.shards
            )));
        }
        set(context, &limiter, &self.bucket, (is_there, self.shards)).await
    }
}

impl Merge {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        context.needs_dynamodb("merge", ONE_SHARD)?;
        let limiter = context.limiter().await?;
        match stored(&limiter, &self.bucket).await? {
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
        set(context, &limiter, &self.bucket, (true, self.shards)).await
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
async fn stored(limiter: &RateLimiter, bucket: &BucketArgs) -> Result<Option<StoredBucket>, Error> {
    let BucketArgs { entity, resource } = bucket;
    limiter.admin().bucket(entity, resource).await
}

async fn set(
    context: &Context,
    limiter: &RateLimiter,
    bucket: &BucketArgs,
    (is_there, shards): (bool, u32),
) -> Result<Outcome, Failure> {
    let BucketArgs { entity, resource } = bucket;
    // A missing bucket is created with its configured limits.
    let effective = limiter.admin().effective_limits(entity, resource).await?;
    let own = effective.buckets.into_iter().next();
    let limits = own.map(|bucket| bucket.limits).unwrap_or_default();
    if !is_there && limits.is_empty() {
        return Err(Failure::Refused(format!(
            "{} does not exist, and no limits are configured for it: run `weirgate limits set --resource {resource} rpm=600/minute`",
            name(bucket)
        )));
    }
    let found =
        limiter.admin().set_shards(entity.as_str(), resource.as_str(), &limits, shards).await?;
    context
        .output()
        .print(&Shards { shards: found }, |Shards { shards }| format!("shards: {shards}"))?;
    Ok(Outcome::Done)
}

//! Writes new limits to a bucket without waiting for its next acquire.

use std::sync::Arc;

use weirgate_shared::{AuditChange, EditChange, EpochMillis, Limit, MilliTokens, Shard};

use super::operation::{Operating, OperationOutcome, Options, Read, operation_options};
use crate::api::admin::Admin;
use crate::bucket::BucketState;
use crate::config::{Freshness, LoadWait, check_functions, resolve};
use crate::session::{CacheKey, deadline};
use crate::values::{Error, Limits, check_bucket_limits, check_limit_count, check_windows};

impl Admin {
    /// Writes the configured limits to all shards of a bucket now. Without this, a shard gets them
    /// with the next acquire from it.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// let report = limiter.admin().apply_limits("customer-1", "gpt-4").send().await?;
    /// println!("{} shards", report.shards);
    /// # Ok(())
    /// # }
    /// ```
    pub fn apply_limits(&self, entity: &str, resource: &str) -> LimitsEdit<'_> {
        LimitsEdit {
            admin: self,
            entity: entity.to_owned(),
            resource: resource.to_owned(),
            options: Options::default(),
        }
    }
}

/// A write of configured limits to a bucket. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a change does nothing until it is sent"]
pub struct LimitsEdit<'a> {
    admin: &'a Admin,
    entity: String,
    resource: String,
    options: Options,
}

/// What a [`LimitsEdit`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LimitsReport {
    /// What became of the change.
    pub outcome: OperationOutcome,
    /// Number of shards that did not have the limits; 0 if the bucket has no item: it is created
    /// with them.
    pub shards: usize,
    /// Limits of the bucket before, by name.
    pub before: Vec<Limit>,
    /// Limits that are configured.
    pub after: Vec<Limit>,
}

impl LimitsEdit<'_> {
    operation_options!();

    /// Makes the change.
    ///
    /// # Errors
    /// [`Error::NotConfigured`] if no level has limits; [`Error::Invalid`] for a key that was used
    /// for another change, or if the bucket has limits that outrank the configured ones;
    /// [`Error::Contended`] or [`Error::Store`] if it is incomplete: callers bring the limits along,
    /// and a second call with the same key within a day finishes it.
    pub async fn send(self) -> Result<LimitsReport, Error> {
        self.admin
            .session
            .at_home(async {
                let session = &self.admin.session;
                let bucket = self
                    .admin
                    .buckets
                    .bucket(self.entity.as_str().try_into()?, self.resource.as_str().try_into()?);
                let what = format!("apply the limits of {} on {}", self.entity, self.resource);
                let mut operating =
                    Operating::new(session, what, CacheKey::Nothing, &self.options)?;
                loop {
                    let (Read { known, mark, .. }, shards) = operating.read_bucket(&bucket).await?;
                    let first = shards.first();
                    let before = first.map_or_else(Vec::new, in_force);
                    if let Some(outcome) = known {
                        // What is configured by now does not matter.
                        return Ok(LimitsReport {
                            outcome,
                            shards: 0,
                            after: before.clone(),
                            before,
                        });
                    }
                    let limits = self.configured(&bucket).await?;
                    let now = session.now();
                    for shard in &shards {
                        check_bucket_limits(shard, &limits)?;
                        check_overruled(shard, &limits, now)?;
                    }
                    let is_open = |shard: &&Arc<Shard>| !shard.matches_rules(&limits, now);
                    let count = shards.iter().filter(is_open).count();
                    let event = AuditChange::Limits {
                        entity: bucket.key.entity.clone(),
                        resource: bucket.key.resource.clone(),
                        before: before.clone(),
                        after: limits.named().to_vec(),
                    };
                    let change = EditChange::Limits {
                        limits: limits.to_vec(),
                        version: limits.version,
                        is_own: limits.is_own(),
                    };
                    let change = (count > 0).then_some((change, event));
                    if let Some(outcome) =
                        operating.write_bucket(&bucket, &shards, change, mark).await?
                    {
                        return Ok(LimitsReport {
                            outcome,
                            shards: count,
                            before,
                            after: limits.named().to_vec(),
                        });
                    }
                }
            })
            .await
    }

    /// Returns the limits that are configured for the bucket now.
    async fn configured(&self, bucket: &BucketState) -> Result<Limits, Error> {
        let session = &self.admin.session;
        let (slot, first) = (&bucket.config, bucket.shard(0));
        let until = deadline(session.settings.timeout);
        let (age, mut wait) = (Freshness::Now, LoadWait::by(until));
        let resolved = resolve(session, slot, &first, age, &mut wait).await?;
        let Some(config) = &resolved.config else {
            return Err(Error::NotConfigured {
                entity: bucket.key.entity.clone(),
                resource: bucket.key.resource.clone(),
                missing_plan: resolved.missing_plan.clone(),
            });
        };
        check_limit_count(&config.limits)?;
        check_windows(&config.limits)?;
        check_functions(session, config.limits.iter(), until).await?;
        Ok(config.limits.clone())
    }
}

/// Returns the limits of a shard: of one with classes its pools, but none of a class that is gone.
fn in_force(shard: &Arc<Shard>) -> Vec<Limit> {
    let limits = shard.enforced_limits();
    let is_there = |limit: &Limit| limit.rule().capacity > MilliTokens::ZERO;
    limits.filter(is_there).collect()
}

/// Requires that a shard with other rules would take the configured ones.
fn check_overruled(shard: &Shard, limits: &Limits, now: EpochMillis) -> Result<(), Error> {
    let is_other = |limit: &Limit| {
        let state = shard.limits.get(limit.name());
        state.is_some_and(|state| state.rule != *limit.rule())
    };
    let Some(other) = limits.iter().find(|limit| is_other(limit)) else {
        return Ok(());
    };
    if !shard.matches_rules(limits, now) {
        return Ok(());
    }
    let kept = match shard.config_version {
        Some(version) if version.changes().is_some() => "a newer configuration".to_owned(),
        _ => "a caller that brought them less than 30 s ago".to_owned(),
    };
    Err(Error::Invalid(format!(
        "bucket {} has limit {:?} by {kept}, which outranks what is configured: change that caller first",
        shard.key.item_key().pk,
        other.name()
    )))
}

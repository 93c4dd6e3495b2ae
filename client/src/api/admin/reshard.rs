//! Splits a bucket in advance, or merges it back, for an operator.

use weirgate_shared::{Limit, MAX_SHARDS};

use super::Admin;
use crate::bucket::Resharding;
use crate::config::check_functions;
use crate::session::deadline;
use crate::values::{Error, check_limit_count, check_windows};

impl Admin {
    /// Splits a bucket into `shards` ahead of a load, or merges it back. Returns the resulting
    /// shard count.
    ///
    /// A bucket splits by itself when its writes exceed what one DynamoDB partition takes (1,000 a
    /// second), and merges again later. For a sudden load, split it manually: it keeps at least
    /// `shards` shards until this is called again with fewer; 1 leaves it to automatic splits. A
    /// missing bucket is created with `limits`. No token is made or lost. An audit event is written
    /// before the first change.
    ///
    /// A merge does not wait: a shard that holds leases, or is written to all the time, stays. The
    /// result is then above `shards`, and the reconciler merges the rest when it can.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, limits: [weirgate::Limit; 1]) -> Result<(), weirgate::Error> {
    /// limiter.admin().set_shards("openai", "gpt-4", &limits, 16).await?; // ready for 16,000 writes a second
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Error::Invalid`] if `shards` is not a power of two from 1 to 64, or so many that a shard
    /// would hold less than one token of a limit; [`Error::Store`] or [`Error::Timeout`] if the
    /// work is incomplete: finished steps stay, and another call continues.
    pub async fn set_shards(
        &self,
        entity: &str,
        resource: &str,
        limits: &[Limit],
        shards: u32,
    ) -> Result<u32, Error> {
        self.session
            .at_home(async {
                if !shards.is_power_of_two() || shards > MAX_SHARDS {
                    return Err(Error::Invalid(format!(
                        "shards must be a power of two from 1 to 64, got {shards}"
                    )));
                }
                let bucket = self
                    .buckets
                    .bucket(entity.try_into()?, resource.try_into()?);
                check_limit_count(limits)?;
                check_windows(limits)?;
                let until = deadline(self.session.settings.timeout);
                check_functions(&self.session, limits.iter(), until).await?;
                Resharding::new(&self.session, bucket, limits, shards)?
                    .run()
                    .await
            })
            .await
    }
}

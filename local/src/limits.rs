//! A limits file into the table.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use weirgate::{Error, LimitsFileContents, RateLimiter};

/// Changes under way at once.
const CONCURRENCY: usize = 16;

/// Sets every configuration and every entity of a limits file. What is equal already is not written.
/// Configurations that the file does not have stay.
///
/// # Errors
/// The first error of a change; others may have been made.
pub async fn apply(limiter: &RateLimiter, contents: &LimitsFileContents) -> Result<(), Error> {
    let LimitsFileContents { configs, entities } = contents;
    stream::iter(configs)
        .map(|(level, config)| limiter.admin().set_config(level, config))
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await?;
    // One after the other: a change checks the ancestors of its entity, so two at once would race.
    for entity in entities {
        limiter.admin().set_entity(entity).await?;
    }
    Ok(())
}

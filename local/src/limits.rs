//! A limits file into the table.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use weirgate::{Entity, Error, LimitsFileContents, RateLimiter};

/// Changes under way at once.
const CONCURRENCY: usize = 16;

/// Sets every configuration and every entity of a limits file. What is equal already is not written.
/// Configurations that the file does not have stay.
///
/// # Errors
/// [`Error::Invalid`] if the table would refuse the file as a whole: nothing is changed then. Otherwise the
/// first error of a change; others may have been made.
pub async fn apply(limiter: &RateLimiter, contents: &LimitsFileContents) -> Result<(), Error> {
    let (admin, configs) = (limiter.admin(), &contents.configs);
    let changes = configs.iter().cloned();
    let changes: Vec<_> = changes
        .map(|(level, config)| (level, Some(config)))
        .collect();
    admin.check_configs(&changes).await?;
    let entities = admin.order_entities(&contents.entities).await?;
    admin.check_entities(&entities, &changes).await?;
    stream::iter(configs)
        .map(|(level, config)| limiter.admin().set_config(level, config))
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await?;
    // One after the other: a change checks the ancestors of its entity, so two at once would race.
    for (at, entity) in entities.iter().enumerate() {
        let mut is_set = admin.set_entity(entity).await;
        if matches!(is_set, Err(Error::Invalid(_))) {
            // Only on the way a chain is too long: what is still to be moved gives way.
            for later in &entities[at + 1..] {
                detach(limiter, later).await?;
            }
            is_set = admin.set_entity(entity).await;
        }
        is_set?;
    }
    Ok(())
}

/// Removes the parent of an entity that gets another one later.
async fn detach(limiter: &RateLimiter, later: &Entity) -> Result<(), Error> {
    let Some(stored) = limiter.admin().entity(&later.id).await? else {
        return Ok(());
    };
    let alone = Entity {
        parent: None,
        cascades: false,
        ..stored
    };
    limiter.admin().set_entity(&alone).await
}

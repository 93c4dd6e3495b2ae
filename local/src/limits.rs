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
    let changes: Vec<_> = changes.map(|(level, config)| (level, Some(config))).collect();
    admin.check_configs(&changes).await?;
    let entities = admin.order_entities(&contents.entities).await?;
    admin.check_entities(&entities, &changes).await?;
    stream::iter(configs)
        .map(|(level, config)| limiter.admin().set_config(level, config))
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await?;
    let ids: Vec<_> = entities.iter().map(|entity| entity.id.clone()).collect();
    let mut stored = admin.read_entities(&ids).await?;
    for at in 0..entities.len() {
        if !replace_next(limiter, &mut stored, &entities, at).await? {
            admin.set_entity(&entities[at]).await?;
        }
    }
    Ok(())
}

/// Sets the entity at `at` of `entities`, which [`order_entities`](weirgate::Admin::order_entities) has ordered, if it
/// is still as in `stored`. Returns whether it is so now. One after the other: a change checks the ancestors of its
/// entity, so two at once would race.
///
/// # Errors
/// As [`set_entity`](weirgate::Admin::set_entity).
pub async fn replace_next(
    limiter: &RateLimiter,
    stored: &mut [Option<Entity>],
    entities: &[Entity],
    at: usize,
) -> Result<bool, Error> {
    let (admin, entity) = (limiter.admin(), &entities[at]);
    let is_replaced = admin.replace_entity(&entity.id, stored[at].as_ref(), Some(entity));
    let refused = match is_replaced.await {
        Err(refused @ Error::Invalid(_)) => refused,
        decided => return decided,
    };
    // Where the chain alone is refused, it is too long only on the way: what is still to be moved gives way.
    let chain = admin.order_entities(std::slice::from_ref(entity)).await;
    if !matches!(chain, Err(Error::Invalid(_))) {
        return Err(refused);
    }
    for (before, after) in stored.iter_mut().zip(entities).skip(at + 1) {
        if let Some(alone) = moved_off(before.as_ref(), after)
            && admin.replace_entity(&after.id, before.as_ref(), Some(&alone)).await?
        {
            *before = Some(alone);
        }
    }
    admin.replace_entity(&entity.id, stored[at].as_ref(), Some(entity)).await
}

/// Returns an entity without its parent, if `after` takes that one from it.
#[must_use]
pub fn moved_off(before: Option<&Entity>, after: &Entity) -> Option<Entity> {
    let before = before.filter(|before| before.parent != after.parent)?;
    before.parent.as_ref()?;
    Some(Entity { parent: None, cascades: false, ..before.clone() })
}

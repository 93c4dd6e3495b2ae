//! What the table has of a namespace, as a limits file has it.

use weirgate::{
    ConfigFilter, Entity, Error, LimitsFileContents, Page, PageToken, RateLimiter, Unreadable,
};

use crate::failure::Failure;

/// Reads the limits of all levels, and all entities that have a parent or a plan.
///
/// # Errors
/// [`Failure`], also if an item cannot be read.
pub async fn read(limiter: &RateLimiter) -> Result<LimitsFileContents, Failure> {
    let admin = limiter.admin();
    let configs = all(async |after| admin.configs(&ConfigFilter::All, after).await).await?;
    let ids = all(async |after| admin.entities(after).await).await?;
    let entities = admin.read_entities(&ids).await?.into_iter().flatten();
    let is_set = |entity: &Entity| entity.parent.is_some() || entity.plan.is_some();
    Ok(LimitsFileContents { configs, entities: entities.filter(is_set).collect() })
}

/// Reads all pages of a list.
async fn all<T>(
    mut read: impl AsyncFnMut(Option<&PageToken>) -> Result<Page<T>, Error>,
) -> Result<Vec<T>, Failure> {
    let (mut items, mut after) = (vec![], None);
    loop {
        let page = read(after.as_ref()).await?;
        if let Some(Unreadable { pk, sk, error, .. }) = page.unreadable.first() {
            return Err(Failure::Failed(format!("item {pk} {sk} cannot be read: {error}")));
        }
        items.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(items);
        }
    }
}

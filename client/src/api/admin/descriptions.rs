//! Display names and labels of entities.

use weirgate_shared::write::describe_entity;
use weirgate_shared::{AuditChange, EntityDescription, EntityId, ItemKey, read_description};
use weirgate_store::Item;

use super::Admin;
use super::entities::seen;
use crate::config::{ConfigEdit, unreadable};
use crate::session::CacheKey;
use crate::values::Error;

impl Admin {
    /// Sets the display name and the labels of an entity, instead of those before, whatever they
    /// are by now: [`edit_entity_description`](Self::edit_entity_description) keeps those of others.
    /// Its parent stays as it is, and [`set_entity`](Self::set_entity) keeps them.
    ///
    /// # Errors
    /// As [`edit_entity_description`](Self::edit_entity_description).
    pub async fn set_entity_description(
        &self,
        id: &EntityId,
        description: &EntityDescription,
    ) -> Result<(), Error> {
        let set = |_| Ok(description.clone());
        self.edit_entity_description(id, set).await.map(|_| ())
    }

    /// Changes the display name and the labels of an entity. Returns those before and after.
    ///
    /// `edit` is called with what the table has, and again if that changes before the write. So a
    /// label that another operator adds meanwhile stays.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let pro = |description: weirgate::EntityDescription| -> Result<_, weirgate::Error> {
    ///     Ok(description.labelled("plan", "pro").expect("a short label"))
    /// };
    /// limiter.admin().edit_entity_description(&"customer-1".try_into()?, pro).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of `edit`. [`Error::Invalid`] if the entity was not [set](Self::set_entity).
    /// [`Error::Contended`] if other processes kept changing it, [`Error::Store`] if the outcome is
    /// not known.
    pub async fn edit_entity_description<E: From<Error>>(
        &self,
        id: &EntityId,
        mut edit: impl FnMut(EntityDescription) -> Result<EntityDescription, E>,
    ) -> Result<(EntityDescription, EntityDescription), E> {
        self.session
            .at_home(async {
                let key = self.entity_key(id);
                let what = format!("the description of entity {id}");
                let mut editing =
                    ConfigEdit::new(&self.session, what, CacheKey::Entity(id.clone()));
                loop {
                    let (items, mark) = editing.read(&[key.item_key()]).await?;
                    let stored = seen(&key, &items)?;
                    let Some((_, op)) = stored.filter(|(stored, _)| stored.value.is_some()) else {
                        return Err(E::from(Error::Invalid(format!(
                            "entity {id} is described, but was not set: set it first"
                        ))));
                    };
                    let before = described(&key.item_key(), &items)?.unwrap_or_default();
                    let after = edit(before.clone())?;
                    if before == after {
                        return Ok((before, after));
                    }
                    let new_op = weirgate_store::random_id();
                    let change = AuditChange::EntityDescription {
                        id: id.clone(),
                        before: before.clone(),
                        after: after.clone(),
                    };
                    let mut actions =
                        vec![describe_entity(&key, &op, &after, &new_op), editing.record(change)];
                    actions.extend(mark);
                    if editing.write(&actions).await? {
                        return Ok((before, after));
                    }
                }
            })
            .await
    }

    /// Returns the display name and the labels of an entity, read from the table; `None` if it was
    /// not set.
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if they were changed by other means.
    pub async fn entity_description(
        &self,
        id: &EntityId,
    ) -> Result<Option<EntityDescription>, Error> {
        self.session
            .at_home(async {
                let key = self.entity_key(id);
                let items = self.session.read(&[key.item_key()]).await?;
                let stored = seen(&key, &items)?;
                match stored.and_then(|(stored, _)| stored.value) {
                    Some(_) => described(&key.item_key(), &items),
                    None => Ok(None),
                }
            })
            .await
    }
}

/// Returns the description of the entity among `items`.
fn described(key: &ItemKey, items: &[Item]) -> Result<Option<EntityDescription>, Error> {
    let Some(item) = items.iter().find(|item| item.key().as_ref() == Some(key)) else {
        return Ok(None);
    };
    let attributes: Vec<_> = item.attributes().collect();
    let read = read_description(&attributes).map(Some);
    read.map_err(|error| unreadable(key, error))
}

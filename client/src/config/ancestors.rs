//! The ancestors of an entity, whose stops reach it: by the cache, or by a read.

use std::sync::Arc;

use weirgate_shared::{EntityId, EntityKey, PlanName, read_entity};
use weirgate_store::Item;

use super::stored::{read_items, unreadable};
use crate::session::{Cached, Session, deadline};
use crate::values::Error;

/// Maximum number of entities in one read, 100.
const READ_ENTITIES: usize = 100;

/// An entity and its ancestors, as far as they are known.
pub(crate) struct Ancestors {
    /// Each with its plan.
    pub(crate) known: Vec<(EntityId, Option<PlanName>)>,
    /// Those of them whose parents are not known, or were read too long ago.
    pub(crate) unread: Vec<EntityId>,
}

/// Returns an entity and its ancestors by the cached entities and the limits file, also those that it
/// does not cascade to.
pub(crate) fn ancestors(session: &Session, entity: &EntityId) -> Ancestors {
    let (now, max_age) = (session.env.ages.now(), session.config_cache.switches.max_age(session));
    let file = session.file_levels();
    let (mut known, mut unread, mut at) = (vec![(entity.clone(), None)], vec![], 0);
    while let Some((id, _)) = known.get(at).cloned() {
        let read = session.config_cache.entity(&id);
        let is_due = (read.as_ref()).is_none_or(|read| now.since(read.read_at) >= max_age);
        let stored = read.as_ref().and_then(|read| read.value.value.as_ref());
        let of_file = file.as_ref().and_then(|file| file.plan(&id));
        known[at].1 = of_file.or(stored.and_then(|entity| entity.plan.as_ref())).cloned();
        at += 1;
        let of_file = file.as_ref().and_then(|file| file.parent(&id));
        let parents = [stored.and_then(|entity| entity.parent.as_ref()), of_file];
        for parent in parents.into_iter().flatten().cloned() {
            if known.iter().all(|(id, _)| *id != parent) {
                known.push((parent, None));
            }
        }
        unread.extend(is_due.then_some(id));
    }
    Ancestors { known, unread }
}

/// Reads and caches entities, of more than 100 the first.
///
/// # Errors
/// The store's, or [`Error::UnreadableItem`] of one of them; the others are cached.
pub(crate) async fn read_entities(session: &Arc<Session>, ids: &[EntityId]) -> Result<(), Error> {
    let (generation, read_at) = (session.config_cache.generation(), session.env.ages.now());
    let key =
        |id: &EntityId| EntityKey { namespace: session.namespace.clone(), entity: id.clone() };
    let mut ids = ids.to_vec();
    ids.sort();
    ids.dedup();
    ids.truncate(READ_ENTITIES);
    let keys: Vec<_> = ids.iter().map(|id| key(id).item_key()).collect();
    let until = deadline(session.settings.timeout);
    let consistency = session.config_cache.consistency();
    let items = read_items(session, &keys, consistency, until, Some(until), "entities").await?;
    let (mut read, mut outcome) = (vec![], Ok(()));
    for (id, key) in ids.into_iter().zip(keys) {
        let item = items.iter().find(|item| item.key().as_ref() == Some(&key));
        let entity = |item: &Item| read_entity(id.clone(), item.attributes());
        match item.map(entity).transpose() {
            Ok(found) => {
                let value = found.map(|(entity, _)| Arc::new(entity));
                let value = value.unwrap_or_default();
                read.push((id, Cached { read_at, value }));
            }
            Err(error) => outcome = Err(unreadable(&key, error)),
        }
    }
    session.config_cache.insert(generation, None, read);
    outcome
}

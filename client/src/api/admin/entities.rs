//! Entities and their parents.

use std::collections::{BTreeSet, HashMap};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use weirgate_shared::write::{Action, MAX_ANCESTORS, same_parent, set_entity};
use weirgate_shared::{
    AuditChange, Entity, EntityId, EntityKey, LISTED_ENTITY, LISTED_NAMESPACE, NAMESPACES,
    Namespace, Versioned, WriteId, entity_partitions, read_entity, schema_key,
};
use weirgate_store::{BY_ENTITY, CHILDREN, Index, Item, Query, SortKeys};

use super::Admin;
use crate::api::page::{PAGE, Page, PageToken, within};
use crate::config::{ConfigEdit, unreadable};
use crate::session::CacheKey;
use crate::values::Error;

/// Queries of children under way at once.
const CONCURRENCY: usize = 64;

impl Admin {
    /// Sets an entity: its parent, whether it cascades to it, and its [plan](Self::set_plan). An entity can
    /// be limited, or be a parent, without being set.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use weirgate::Entity;
    /// let user = Entity::new("user-1".try_into()?).child_of("team-a".try_into()?, true);
    /// limiter.admin().set_entity(&user).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A new parent costs a query for the entity and for each of its descendants.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the entity would be its own ancestor, or if it or a descendant would
    /// have more than 94 ancestors: one transaction checks that none of them has changed, and one
    /// grant takes from all. Also if its plan has no limits, as [`set_plan`](Self::set_plan).
    /// [`Error::Contended`] if other processes kept changing it,
    /// [`Error::Store`] if the outcome is not known.
    pub async fn set_entity(&self, entity: &Entity) -> Result<(), Error> {
        self.change_entity(&entity.id, None, |_| Some(entity.clone())).await.map(|_| ())
    }

    /// Sets an entity, or deletes it with `None`, if it is still as `before`. Returns whether it is
    /// so now; if not, another process has changed it, and it stays as that one left it.
    ///
    /// # Errors
    /// As [`set_entity`](Self::set_entity).
    pub async fn replace_entity(
        &self,
        id: &EntityId,
        before: Option<&Entity>,
        next: Option<&Entity>,
    ) -> Result<bool, Error> {
        let changed = self.change_entity(id, Some(before), |_| next.cloned()).await?;
        Ok(changed.is_some())
    }

    /// Checks that these entities can be [set](Self::set_entity) together, and returns them in an
    /// order in which no step makes an entity its own ancestor: those nearer to the root first.
    ///
    /// # Errors
    /// [`Error::Invalid`] if after all of them an entity would be its own ancestor, or have more than
    /// 94 ancestors; [`Error::Store`].
    pub async fn order_entities(&self, entities: &[Entity]) -> Result<Vec<Entity>, Error> {
        let parent = |entity: &Entity| (entity.id.clone(), entity.parent.clone());
        let mut parents: HashMap<_, _> = entities.iter().map(parent).collect();
        let mut generation: HashMap<_, _> = HashMap::new();
        loop {
            let all = parents.values().flatten();
            let unknown: BTreeSet<_> = all.filter(|id| !parents.contains_key(*id)).collect();
            if unknown.is_empty() {
                break;
            }
            let unknown: Vec<_> = unknown.into_iter().cloned().collect();
            let found = self.read_entities(&unknown).await?.into_iter();
            let found = found.map(|entity| entity.and_then(|entity| entity.parent));
            parents.extend(unknown.into_iter().zip(found));
        }
        for Entity { id, .. } in entities {
            let above = |id: &&EntityId| parents.get(*id)?.as_ref();
            let chain = std::iter::successors(Some(id), above).skip(1);
            let ancestors = chain.take(parents.len()).count();
            if ancestors == parents.len() {
                return Err(Error::Invalid(format!(
                    "entity {id} would be its own ancestor, or the child of one that is: give it another parent"
                )));
            }
            generation.insert(id.clone(), ancestors);
        }
        self.check_descendants(&generation).await?;
        let mut ordered = entities.to_vec();
        ordered.sort_by_key(|entity| generation[&entity.id]);
        Ok(ordered)
    }

    /// Deletes an entity. Its limits stay, and its children keep it as their parent. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// As [`set_entity`](Self::set_entity).
    pub async fn delete_entity(&self, id: &EntityId) -> Result<bool, Error> {
        let change = self.change_entity(id, None, |_| None).await?;
        Ok(change.is_some_and(|change| change.before.is_some()))
    }

    /// Returns an entity, read from the table; `None` if it was not set.
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if the item was changed by other means.
    pub async fn entity(&self, id: &EntityId) -> Result<Option<Entity>, Error> {
        self.session
            .at_home(async {
                let key = self.entity_key(id);
                let items = self.session.read(&[key.item_key()]).await?;
                Ok(seen(&key, &items)?.and_then(|(entity, _)| entity.value))
            })
            .await
    }

    /// Returns these entities, in the order of `ids`, read from the table: 100 with each
    /// request, and several requests at once. `None` stands for one that was not set.
    ///
    /// # Errors
    /// As [`entity`](Self::entity).
    pub async fn read_entities(&self, ids: &[EntityId]) -> Result<Vec<Option<Entity>>, Error> {
        self.session
            .at_home(async {
                let keys: Vec<_> = ids.iter().map(|id| self.entity_key(id)).collect();
                let distinct: BTreeSet<_> = keys.iter().map(EntityKey::item_key).collect();
                let distinct: Vec<_> = distinct.into_iter().collect();
                let items = self.session.read_many(&distinct).await?;
                let read = |key: &EntityKey| {
                    let item = items.get(&key.item_key());
                    let seen = seen(key, item.map_or(&[], std::slice::from_ref))?;
                    Ok(seen.and_then(|(entity, _)| entity.value))
                };
                keys.iter().map(read).collect()
            })
            .await
    }

    /// Returns the children of an entity, one page at a time; `after` is the previous page's token.
    /// Recent changes may be missing.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn children(
        &self,
        id: &EntityId,
        after: Option<&PageToken>,
    ) -> Result<Page<EntityId>, Error> {
        self.session
            .at_home(async {
                let partition = self.entity_key(id).children();
                let children = SortKeys::StartingWith("CHILD#");
                let listing = Query::of_index(CHILDREN, &partition, children);
                let found = self.session.page(listing, after).await?;
                let child = |item: &Item| Some(EntityKey::parse(&item.key()?)?.entity);
                Ok(Page {
                    items: found.items.iter().filter_map(child).collect(),
                    unreadable: vec![],
                    next: found.next,
                })
            })
            .await
    }

    /// Returns the entities of the namespace that were [set](Self::set_entity), one page at a time;
    /// `after` is the previous page's token. Recent changes may be missing.
    ///
    /// The list has 16 parts, each in the order of names, so pages may be short or empty. Entities
    /// that were never set are not in it: [`configs`](Self::configs) lists those with limits of
    /// their own, and [`resource_buckets`](Self::resource_buckets) those with buckets.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page token of another list; [`Error::Store`].
    pub async fn entities(&self, after: Option<&PageToken>) -> Result<Page<EntityId>, Error> {
        self.session
            .at_home(async {
                let namespace = &self.session.namespace;
                let list = format!("entities of {namespace}");
                let partitions = entity_partitions(namespace);
                self.listed_entities(list, BY_ENTITY, partitions, after).await
            })
            .await
    }

    /// Returns a page of a list of entities in some partitions of an index.
    pub(super) async fn listed_entities(
        &self,
        list: String,
        index: Index,
        partitions: impl Iterator<Item = String>,
        after: Option<&PageToken>,
    ) -> Result<Page<EntityId>, Error> {
        let position = within(after, &list)?;
        let page = self.session.partitioned_page((index, LISTED_ENTITY), partitions, position);
        let (found, next) = page.await?;
        let entity = |item: &Item| Some(EntityKey::parse(&item.key()?)?.entity);
        Ok(Page {
            items: found.iter().filter_map(entity).collect(),
            unreadable: vec![],
            next: next.map(|position| PageToken::new(list, position)),
        })
    }

    /// Returns the namespaces of the table that have a configuration, in the order of their names,
    /// one page at a time; `after` is the previous page's token. Recent changes may be missing.
    ///
    /// A namespace whose limits all come from code or from files has no entry in the table until
    /// something is configured in it. A caller that is fenced to its own namespace may not call
    /// this.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page token of another list; [`Error::Store`].
    pub async fn namespaces(&self, after: Option<&PageToken>) -> Result<Page<String>, Error> {
        self.session
            .at_home(async {
                let position = within(after, NAMESPACES)?;
                let listing = Query {
                    limit: Some(PAGE),
                    ..Query::of_index(
                        BY_ENTITY,
                        NAMESPACES,
                        SortKeys::StartingWith(LISTED_NAMESPACE),
                    )
                };
                let found = self.session.query(listing, position).await?;
                // Any item can name this partition; only the schema's item of a namespace counts.
                let namespace = |item: &Item| {
                    let key = item.key()?;
                    let namespace = Namespace::new(key.pk.split_once('/')?.0).ok()?;
                    (schema_key(&namespace) == key).then(|| namespace.to_string())
                };
                let next = found.next;
                Ok(Page {
                    items: found.items.iter().filter_map(namespace).collect(),
                    unreadable: vec![],
                    next: next.map(|position| PageToken::new(NAMESPACES.to_owned(), position)),
                })
            })
            .await
    }

    pub(super) fn entity_key(&self, id: &EntityId) -> EntityKey {
        EntityKey { namespace: self.session.namespace.clone(), entity: id.clone() }
    }

    /// Replaces an entity by what `next` makes of it, or deletes it if that is `None`, if it is still as
    /// `expected`. Returns `None` if it was another one.
    pub(super) async fn change_entity(
        &self,
        id: &EntityId,
        expected: Option<Option<&Entity>>,
        next: impl Fn(Option<&Entity>) -> Option<Entity>,
    ) -> Result<Option<EntityChange>, Error> {
        self.session
            .at_home(async {
                let key = self.entity_key(id);
                let mut editing = ConfigEdit::new(
                    &self.session,
                    format!("entity {id}"),
                    CacheKey::Entity(id.clone()),
                );
                loop {
                    let (items, mark) = editing.read(&[key.item_key()]).await?;
                    let (stored, op) = seen(&key, &items)?.unzip();
                    let stored: Versioned<Entity> = stored.unwrap_or_default();
                    let before = stored.value.clone();
                    let next = next(before.as_ref());
                    let change = EntityChange { before: before.clone(), after: next.clone() };
                    if !change.is_changed() {
                        return Ok(Some(change));
                    }
                    if expected.is_some_and(|expected| before.as_ref() != expected) {
                        return Ok(None);
                    }
                    let replanned = self.replanned(&stored, next).await?;
                    let new_op = weirgate_store::random_id();
                    let mut actions = vec![set_entity(&key, op.as_ref(), &replanned, &new_op)];
                    let (was, next) = (before.as_ref(), replanned.value.as_ref());
                    let plan = next.and_then(|next| next.plan.as_ref());
                    let left = was.and_then(|was| was.plan.as_ref());
                    if left != plan {
                        actions.extend(self.move_between(left, plan).await?);
                        self.check_plan_kinds(id, plan).await?;
                    }
                    let keeps_parent = was.map(|was| &was.parent) == next.map(|next| &next.parent);
                    let parent = next.and_then(|next| next.parent.as_ref());
                    if let Some(parent) = parent.filter(|_| !keeps_parent) {
                        let ancestors = self.ancestors(id, parent).await?;
                        let moved = [(id.clone(), ancestors.len())].into();
                        self.check_descendants(&moved).await?;
                        actions.extend(ancestors);
                    }
                    actions.push(editing.record(AuditChange::Entity {
                        id: id.clone(),
                        before,
                        after: replanned.value,
                    }));
                    actions.extend(mark);
                    if editing.write(&actions).await? {
                        return Ok(Some(change));
                    }
                }
            })
            .await
    }

    /// Returns checks that every ancestor still has its parent. If two changes together would close
    /// a cycle, each then fails the other's check.
    async fn ancestors(&self, id: &EntityId, parent: &EntityId) -> Result<Vec<Action>, Error> {
        let (mut checks, mut next) = (vec![], Some(parent.clone()));
        while let Some(ancestor) = next {
            if ancestor == *id {
                return Err(Error::Invalid(format!(
                    "entity {id} would be its own ancestor by parent {parent}: give it another parent"
                )));
            }
            if checks.len() == MAX_ANCESTORS {
                return Err(Error::Invalid(format!(
                    "entity {id} would have more than {MAX_ANCESTORS} ancestors by parent {parent}: \
                     give it a parent nearer to the root"
                )));
            }
            let key = self.entity_key(&ancestor);
            let items = self.session.read(&[key.item_key()]).await?;
            next = seen(&key, &items)?.and_then(|(entity, _)| entity.value?.parent);
            checks.push(same_parent(&key, next.as_ref()));
        }
        Ok(checks)
    }

    /// Requires that no entity of `moved`, which has the number of ancestors of each, and none of
    /// their descendants has too many. The index of children may lag behind, so two joins at once
    /// can pass; an acquire then refuses the chain.
    async fn check_descendants(&self, moved: &HashMap<EntityId, usize>) -> Result<(), Error> {
        let mut level: Vec<_> = moved.clone().into_iter().collect();
        while !level.is_empty() {
            let is_too_deep = |(_, ancestors): &&(EntityId, usize)| *ancestors > MAX_ANCESTORS;
            if let Some((id, _)) = level.iter().find(is_too_deep) {
                return Err(Error::Invalid(format!(
                    "entity {id} would have more than {MAX_ANCESTORS} ancestors: shorten its chain of parents"
                )));
            }
            let children = level.into_iter().map(async |(id, ancestors)| {
                let children = self.all_children(id).await?.into_iter();
                let staying = children.filter(|child| !moved.contains_key(child));
                let staying = staying.map(|child| (child, ancestors + 1));
                Ok::<_, Error>(staying.collect::<Vec<_>>())
            });
            let children = stream::iter(children.collect::<Vec<_>>());
            level = children.buffer_unordered(CONCURRENCY).try_concat().await?;
        }
        Ok(())
    }

    async fn all_children(&self, id: EntityId) -> Result<Vec<EntityId>, Error> {
        let (mut children, mut after) = (vec![], None);
        loop {
            let page = self.children(&id, after.as_ref()).await?;
            children.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok(children);
            }
        }
    }
}

/// An entity before and after a change.
pub(super) struct EntityChange {
    pub(super) before: Option<Entity>,
    after: Option<Entity>,
}

impl EntityChange {
    pub(super) fn is_changed(&self) -> bool {
        self.before != self.after
    }
}

/// Returns the entity among `items`, or what a deleted one left, and the id of its last write.
pub(super) fn seen(
    key: &EntityKey,
    items: &[Item],
) -> Result<Option<(Versioned<Entity>, WriteId)>, Error> {
    let item_key = key.item_key();
    let item = items.iter().find(|item| item.key().as_ref() == Some(&item_key));
    let read = item.map(|item| read_entity(key.entity.clone(), item.attributes()));
    read.transpose().map_err(|error| unreadable(&item_key, error))
}

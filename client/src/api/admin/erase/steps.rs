//! The steps of an erasure. Each can be repeated, so an interrupted erasure is continued by another.

use std::collections::BTreeSet;

use weirgate_shared::write::{Action, set_entity, write_config};
use weirgate_shared::{
    AuditChange, AuditKey, AuditSubject, BucketEdit, BucketKey, ConfigKey, ConfigLevel, Entity,
    EntityId, EntityKey, EpochMillis, ItemKey, MAX_SHARDS, Resource, SnapshotKey, Stamp, Versioned,
    attr, read_audit,
};
use weirgate_store::{BY_ENTITY, CHILDREN, Consistency, Index, Item, Query, SortKeys};

use super::super::entities::seen;
use super::remains::{Remains, live_leases};
use super::report::{EraseReport, LiveLeases};
use crate::api::admin::Admin;
use crate::config::{ConfigEdit, stored};
use crate::session::{CacheKey, Session, undecodable};
use crate::values::Error;

/// Maximum number of items in one transaction, which has room for 4 MB: ten of 400 KB.
const ITEMS: usize = 10;
/// Maximum number of times that a bucket is erased while callers create it again.
const ATTEMPTS: u32 = 3;

/// One erasure under way.
pub(super) struct Erasure<'a> {
    admin: &'a Admin,
    session: &'a Session,
    id: &'a EntityId,
    leases: LiveLeases,
    /// What the first change of the erasure contains too: its audit event; and the version of the
    /// schema, if the namespace has none.
    first: Vec<Action>,
    pub(super) report: EraseReport,
}

impl<'a> Erasure<'a> {
    pub(super) fn new(admin: &'a Admin, id: &'a EntityId, leases: LiveLeases) -> Self {
        Self {
            admin,
            session: &admin.session,
            id,
            leases,
            first: vec![],
            report: EraseReport::default(),
        }
    }

    /// Plans what belongs to the first change.
    pub(super) async fn prepare(&mut self) -> Result<(), Error> {
        let editing = self.editing("the entity");
        let (_, mark) = editing.read(&[]).await?;
        let event = AuditChange::Erased { id: self.id.clone() };
        self.first.push(editing.record(event));
        self.first.extend(mark);
        Ok(())
    }

    /// Counts what the other steps would delete.
    pub(super) async fn preview(mut self) -> Result<EraseReport, Error> {
        for resource in self.resources().await? {
            let (shards, _) = self.shards(&resource).await?;
            let shards = shards.iter().filter(|shard| !shard.is_erased);
            self.report.shards += shards.filter(|shard| shard.seen.is_some()).count();
        }
        for item in self.own_items("#CONFIG#").await? {
            let Some(key) = item.key().filter(|key| ConfigKey::parse(key).is_some()) else {
                continue;
            };
            let known = stored(&key, std::slice::from_ref(&item))?;
            self.report.versions_left += 1;
            self.report.configs += usize::from(known.value.is_some());
        }
        let children = self.listed_children().await?.into_iter();
        let ids: Vec<_> = children.map(|key| key.entity).collect();
        let children = self.admin.read_entities(&ids).await?.into_iter().flatten();
        let children = children.filter(|child| child.parent.as_ref() == Some(self.id));
        self.report.children = children.count();
        let key = self.admin.entity_key(self.id);
        let items = self.session.read(&[key.item_key()]).await?;
        let stored = seen(&key, &items)?;
        self.report.entity =
            stored.is_some_and(|(stored, _)| stored.value.is_some() || is_described(&items));
        self.report.snapshots = self.own_items("#USAGE#").await?.len();
        let events = self.audit_items().await?;
        self.report.audit_events = events.iter().filter(|item| !is_erasure(item)).count();
        Ok(self.report)
    }

    fn editing(&self, what: &str) -> ConfigEdit<'a> {
        let what = format!("{what} of {}, to be erased", self.id);
        ConfigEdit::new(self.session, what, CacheKey::Entity(self.id.clone()))
    }

    /// Makes one change of the erasure. Returns whether it was made; if not, it must be planned
    /// again.
    async fn change(
        &mut self,
        editing: &mut ConfigEdit<'_>,
        mut actions: Vec<Action>,
    ) -> Result<bool, Error> {
        actions.extend(self.first.iter().cloned());
        let is_made = editing.write(&actions).await?;
        if is_made {
            self.first.clear();
        }
        Ok(is_made)
    }

    /// Deletes items that nothing depends on. Returns how many.
    async fn delete(&mut self, what: &str, keys: &[ItemKey]) -> Result<usize, Error> {
        for some in keys.chunks(ITEMS) {
            let mut editing = self.editing(what);
            let delete = |key: &ItemKey| Action::Delete(key.clone(), vec![]);
            let actions: Vec<_> = some.iter().map(delete).collect();
            while !self.change(&mut editing, actions.clone()).await? {}
        }
        Ok(keys.len())
    }

    /// Reads the whole list of items in a partition of the table, or of an index.
    async fn list(
        &self,
        index: Option<Index>,
        partition: &str,
        prefix: &str,
    ) -> Result<Vec<Item>, Error> {
        let keys = SortKeys::StartingWith(prefix);
        let listing = match index {
            Some(index) => Query::of_index(index, partition, keys),
            None => Query::new(partition, keys),
        };
        Ok(self.session.query_all(listing).await?)
    }

    async fn own_items(&self, prefix: &str) -> Result<Vec<Item>, Error> {
        let partition = self.admin.entity_key(self.id).item_key().pk;
        self.list(None, &partition, prefix).await
    }

    /// Returns the entity's audit events, the oldest first.
    async fn audit_items(&self) -> Result<Vec<Item>, Error> {
        let of = AuditSubject::Entity(self.id.clone());
        let partition = AuditKey::partition(&self.session.namespace, &of);
        self.list(None, &partition, "#AUDIT#").await
    }

    /// Returns the resources that the entity has limits, buckets or usage on. Usage finds shards
    /// that are in no index.
    pub(super) async fn resources(&self) -> Result<BTreeSet<Resource>, Error> {
        let partition = self.admin.entity_key(self.id).item_key().pk;
        let listed = self.list(Some(BY_ENTITY), &partition, "BUCKET#").await?;
        let buckets = listed.iter().filter_map(|item| BucketKey::parse(&item.pk()));
        // Any item can name a partition of an index.
        let own =
            buckets.filter(|key| key.namespace == self.session.namespace && key.entity == *self.id);
        let mut resources: BTreeSet<_> = own.map(|key| key.resource).collect();
        for item in self.own_items("#USAGE#").await? {
            let snapshot = item.key().as_ref().and_then(SnapshotKey::parse);
            resources.extend(snapshot.map(|key| key.resource));
        }
        for item in self.own_items("#CONFIG#").await? {
            let level = item.key().as_ref().and_then(ConfigKey::parse);
            if let Some(ConfigLevel::EntityResource(_, resource)) = level.map(|key| key.level) {
                resources.insert(resource);
            }
        }
        Ok(resources)
    }

    /// Deletes the limits. Their versions stay: a bucket that a caller creates with older limits
    /// would otherwise keep them against newer ones.
    pub(super) async fn configs(&mut self) -> Result<(), Error> {
        let items = self.own_items("#CONFIG#").await?;
        for item_key in items.iter().filter_map(Item::key) {
            let Some(key) = ConfigKey::parse(&item_key) else {
                continue;
            };
            self.report.versions_left += 1;
            let what = format!("the configuration of {}", key.level);
            let changed = CacheKey::Level(key.level.clone());
            let mut editing = ConfigEdit::new(self.session, what, changed);
            loop {
                let items = self.session.read(std::slice::from_ref(&item_key)).await?;
                let seen = stored(&item_key, &items)?;
                if seen.value.is_none() {
                    break;
                }
                let action = write_config(&key, &seen, None);
                if self.change(&mut editing, vec![action]).await? {
                    self.report.configs += 1;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the children that the index has, which may lag behind.
    async fn listed_children(&self) -> Result<Vec<EntityKey>, Error> {
        let partition = self.admin.entity_key(self.id).children();
        let listed = self.list(Some(CHILDREN), &partition, "CHILD#").await?;
        let keys = listed.iter().filter_map(Item::key);
        let keys = keys.filter_map(|key| EntityKey::parse(&key));
        Ok(keys.filter(|key| key.namespace == self.session.namespace).collect())
    }

    /// Removes the entity as the parent of its children. Each change is an audit event of the child.
    pub(super) async fn children(&mut self) -> Result<(), Error> {
        for key in self.listed_children().await? {
            let what = format!("entity {}", key.entity);
            let changed = CacheKey::Entity(key.entity.clone());
            let mut editing = ConfigEdit::new(self.session, what, changed);
            loop {
                let items = self.session.read(&[key.item_key()]).await?;
                let Some((before, op)) = seen(&key, &items)? else {
                    break;
                };
                let (version, before) = (before.version, before.value);
                let Some(before) = before.filter(|of| of.parent.as_ref() == Some(self.id)) else {
                    break;
                };
                let after = Entity { parent: None, cascades: false, ..before.clone() };
                let new_op = weirgate_store::random_id();
                let event = editing.record(AuditChange::Entity {
                    id: key.entity.clone(),
                    before: Some(before),
                    after: Some(after.clone()),
                });
                let after = Versioned { version, value: Some(after) };
                let unlinked = set_entity(&key, Some(&op), &after, &new_op);
                if self.change(&mut editing, vec![unlinked, event]).await? {
                    self.report.children += 1;
                    break;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn entity(&mut self) -> Result<(), Error> {
        let key = self.admin.entity_key(self.id);
        let mut editing = self.editing("the item");
        loop {
            let items = self.session.read(&[key.item_key()]).await?;
            let Some((before, op)) = seen(&key, &items)? else {
                return Ok(());
            };
            if before.value.is_none() && !is_described(&items) {
                return Ok(());
            }
            let plan = before.value.as_ref().and_then(|entity| entity.plan.as_ref());
            let left = self.admin.move_between(plan, None).await?;
            let after = self.admin.replanned(&before, None).await?;
            // Another id, so that an edit of what was there fails.
            let new_op = weirgate_store::random_id();
            let deleted = set_entity(&key, Some(&op), &after, &new_op);
            if self.change(&mut editing, [vec![deleted], left].concat()).await? {
                self.report.entity = true;
                return Ok(());
            }
        }
    }

    /// Reads all shards that a bucket can have, because those that were merged away are in no index.
    /// Returns what is to be erased of them, and the key of a change that is under way or has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one holds a lease that has not expired, unless leases are discarded.
    pub(super) async fn shards(
        &self,
        resource: &Resource,
    ) -> Result<(Vec<Remains>, Option<ItemKey>), Error> {
        let first = self.first_shard(resource);
        let edit = BucketEdit::key(&first);
        let shards = (0..MAX_SHARDS).map(|shard| first.with_shard(shard).item_key());
        let keys: Vec<_> = shards.chain([edit.clone()]).collect();
        let read = self.session.read_with_merged(&keys, Consistency::Strong);
        let (mut shards, mut has_edit, now) = (vec![], false, self.session.now());
        for item in read.await? {
            if item.key().as_ref() == Some(&edit) {
                has_edit = true;
                continue;
            }
            let (shard, half) = Remains::of(&item).map_err(|error| undecodable(&item, error))?;
            shards.extend([shard].into_iter().chain(half));
            self.check_leases(&item, now)?;
        }
        Ok((Remains::in_order(shards), has_edit.then_some(edit)))
    }

    fn first_shard(&self, resource: &Resource) -> BucketKey {
        BucketKey {
            namespace: self.session.namespace.clone(),
            entity: self.id.clone(),
            resource: resource.clone(),
            shard: 0,
        }
    }

    fn check_leases(&self, item: &Item, now: EpochMillis) -> Result<(), Error> {
        let live = live_leases(item, now);
        if live == 0 || self.leases == LiveLeases::Discard {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "bucket {} holds {live} leases that have not expired: release them, wait for their \
             expiry, or erase with LiveLeases::Discard",
            item.pk()
        )))
    }

    /// Erases a bucket, and again if a caller or a split creates a shard meanwhile.
    pub(super) async fn bucket(&mut self, resource: Resource) -> Result<(), Error> {
        let (mut editing, mut erased) = (self.editing("a bucket"), 0);
        loop {
            let (shards, edit) = self.shards(&resource).await?;
            let now = self.session.now();
            let v = Remains::tombstone_v(&shards, now);
            let left: Vec<_> = shards.iter().filter(|shard| !shard.is_erased).collect();
            let some = &left[..left.len().min(ITEMS)];
            if some.is_empty() && edit.is_none() {
                return Ok(());
            }
            if erased == ATTEMPTS {
                self.report.in_use.push(resource);
                return Ok(());
            }
            let erase = |shard: &&Remains| Action::Update(shard.erase(v, now));
            let mut actions: Vec<_> = some.iter().map(erase).collect();
            // With each change, so that an erasure without the permission to delete writes nothing.
            let stamp = Stamp::key(&self.first_shard(&resource));
            let beside = [stamp].into_iter().chain(edit);
            actions.extend(beside.map(|key| Action::Delete(key, vec![])));
            if self.change(&mut editing, actions).await? {
                self.report.shards += some.iter().filter(|shard| shard.seen.is_some()).count();
                erased += u32::from(left.len() <= ITEMS);
            }
        }
    }

    pub(super) async fn snapshots(&mut self) -> Result<(), Error> {
        let items = self.own_items("#USAGE#").await?;
        let keys: Vec<_> = items.iter().filter_map(Item::key).collect();
        self.report.snapshots = self.delete("usage", &keys).await?;
        Ok(())
    }

    /// Deletes all audit events except those of erasures.
    pub(super) async fn audit_events(&mut self) -> Result<(), Error> {
        let items = self.audit_items().await?;
        let events = items.iter().filter(|item| !is_erasure(item));
        let keys: Vec<_> = events.filter_map(Item::key).collect();
        self.report.audit_events = self.delete("audit events", &keys).await?;
        Ok(())
    }
}

/// Returns whether an entity has a name or labels, also one that was deleted by an earlier release.
fn is_described(items: &[Item]) -> bool {
    let mut names = items.iter().flat_map(Item::attributes);
    names.any(|(name, _)| [attr::DISPLAY_NAME, attr::LABELS].contains(&name))
}

fn is_erasure(item: &Item) -> bool {
    let event = read_audit(item.attributes());
    event.is_ok_and(|event| matches!(event.change, AuditChange::Erased { .. }))
}

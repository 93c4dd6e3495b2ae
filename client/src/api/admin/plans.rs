//! Plans: limits of all entities that have one, and which entities these are.

use weirgate_shared::write::{
    Action, Condition, PLAN_STEP, count_entity, no_entities, same_config,
};
use weirgate_shared::{
    Config, ConfigFilter, ConfigKey, ConfigLevel, Entity, EntityId, PlanKey, PlanName, Versioned,
    plan_partitions, read_plan_count,
};
use weirgate_store::{BY_ENTITY, BY_RESOURCE, Item, Query, SortKeys};

use super::Admin;
use super::configs::Removal;
use super::kinds::no_limits;
use crate::api::page::{Page, PageToken, Unreadable};
use crate::config::{stored, unreadable};
use crate::values::Error;

/// How many entities and levels a plan has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlanUse {
    /// The plan.
    pub plan: PlanName,
    /// Number of entities that have it.
    pub entities: u64,
    /// Number of its levels that have a configuration. Without any, the plan does not exist: its entities
    /// have the limits of the resource and of the system.
    pub levels: u64,
}

impl Admin {
    /// Moves an entity to a plan, or away from its plan with `None`. The rest of the entity stays as it is;
    /// one that was not set has no parent then. Returns whether it had another plan, or none.
    ///
    /// The limits of the plan hold where the entity has none of its own, at once for this limiter, and
    /// within [`Builder::config_ttl`](crate::Builder::config_ttl) for others. Balances stay as they
    /// are, up to the new capacities, so that moving to and fro admits no more than the greater plan.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use weirgate::{Config, ConfigLevel, Limit};
    /// let pro = ConfigLevel::Plan("pro".try_into()?);
    /// let limits = Config::of([Limit::per_minute("rpm", 6_000)?]);
    /// limiter.admin().set_config(&pro, &limits).await?;
    /// limiter.admin().set_plan(&"acme".try_into()?, Some(&"pro".try_into()?)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if no level of the plan has a configuration, or if a limit would get another kind
    /// than buckets of the entity have under its name; otherwise as [`set_entity`](Self::set_entity).
    pub async fn set_plan(&self, id: &EntityId, plan: Option<&PlanName>) -> Result<bool, Error> {
        let next = |before: Option<&Entity>| {
            if before.is_none() && plan.is_none() {
                return None;
            }
            let entity = before.cloned().unwrap_or_else(|| Entity::new(id.clone()));
            let plan = plan.cloned();
            Some(Entity { plan, ..entity })
        };
        let change = self.change_entity(id, None, next).await?;
        Ok(change.is_some_and(|change| change.is_changed()))
    }

    /// Returns the plans of the namespace with the numbers of their entities and levels, in the order of
    /// their names, one page at a time; `after` is the previous page's token. A plan that once had either
    /// is among them. Recent ones may be missing; the numbers are those of now.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page token of another list; [`Error::Store`].
    pub async fn plans(&self, after: Option<&PageToken>) -> Result<Page<PlanUse>, Error> {
        self.session
            .at_home(async {
                let (partition, prefix) = PlanKey::list(&self.session.namespace);
                let listing = Query {
                    index: Some(BY_ENTITY),
                    ..Query::new(&partition, SortKeys::StartingWith(prefix))
                };
                let found = self.session.page(listing, after).await?;
                let keys: Vec<_> = found.items.iter().filter_map(Item::key).collect();
                let items = self.session.read_many(&keys).await?;
                let read = keys.iter().filter_map(|key| {
                    let (PlanKey { plan, .. }, item) = (PlanKey::parse(key)?, items.get(key)?);
                    let count = read_plan_count(item.attributes());
                    let count = count.map_err(|error| unreadable(key, error));
                    let number = |count: i64| u64::try_from(count).unwrap_or_default();
                    Some(count.map(|count| PlanUse {
                        plan,
                        entities: number(count.entities),
                        levels: number(count.levels),
                    }))
                });
                let (items, unreadable) = Unreadable::separate(read)?;
                Ok(Page { items, unreadable, next: found.next })
            })
            .await
    }

    /// Returns the entities that have a plan, one page at a time; `after` is the previous page's token.
    /// Recent changes may be missing.
    ///
    /// The list has 16 parts, each in the order of names, so pages may be short or empty.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page token of another list; [`Error::Store`].
    pub async fn plan_entities(
        &self,
        plan: &PlanName,
        after: Option<&PageToken>,
    ) -> Result<Page<EntityId>, Error> {
        self.session
            .at_home(async {
                let namespace = &self.session.namespace;
                let list = format!("entities of plan {plan} of {namespace}");
                let partitions = plan_partitions(namespace, plan);
                self.listed_entities(list, BY_RESOURCE, partitions, after).await
            })
            .await
    }

    /// Deletes the configurations of all levels of a plan. Returns how many there were. Entities that keep
    /// the plan have the limits of the resource and of the system then.
    ///
    /// # Errors
    /// [`Error::Invalid`] if entities have the plan, unless `is_forced`. One that gets it at the same time
    /// keeps the last level of the plan, or is refused; otherwise as
    /// [`delete_config`](Self::delete_config).
    pub async fn delete_plan(&self, plan: &PlanName, is_forced: bool) -> Result<usize, Error> {
        self.session
            .at_home(async {
                let removal = match is_forced {
                    true => Removal::Forced,
                    false => Removal::OfPlan,
                };
                let mut deleted = 0;
                for level in self.removable_levels(plan, is_forced).await? {
                    let change = self.remove_level(&level, removal).await?;
                    deleted += usize::from(change);
                }
                Ok(deleted)
            })
            .await
    }

    /// Returns how many configurations [`delete_plan`](Self::delete_plan) would delete. Writes nothing.
    ///
    /// # Errors
    /// As [`delete_plan`](Self::delete_plan).
    pub async fn preview_plan_deletion(
        &self,
        plan: &PlanName,
        is_forced: bool,
    ) -> Result<usize, Error> {
        self.session
            .at_home(async { Ok(self.removable_levels(plan, is_forced).await?.len()) })
            .await
    }

    /// Returns the levels of a plan that have a configuration. Requires that all of them may be removed: the
    /// plan as a whole, so that none of it goes if a part of it may not.
    async fn removable_levels(
        &self,
        plan: &PlanName,
        is_forced: bool,
    ) -> Result<Vec<ConfigLevel>, Error> {
        if !is_forced {
            self.require_no_entities(plan).await?;
        }
        let configs = self.plan_configs(plan).await?.into_iter();
        let set = configs.filter(|(_, config)| config.value.is_some());
        let changes: Vec<_> = set.map(|(level, _)| (level, None)).collect();
        self.check_configs(&changes).await?;
        Ok(changes.into_iter().map(|(level, _)| level).collect())
    }

    /// Returns the levels of a plan that have a configuration, or had one, as the table has them.
    pub(super) async fn plan_configs(
        &self,
        plan: &PlanName,
    ) -> Result<Vec<(ConfigLevel, Versioned<Config>)>, Error> {
        let namespace = &self.session.namespace;
        let list = ConfigFilter::Plan(plan.clone()).partition(namespace);
        let (partition, prefix) = list.unwrap_or_default();
        let listing = Query::new(&partition, SortKeys::StartingWith(prefix));
        let items = self.session.query_all(listing).await?;
        let read = |item: &Item| {
            let key = item.key()?;
            let level = ConfigKey::parse(&key)?.level;
            Some(stored(&key, std::slice::from_ref(item)).map(|config| (level, config)))
        };
        items.iter().filter_map(read).collect()
    }

    /// Returns what an entity becomes by a change: with another plan it gets a version by which its limits
    /// are newer than all that it had before.
    pub(super) async fn replanned(
        &self,
        before: &Versioned<Entity>,
        next: Option<Entity>,
    ) -> Result<Versioned<Entity>, Error> {
        let plan = |of: &Option<Entity>| of.as_ref().and_then(|entity| entity.plan.clone());
        let (left, version) = (plan(&before.value), before.version);
        let version = match left == plan(&next) {
            true => version,
            false => {
                let configs = match &left {
                    Some(plan) => self.plan_configs(plan).await?,
                    None => vec![],
                };
                let versions = configs.iter().map(|(_, config)| config.version);
                versions.fold(version.saturating_add(PLAN_STEP), i64::saturating_add)
            }
        };
        Ok(Versioned { version, value: next })
    }

    /// Returns whether a level of a plan has a configuration.
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if one was changed by other means.
    pub async fn has_plan(&self, plan: &PlanName) -> Result<bool, Error> {
        self.session.at_home(self.is_configured(plan)).await
    }

    pub(super) async fn is_configured(&self, plan: &PlanName) -> Result<bool, Error> {
        let configs = self.plan_configs(plan).await?;
        Ok(configs.iter().any(|(_, config)| config.value.is_some()))
    }

    /// Returns the parts of a move between plans: both count their entities, and the one that is entered
    /// still has a configuration.
    pub(super) async fn move_between(
        &self,
        left: Option<&PlanName>,
        entered: Option<&PlanName>,
    ) -> Result<Vec<Action>, Error> {
        let namespace = &self.session.namespace;
        let left = left.map(|plan| count_entity(namespace, plan, -1));
        let mut parts: Vec<_> = left.into_iter().collect();
        if let Some(plan) = entered {
            parts.extend([self.plan_exists(plan).await?, count_entity(namespace, plan, 1)]);
        }
        Ok(parts)
    }

    /// Returns the check that a plan still has a configuration.
    async fn plan_exists(&self, plan: &PlanName) -> Result<Action, Error> {
        let mut configs = self.plan_configs(plan).await?.into_iter();
        let Some((level, config)) = configs.find(|(_, config)| config.value.is_some()) else {
            return Err(no_limits(plan));
        };
        Ok(self.same_level(&level, config.version))
    }

    /// Requires that a level is not the last one of a plan that entities have. Returns the check that
    /// another level stays, or the condition of the plan's count that no entity got the plan.
    pub(super) async fn check_last_of_plan(
        &self,
        level: &ConfigLevel,
    ) -> Result<(Option<Action>, Vec<Condition>), Error> {
        let Some(plan) = level.plan() else {
            return Ok((None, vec![]));
        };
        let configs = self.plan_configs(plan).await?;
        let mut others = configs.iter().filter(|(other, _)| other != level);
        match others.find(|(_, config)| config.value.is_some()) {
            Some((other, config)) => {
                let stays = self.same_level(other, config.version);
                Ok((Some(stays), vec![]))
            }
            None => {
                self.require_no_entities(plan).await?;
                Ok((None, vec![no_entities()]))
            }
        }
    }

    /// Requires that no entity has a plan, by the index and by the count: the index may lag behind, and
    /// the count does not.
    async fn require_no_entities(&self, plan: &PlanName) -> Result<(), Error> {
        self.check_unused(plan, &[]).await?;
        let key = PlanKey { namespace: self.session.namespace.clone(), plan: plan.clone() };
        let key = key.item_key();
        let items = self.session.read(std::slice::from_ref(&key)).await?;
        let count = items.first().map(|item| read_plan_count(item.attributes()));
        match count.transpose().map_err(|error| unreadable(&key, error))? {
            Some(count) if count.entities > 0 => Err(in_use(plan, count.entities, "")),
            _ => Ok(()),
        }
    }

    fn same_level(&self, level: &ConfigLevel, version: i64) -> Action {
        let key = ConfigKey { namespace: self.session.namespace.clone(), level: level.clone() };
        same_config(&key, version)
    }

    /// Requires that no entities but some have a plan, as far as the index knows.
    pub(super) async fn check_unused(
        &self,
        plan: &PlanName,
        besides: &[EntityId],
    ) -> Result<(), Error> {
        let (mut count, mut first, mut after) = (0_i64, None, None);
        loop {
            let page = self.plan_entities(plan, after.as_ref()).await?;
            // The index may lag behind.
            for entity in self.read_entities(&page.items).await?.into_iter().flatten() {
                if entity.plan.as_ref() == Some(plan) && !besides.contains(&entity.id) {
                    count += 1;
                    first.get_or_insert(entity.id);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        match first {
            None => Ok(()),
            Some(first) => Err(in_use(plan, count, &format!(", such as {first}"))),
        }
    }
}

fn in_use(plan: &PlanName, count: i64, such_as: &str) -> Error {
    Error::Invalid(format!(
        "plan {plan} is in use: entities with it are {count}{such_as}: give them another plan, or run \
         `weirgate plans delete {plan} --force`"
    ))
}

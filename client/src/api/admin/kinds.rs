//! A name keeps its kind: no configuration gives slots the name of a rate or quota that a bucket of its
//! level has, or one of these that of slots.
//!
//! Most changes are decided by the configurations alone, which are read with the level's own. Where
//! these leave it open, the level's buckets decide.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weirgate_shared::{
    AuditChange, AuditSubject, Config, ConfigLevel, Entity, EntityId, ItemKey, Limit, LimitKind,
    PlanName, Versioned,
};
use weirgate_store::Item;

use super::{Admin, StoredBucket};
use crate::api::page::{Page, PageToken};
use crate::config::{check_functions, key, stored};
use crate::session::deadline;
use crate::values::Error;

/// Most buckets that are read for one change.
const MOST: usize = 2_000;

/// A change of a level's configuration.
#[derive(Debug)]
pub(super) struct Proposal<'a> {
    pub(super) level: &'a ConfigLevel,
    pub(super) seen: &'a Versioned<Config>,
    pub(super) next: Option<&'a Config>,
    /// Plan of the entity, for a level of one.
    pub(super) plan: Option<&'a PlanName>,
    /// Configurations of the [wider](wider) levels, the narrowest first.
    pub(super) wider: Vec<(ConfigLevel, Config)>,
    /// Configurations of these levels that the same plan replaces.
    pub(super) replaced: Vec<Config>,
    /// All changes of the plan.
    pub(super) planned: &'a Planned<'a>,
}

/// Levels, and their configurations after a plan.
pub(super) type Planned<'a> = HashMap<&'a ConfigLevel, Option<&'a Config>>;

/// A limit whose name may have another kind in buckets.
#[derive(Debug)]
struct Suspect<'a> {
    limit: &'a Limit,
    /// Level of the limit.
    of: &'a ConfigLevel,
    /// Whether a configuration has the other kind, so that only a look at all buckets clears it.
    is_known: bool,
}

/// Returns the levels that also decide about buckets of this one and that its names and the plan of its
/// entity tell, the narrowest first.
pub(super) fn wider(level: &ConfigLevel, plan: Option<&PlanName>) -> Vec<ConfigLevel> {
    let of_plan = plan.map(|plan| ConfigLevel::Plan(plan.clone()));
    match level {
        ConfigLevel::EntityResource(entity, resource) => {
            ConfigLevel::of_entity(entity, plan, resource).split_off(1)
        }
        ConfigLevel::PlanResource(plan, resource) => vec![
            ConfigLevel::Plan(plan.clone()),
            ConfigLevel::Resource(resource.clone()),
            ConfigLevel::System,
        ],
        ConfigLevel::Entity(_) => of_plan.into_iter().chain([ConfigLevel::System]).collect(),
        ConfigLevel::Plan(_) | ConfigLevel::Resource(_) => vec![ConfigLevel::System],
        ConfigLevel::System => vec![],
    }
}

fn kind_in(config: &Config, limit: &Limit) -> Option<LimitKind> {
    let mut limits = config.limits.iter();
    let known = limits.find(|known| known.name() == limit.name())?;
    Some(known.rule().kind())
}

impl Proposal<'_> {
    /// Returns the limits whose names may have another kind in buckets of the level.
    fn suspects(&self) -> Vec<Suspect<'_>> {
        let before = self.seen.value.as_ref();
        let Some(next) = self.next else {
            // The next level with a configuration applies from now on.
            let Some((of, config)) = self.wider.first() else {
                return vec![];
            };
            let is_other = |limit: &&Limit| {
                let known = before.and_then(|before| kind_in(before, limit));
                known.is_some_and(|known| !known.may_become(limit.rule().kind()))
            };
            let limits = config.limits.iter().filter(is_other);
            return limits.map(|limit| Suspect { limit, of, is_known: true }).collect();
        };
        let limits = next.limits.iter().filter_map(|limit| {
            let is_other = |known: LimitKind| !known.may_become(limit.rule().kind());
            let is_known = match before.and_then(|before| kind_in(before, limit)) {
                Some(known) if !is_other(known) => return None,
                Some(_) => true,
                None => {
                    let wider = self.wider.iter().map(|(_, config)| config);
                    let mut known = wider.chain(&self.replaced);
                    known.any(|config| kind_in(config, limit).is_some_and(is_other))
                }
            };
            // An earlier configuration may have had the name, or a level of a resource.
            let is_default = matches!(self.level, ConfigLevel::Entity(_) | ConfigLevel::Plan(_));
            let may_be = self.seen.version > 0 || is_default;
            (is_known || may_be).then_some(Suspect { limit, of: self.level, is_known })
        });
        limits.collect()
    }
}

impl Admin {
    /// Checks whether the table would accept these changes of configurations, `None` for a deletion,
    /// as it is now. Writes nothing. [`set_config`](Self::set_config) checks the same.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the first change that would be refused; [`Error::Store`].
    pub async fn check_configs(
        &self,
        changes: &[(ConfigLevel, Option<Config>)],
    ) -> Result<(), Error> {
        self.session
            .at_home(async {
                let limits = changes.iter().filter_map(|(_, next)| next.as_ref());
                let limits = limits.flat_map(|next| &next.limits);
                let until = deadline(self.session.settings.timeout);
                check_functions(&self.session, limits, until).await?;
                let ids = changes.iter().filter_map(|(level, _)| level.entity().cloned());
                let ids: Vec<_> = ids.collect();
                let mut entities = self.read_entities(&ids).await?.into_iter();
                let plan = |(level, _): &(ConfigLevel, _)| {
                    level.entity().and_then(|_| entities.next()??.plan)
                };
                let plans: Vec<_> = changes.iter().map(plan).collect();
                let levels: BTreeMap<_, _> = changes
                    .iter()
                    .zip(&plans)
                    .flat_map(|((level, _), plan)| {
                        [vec![level.clone()], wider(level, plan.as_ref())].concat()
                    })
                    .map(|level| (key(&self.session.namespace, &level).item_key(), level))
                    .collect();
                let keys: Vec<_> = levels.keys().cloned().collect();
                let items = self.session.read_many(&keys).await?;
                let read = |level: &ConfigLevel| {
                    let key = key(&self.session.namespace, level).item_key();
                    stored(&key, items.get(&key).map_or(&[], std::slice::from_ref))
                };
                let planned: Planned<'_> =
                    changes.iter().map(|(level, next)| (level, next.as_ref())).collect();
                for ((level, next), plan) in changes.iter().zip(&plans) {
                    next.iter().try_for_each(Config::check)?;
                    let seen = read(level)?;
                    let (mut known, mut replaced) = (vec![], vec![]);
                    for level in wider(level, plan.as_ref()) {
                        let stored = read(&level).ok().and_then(|stored| stored.value);
                        match planned.get(&level) {
                            Some(next) => {
                                replaced.extend(stored);
                                known.extend(next.cloned().map(|next| (level, next)));
                            }
                            None => known.extend(stored.map(|stored| (level, stored))),
                        }
                    }
                    let proposal = Proposal {
                        level,
                        seen: &seen,
                        next: next.as_ref(),
                        plan: plan.as_ref(),
                        wider: known,
                        replaced,
                        planned: &planned,
                    };
                    self.check_kinds(&proposal).await?;
                }
                Ok(())
            })
            .await
    }

    /// Checks whether these entities could be set after these changes of configurations, `None` for a
    /// deletion, as the table is now. Writes nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a plan that would have no configuration, of these entities or of others, or a
    /// limit that would get another kind by a plan; [`Error::Store`].
    pub async fn check_entities(
        &self,
        entities: &[Entity],
        changes: &[(ConfigLevel, Option<Config>)],
    ) -> Result<(), Error> {
        self.session
            .at_home(async {
                let planned: Planned<'_> =
                    changes.iter().map(|(level, next)| (level, next.as_ref())).collect();
                let ids: Vec<_> = entities.iter().map(|entity| entity.id.clone()).collect();
                let stored = self.read_entities(&ids).await?;
                let mut plans: BTreeSet<_> =
                    changes.iter().filter_map(|(level, _)| level.plan()).collect();
                plans.extend(entities.iter().filter_map(|entity| entity.plan.as_ref()));
                for plan in plans {
                    let of_table = self.plan_configs(plan).await?;
                    let kept = of_table.iter().filter(|(level, _)| !planned.contains_key(level));
                    let mut set = planned.iter().filter(|(level, _)| level.plan() == Some(plan));
                    if kept.clone().any(|(_, config)| config.value.is_some())
                        || set.any(|(_, next)| next.is_some())
                    {
                        continue;
                    }
                    if entities.iter().any(|entity| entity.plan.as_ref() == Some(plan)) {
                        return Err(no_limits(plan));
                    }
                    self.check_unused(plan, &ids).await?;
                }
                for (entity, stored) in entities.iter().zip(stored) {
                    let (plan, before) = (entity.plan.as_ref(), stored.and_then(|of| of.plan));
                    if before.as_ref() != plan {
                        Box::pin(self.check_entity(&entity.id, plan, None, &planned)).await?;
                    }
                }
                Ok(())
            })
            .await
    }

    /// Requires that no bucket of the level has a limit that would get another kind.
    pub(super) async fn check_kinds(&self, proposal: &Proposal<'_>) -> Result<(), Error> {
        let suspects = proposal.suspects();
        match (proposal.level, proposal.next) {
            (ConfigLevel::Entity(entity), None) if proposal.seen.value.is_some() => {
                let (plan, planned) = (proposal.plan, proposal.planned);
                Box::pin(self.check_entity(entity, plan, Some(proposal.level), planned)).await
            }
            (ConfigLevel::Plan(plan), None) if proposal.seen.value.is_some() => {
                let (entities, _) = self.some_of_plan(plan).await?;
                for entity in entities {
                    let (without, planned) = (Some(proposal.level), proposal.planned);
                    Box::pin(self.check_entity(&entity, Some(plan), without, planned)).await?;
                }
                Ok(())
            }
            _ if suspects.is_empty() => Ok(()),
            (ConfigLevel::System, _) => Box::pin(self.check_history(&suspects)).await,
            (level, _) => Box::pin(self.check_buckets(level, &suspects)).await,
        }
    }

    /// Compares limits with the buckets of a level.
    async fn check_buckets(
        &self,
        level: &ConfigLevel,
        suspects: &[Suspect<'_>],
    ) -> Result<(), Error> {
        let is_complete = self
            .each_bucket(level, |bucket| {
                suspects.iter().try_for_each(|suspect| {
                    let Suspect { limit, of, .. } = suspect;
                    compare(bucket, limit, of)
                })
            })
            .await?;
        let known = suspects.iter().find(|suspect| suspect.is_known);
        match known.filter(|_| !is_complete) {
            None => Ok(()),
            Some(Suspect { limit, of, .. }) => {
                let why = format!("in the buckets of {level}, of which {MOST} were checked");
                Err(refused(limit, of, other(limit), &why))
            }
        }
    }

    /// Calls `check` with the buckets of a level, up to [`MOST`]. Returns whether these are all.
    async fn each_bucket(
        &self,
        level: &ConfigLevel,
        mut check: impl FnMut(&StoredBucket) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        if let ConfigLevel::EntityResource(entity, resource) = level {
            let bucket = self.bucket(entity, resource).await?;
            return bucket.iter().try_for_each(check).map(|()| true);
        }
        if let Some(plan) = level.plan() {
            let (entities, mut is_complete) = self.some_of_plan(plan).await?;
            let mut count = 0;
            for entity in entities {
                if count >= MOST {
                    return Ok(false);
                }
                count += match level.resource() {
                    Some(resource) => {
                        let bucket = self.bucket(&entity, resource).await?;
                        bucket.iter().try_for_each(&mut check)?;
                        1
                    }
                    None => {
                        let level = ConfigLevel::Entity(entity);
                        let (are_all, count) = self.each_bucket_of(&level, &mut check).await?;
                        is_complete &= are_all;
                        count
                    }
                };
            }
            return Ok(is_complete);
        }
        let (is_complete, _) = self.each_bucket_of(level, &mut check).await?;
        Ok(is_complete)
    }

    /// Returns the entities of a plan, up to about [`MOST`], and whether these are all.
    async fn some_of_plan(&self, plan: &PlanName) -> Result<(Vec<EntityId>, bool), Error> {
        let (mut entities, mut after) = (vec![], None::<PageToken>);
        loop {
            let Page { items, next, .. } = self.plan_entities(plan, after.as_ref()).await?;
            entities.extend(items);
            after = next;
            if after.is_none() || entities.len() >= MOST {
                return Ok((entities, after.is_none()));
            }
        }
    }

    /// Calls `check` with the buckets in the list of an entity or a resource, up to [`MOST`]. Returns
    /// whether these are all, and how many.
    async fn each_bucket_of(
        &self,
        level: &ConfigLevel,
        check: &mut impl FnMut(&StoredBucket) -> Result<(), Error>,
    ) -> Result<(bool, usize), Error> {
        let (mut after, mut count) = (None::<PageToken>, 0);
        loop {
            let Page { items, next, .. } = match level {
                ConfigLevel::Entity(entity) => self.entity_buckets(entity, after.as_ref()).await?,
                ConfigLevel::Resource(resource) => {
                    self.resource_buckets(resource, after.as_ref()).await?
                }
                // No list has all buckets of a namespace.
                _ => return Ok((false, 0)),
            };
            items.iter().try_for_each(&mut *check)?;
            count += items.len();
            after = next;
            if after.is_none() || count >= MOST {
                return Ok((after.is_none(), count));
            }
        }
    }

    /// Compares limits of the system with its earlier configurations, as far as the audit has them: no
    /// list has all buckets of a namespace.
    async fn check_history(&self, suspects: &[Suspect<'_>]) -> Result<(), Error> {
        let certain = suspects.iter().find(|suspect| suspect.is_known);
        let mut after = None;
        if certain.is_none() {
            loop {
                let page = self.audit(&AuditSubject::System, after.as_ref()).await?;
                for event in page.items {
                    let AuditChange::Config { before, .. } = event.change else {
                        continue;
                    };
                    let had = |suspect: &&Suspect<'_>| {
                        let known = before.as_ref();
                        let known = known.and_then(|before| kind_in(before, suspect.limit));
                        known.is_some_and(|known| !known.may_become(suspect.limit.rule().kind()))
                    };
                    if let Some(Suspect { limit, of, .. }) = suspects.iter().find(had) {
                        let why = "as in an earlier configuration of the system";
                        return Err(refused(limit, of, other(limit), why));
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        let Some(Suspect { limit, of, .. }) = certain else {
            return Ok(());
        };
        Err(refused(limit, of, other(limit), "as it is"))
    }

    /// Requires that no bucket of an entity has a limit that would get another kind by another plan.
    pub(super) async fn check_plan_kinds(
        &self,
        entity: &EntityId,
        plan: Option<&PlanName>,
    ) -> Result<(), Error> {
        let planned = Planned::new();
        Box::pin(self.check_entity(entity, plan, None, &planned)).await
    }

    /// Returns the plan of the entity of a level.
    pub(super) async fn plan_of(&self, level: &ConfigLevel) -> Result<Option<PlanName>, Error> {
        match level.entity() {
            Some(entity) => Ok(self.entity(entity).await?.and_then(|entity| entity.plan)),
            None => Ok(None),
        }
    }

    /// Compares the buckets of an entity with the limits that apply to them by a plan, without one of the
    /// levels.
    async fn check_entity(
        &self,
        entity: &EntityId,
        plan: Option<&PlanName>,
        without: Option<&ConfigLevel>,
        planned: &Planned<'_>,
    ) -> Result<(), Error> {
        let mut buckets = vec![];
        let mut keep = |bucket: &StoredBucket| {
            buckets.push(bucket.clone());
            Ok(())
        };
        let level = ConfigLevel::Entity(entity.clone());
        self.each_bucket_of(&level, &mut keep).await?;
        let levels = |bucket: &StoredBucket| {
            let mut levels = ConfigLevel::of_entity(entity, plan, &bucket.resource);
            levels.retain(|level| Some(level) != without);
            levels
        };
        let item_key = |level: &ConfigLevel| key(&self.session.namespace, level).item_key();
        let levels_of_all: BTreeSet<_> = buckets.iter().flat_map(levels).collect();
        let keys: Vec<_> = levels_of_all.iter().map(item_key).collect();
        let items = self.session.read_many(&keys).await?;
        let config = |level: &ConfigLevel| match planned.get(level) {
            Some(next) => next.cloned(),
            None => config(&items, &item_key(level)),
        };
        for bucket in &buckets {
            let in_force = levels(bucket).into_iter();
            let mut in_force = in_force.filter_map(|level| Some((config(&level)?, level)));
            if let Some((config, level)) = in_force.next() {
                let mut limits = config.limits.iter();
                limits.try_for_each(|limit| compare(bucket, limit, &level))?;
            }
        }
        Ok(())
    }
}

/// Returns a configuration that can be read.
fn config(items: &HashMap<ItemKey, Item>, key: &ItemKey) -> Option<Config> {
    let item = items.get(key)?;
    stored(key, std::slice::from_ref(item)).ok()?.value
}

const fn other(limit: &Limit) -> LimitKind {
    match limit.rule().kind() {
        LimitKind::Rate | LimitKind::Quota => LimitKind::Slots,
        LimitKind::Slots => LimitKind::Rate,
    }
}

/// Requires that a bucket does not have the limit with another kind.
fn compare(bucket: &StoredBucket, limit: &Limit, of: &ConfigLevel) -> Result<(), Error> {
    let known = bucket.limit(limit.name().as_str());
    match known.map(|known| known.kind()) {
        Some(known) if !known.may_become(limit.rule().kind()) => {
            let StoredBucket { entity, resource, .. } = bucket;
            let why = format!("as in the bucket of {entity} on {resource}");
            Err(refused(limit, of, known, &why))
        }
        _ => Ok(()),
    }
}

fn refused(limit: &Limit, of: &ConfigLevel, known: LimitKind, why: &str) -> Error {
    let (name, got) = (limit.name(), limit.rule().kind());
    Error::Invalid(format!(
        "limit {name:?} of {of} must stay {known} {why}, got {got}: give the new limit another name"
    ))
}

pub(super) fn no_limits(plan: &PlanName) -> Error {
    Error::Invalid(format!(
        "plan {plan} has no limits: run `weirgate limits set --plan {plan} rpm=600/minute`, or give another plan"
    ))
}

//! A name keeps its kind: no configuration gives slots the name of a rate or a quota that a bucket of
//! its level has, or one of these that of slots. A rate and a quota may take each other's name.
//!
//! Most changes are decided by the configurations alone, which are read with the level's own. Where
//! these leave it open, the level's buckets decide.

use std::collections::{BTreeMap, HashMap};

use weirgate_shared::{
    AuditChange, AuditSubject, Config, ConfigLevel, EntityId, ItemKey, Limit, LimitKind, Resource,
    Versioned,
};
use weirgate_store::Item;

use super::{Admin, StoredBucket};
use crate::api::page::{Page, PageToken};
use crate::config::{key, stored};
use crate::values::Error;

/// Most buckets that are read for one change.
const MOST: usize = 2_000;

/// A change of a level's configuration.
#[derive(Debug)]
pub(super) struct Proposal<'a> {
    pub(super) level: &'a ConfigLevel,
    pub(super) seen: &'a Versioned<Config>,
    pub(super) next: Option<&'a Config>,
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

/// Returns the levels that also decide about buckets of this one and that its names tell, the
/// narrowest first.
pub(super) fn wider(level: &ConfigLevel) -> Vec<ConfigLevel> {
    match level {
        ConfigLevel::EntityResource(entity, resource) => {
            ConfigLevel::of(entity, resource)[1..].to_vec()
        }
        ConfigLevel::Entity(_) | ConfigLevel::Resource(_) => vec![ConfigLevel::System],
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
            let is_changed = |limit: &&Limit| {
                let known = before.and_then(|before| kind_in(before, limit));
                known.is_some_and(|known| is_other(known, limit))
            };
            let limits = config.limits.iter().filter(is_changed);
            return limits
                .map(|limit| Suspect {
                    limit,
                    of,
                    is_known: true,
                })
                .collect();
        };
        let limits = next.limits.iter().filter_map(|limit| {
            let is_other = |known: LimitKind| is_other(known, limit);
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
            let may_be = self.seen.version > 0 || matches!(self.level, ConfigLevel::Entity(_));
            (is_known || may_be).then_some(Suspect {
                limit,
                of: self.level,
                is_known,
            })
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
                let levels: BTreeMap<_, _> = changes
                    .iter()
                    .flat_map(|(level, _)| [vec![level.clone()], wider(level)].concat())
                    .map(|level| (key(&self.session.namespace, &level).item_key(), level))
                    .collect();
                let keys: Vec<_> = levels.keys().cloned().collect();
                let items = self.session.read_many(&keys).await?;
                let read = |level: &ConfigLevel| {
                    let key = key(&self.session.namespace, level).item_key();
                    stored(&key, items.get(&key).map_or(&[], std::slice::from_ref))
                };
                let planned: Planned<'_> = changes
                    .iter()
                    .map(|(level, next)| (level, next.as_ref()))
                    .collect();
                for (level, next) in changes {
                    next.iter().try_for_each(Config::check)?;
                    let seen = read(level)?;
                    let (mut known, mut replaced) = (vec![], vec![]);
                    for level in wider(level) {
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

    /// Requires that no bucket of the level has a limit that would get another kind.
    pub(super) async fn check_kinds(&self, proposal: &Proposal<'_>) -> Result<(), Error> {
        let suspects = proposal.suspects();
        match (proposal.level, proposal.next) {
            (ConfigLevel::Entity(entity), None) if proposal.seen.value.is_some() => {
                Box::pin(self.check_deletion(entity, proposal)).await
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
        let (mut after, mut count) = (None::<PageToken>, 0);
        loop {
            let Page { items, next, .. } = match level {
                ConfigLevel::Entity(entity) => self.entity_buckets(entity, after.as_ref()).await?,
                ConfigLevel::Resource(resource) => {
                    self.resource_buckets(resource, after.as_ref()).await?
                }
                // No list has all buckets of a namespace.
                ConfigLevel::EntityResource(..) | ConfigLevel::System => return Ok(false),
            };
            items.iter().try_for_each(&mut check)?;
            count += items.len();
            after = next;
            if after.is_none() || count >= MOST {
                return Ok(after.is_none());
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
                        known.is_some_and(|known| is_other(known, suspect.limit))
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

    /// Compares the buckets of an entity with the limits that apply to them without its default.
    async fn check_deletion(
        &self,
        entity: &EntityId,
        proposal: &Proposal<'_>,
    ) -> Result<(), Error> {
        let mut buckets = vec![];
        self.each_bucket(proposal.level, |bucket| {
            buckets.push(bucket.clone());
            Ok(())
        })
        .await?;
        let levels = |resource: &Resource| {
            [
                ConfigLevel::EntityResource(entity.clone(), resource.clone()),
                ConfigLevel::Resource(resource.clone()),
            ]
        };
        let item_key = |level: &ConfigLevel| key(&self.session.namespace, level).item_key();
        let keys: Vec<_> = buckets
            .iter()
            .flat_map(|bucket| levels(&bucket.resource))
            .map(|level| item_key(&level))
            .collect();
        let items = self.session.read_many(&keys).await?;
        for bucket in &buckets {
            let [own, of_resource] = levels(&bucket.resource);
            let config = |level: &ConfigLevel| match proposal.planned.get(level) {
                Some(next) => next.cloned(),
                None => config(&items, &item_key(level)),
            };
            if config(&own).is_some() {
                continue;
            }
            let next = config(&of_resource).map(|config| (of_resource, config));
            let next = next.or_else(|| proposal.wider.first().cloned());
            if let Some((level, config)) = &next {
                let mut limits = config.limits.iter();
                limits.try_for_each(|limit| compare(bucket, limit, level))?;
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

/// Returns whether a limit may not take the name of one of this kind.
const fn is_other(known: LimitKind, limit: &Limit) -> bool {
    known.is_held() != limit.rule().kind().is_held()
}

/// Returns a kind whose name the limit may not take.
const fn other(limit: &Limit) -> LimitKind {
    match limit.rule().kind().is_held() {
        true => LimitKind::Rate,
        false => LimitKind::Slots,
    }
}

/// Requires that a bucket does not have the limit with another kind.
fn compare(bucket: &StoredBucket, limit: &Limit, of: &ConfigLevel) -> Result<(), Error> {
    let known = bucket.limit(limit.name().as_str());
    match known.map(|known| known.kind()) {
        Some(known) if is_other(known, limit) => {
            let StoredBucket {
                entity, resource, ..
            } = bucket;
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

//! Configurations in the table: set, replace, delete, read, list.

use std::collections::HashSet;

use weirgate_shared::write::{count_level, write_config};
use weirgate_shared::{
    AuditChange, Config, ConfigFilter, ConfigKey, ConfigLevel, ConfigPatch, ItemKey, LISTED_CONFIG,
    Versioned, config_partitions,
};
use weirgate_store::{BY_ENTITY, BY_RESOURCE, Item, Query, SortKeys};

use super::Admin;
use super::kinds::{Planned, Proposal, wider};
use crate::api::page::{Page, PageToken, Unreadable, within};
use crate::config::{ConfigEdit, check_functions, key, stored};
use crate::session::CacheKey;
use crate::values::Error;

/// A change of the configuration of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    /// Sets what it names, and keeps the rest.
    Merge(ConfigPatch),
    /// Replaces the configuration.
    Replace(Config),
    /// Deletes the configuration, so that the next level with one applies.
    Delete,
}

/// What a [`ConfigChange`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ConfigReport {
    /// Configuration before; `None` if the level had none.
    pub before: Option<Config>,
    /// Configuration after. It equals the one before if nothing had to be changed.
    pub after: Option<Config>,
}

impl Admin {
    /// Sets the configuration of a level, and replaces the one before. It holds at once for
    /// acquires of this limiter, and within [`Builder::config_ttl`](crate::Builder::config_ttl) for
    /// others. It reaches each bucket with its next acquire. An equal configuration changes
    /// nothing.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use weirgate::{Config, ConfigLevel, Limit};
    /// let limits = [Limit::per_minute("rpm", 600)?, Limit::per_minute("tpm", 100_000)?];
    /// limiter.admin().set_config(&ConfigLevel::Resource("gpt-4".try_into()?), &Config::of(limits)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid configuration, before anything is sent, or if a limit would
    /// get another kind than buckets have under its name.
    /// [`Error::Contended`] if other processes kept changing it, [`Error::Store`] if the outcome is
    /// not known.
    pub async fn set_config(&self, level: &ConfigLevel, config: &Config) -> Result<(), Error> {
        let next = Some(checked(config)?);
        let next = |_: Option<&Config>| Ok(next.clone());
        let change = self.change_level(level, None, None, next, Removal::Checked);
        change.await.map(|_| ())
    }

    /// Changes the configuration of a level, whatever it is by then, and returns it before and
    /// after. It holds as after [`set_config`](Self::set_config).
    ///
    /// With an `author` the audit event has the limiter's
    /// [principal](crate::Builder::principal), a slash and the author. So a service that changes
    /// limits for several people tells which of them did it, and none can pass for another principal.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use weirgate::{ConfigChange, ConfigLevel, ConfigPatch, Limit};
    /// let patch = ConfigPatch { limits: vec![Limit::per_minute("rpm", 600)?], ..Default::default() };
    /// let level = ConfigLevel::Resource("gpt-4".try_into()?);
    /// let report = limiter.admin().change_config(&level, &ConfigChange::Merge(patch), Some("alice")).await?;
    /// println!("{:?}, then {:?}", report.before, report.after);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`set_config`](Self::set_config), and [`Error::Invalid`] for a wrong author.
    pub async fn change_config(
        &self,
        level: &ConfigLevel,
        change: &ConfigChange,
        author: Option<&str>,
    ) -> Result<ConfigReport, Error> {
        let author = author.map(|author| self.author(author)).transpose()?;
        let next = |before: Option<&Config>| match change {
            ConfigChange::Merge(patch) => checked(&patch.onto(before)).map(Some),
            ConfigChange::Replace(config) => checked(config).map(Some),
            ConfigChange::Delete => Ok(None),
        };
        match self.change_level(level, None, author, next, Removal::Checked).await? {
            Change::Made(report) => Ok(report),
            // Only another version refuses a change.
            Change::Refused => Err(Error::Invalid(format!(
                "the configuration of {level} has another version: read it again"
            ))),
        }
    }

    /// Replaces the configuration of a level, or deletes it if `next` is `None`, unless its version
    /// is no longer the one that [`read_configs`](Self::read_configs) returned. Returns whether
    /// `next` is the configuration now: if the level was changed in between, nothing is written. A
    /// repeated call finds its own change, and writes nothing.
    ///
    /// # Errors
    /// As [`set_config`](Self::set_config).
    pub async fn replace_config(
        &self,
        level: &ConfigLevel,
        version: i64,
        next: Option<&Config>,
    ) -> Result<bool, Error> {
        let next = next.map(checked).transpose()?;
        let next = |_: Option<&Config>| Ok(next.clone());
        let change = self.change_level(level, Some(version), None, next, Removal::Checked).await?;
        Ok(change != Change::Refused)
    }

    /// Deletes the configuration of a level, so that the next level with one applies. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// As [`set_config`](Self::set_config); [`Error::Invalid`] also for the last level of a plan that
    /// entities have: [`delete_plan`](Self::delete_plan) can do so.
    pub async fn delete_config(&self, level: &ConfigLevel) -> Result<bool, Error> {
        self.remove_level(level, Removal::Checked).await
    }

    pub(super) async fn remove_level(
        &self,
        level: &ConfigLevel,
        removal: Removal,
    ) -> Result<bool, Error> {
        let next = |_: Option<&Config>| Ok(None);
        let change = self.change_level(level, None, None, next, removal).await?;
        Ok(matches!(change, Change::Made(report) if report.before.is_some()))
    }

    /// Returns the configuration of exactly this level, read from the table; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if the item was changed by other means.
    pub async fn config(&self, level: &ConfigLevel) -> Result<Option<Config>, Error> {
        self.session
            .at_home(async {
                let key = key(&self.session.namespace, level).item_key();
                let items = self.session.read(std::slice::from_ref(&key)).await?;
                stored(&key, &items).map(|stored| stored.value)
            })
            .await
    }

    /// Returns the configurations of these levels, in their order, each with its version, read from
    /// the table: 100 levels with each request, and several requests at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a level that is given twice; otherwise as [`config`](Self::config).
    pub async fn read_configs(
        &self,
        levels: &[ConfigLevel],
    ) -> Result<Vec<Versioned<Config>>, Error> {
        self.session
            .at_home(async {
                let mut seen = HashSet::new();
                if let Some(level) = levels.iter().find(|level| !seen.insert(*level)) {
                    let text = format!("{level} is given twice: give each level once");
                    return Err(Error::Invalid(text));
                }
                let namespace = &self.session.namespace;
                let item_key = |level| key(namespace, level).item_key();
                let keys: Vec<_> = levels.iter().map(item_key).collect();
                let items = self.session.read_many(&keys).await?;
                let stored =
                    |key: &ItemKey| stored(key, items.get(key).map_or(&[], std::slice::from_ref));
                keys.iter().map(stored).collect()
            })
            .await
    }

    /// Lists configurations, one page at a time; `after` is the previous page's token. Recent
    /// changes may be missing in lists of more than one entity. One that was changed by other means
    /// is among the page's [unreadable](Page::unreadable) entries.
    ///
    /// All of a namespace have 19 parts, so pages may be short or empty. Those of an entity on a
    /// resource that were last changed by a release before 0.10 are only in the lists of the entity
    /// and of the resource.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page token of another list; [`Error::Store`].
    pub async fn configs(
        &self,
        of: &ConfigFilter,
        after: Option<&PageToken>,
    ) -> Result<Page<(ConfigLevel, Config)>, Error> {
        self.session
            .at_home(async {
                let namespace = &self.session.namespace;
                // In no index, or in that of another list.
                let own = match of {
                    ConfigFilter::All => Some(ConfigLevel::System),
                    ConfigFilter::Resource(resource) => {
                        Some(ConfigLevel::Resource(resource.clone()))
                    }
                    _ => None,
                };
                let own = own.filter(|_| after.is_none());
                let own = own.map(|level| key(namespace, &level).item_key());
                let found = self.listed(of, after).await?;
                let listed = found.items.iter().filter_map(Item::key);
                let keys: Vec<_> = own.into_iter().chain(listed).collect();
                let items = match of {
                    ConfigFilter::Entity(_) | ConfigFilter::Plan(_) => {
                        let items = found.items.into_iter();
                        items.filter_map(|item| Some((item.key()?, item))).collect()
                    }
                    _ => self.session.read_many(&keys).await?,
                };
                let read = keys.iter().filter_map(|key| {
                    let ConfigKey { level, .. } = ConfigKey::parse(key)?;
                    let items = items.get(key).map_or(&[][..], std::slice::from_ref);
                    let stored = stored(key, items).map(|stored| stored.value);
                    Some(stored.transpose()?.map(|config| (level, config)))
                });
                let (items, unreadable) = Unreadable::separate(read)?;
                Ok(Page { items, unreadable, next: found.next })
            })
            .await
    }

    /// Returns an author as audit events have it.
    fn author(&self, author: &str) -> Result<String, Error> {
        let author = match author {
            "" => String::new(),
            author => format!("{}/{author}", self.session.settings.principal),
        };
        if author.is_empty() || author.chars().count() > 256 {
            return Err(Error::Invalid(format!(
                "author must have 1 to 256 characters with the principal before it, got {author:?}: shorten it"
            )));
        }
        Ok(author)
    }

    /// Returns a page of the items that a list names, those in an index with their keys alone.
    async fn listed(
        &self,
        of: &ConfigFilter,
        after: Option<&PageToken>,
    ) -> Result<Page<Item>, Error> {
        let session = &*self.session;
        if let Some((partition, prefix)) = of.partition(&session.namespace) {
            let index = match of {
                ConfigFilter::Entity(_) | ConfigFilter::Plan(_) => None,
                ConfigFilter::Plans => Some(BY_ENTITY),
                _ => Some(BY_RESOURCE),
            };
            let listing = Query { index, ..Query::new(&partition, SortKeys::StartingWith(prefix)) };
            return session.page(listing, after).await;
        }
        let list = format!("configurations of {}", session.namespace);
        let position = within(after, &list)?;
        let mut last_parts = config_partitions(&session.namespace);
        let is_last_part = position.is_some_and(|at| at.contains_key(BY_ENTITY.hash));
        let (mut items, next) = match is_last_part {
            true => {
                let index = (BY_ENTITY, LISTED_CONFIG);
                let page = session.partitioned_page(index, last_parts, position);
                page.await?
            }
            false => {
                let kinds = [ConfigFilter::Resources, ConfigFilter::Entities];
                let partitions = kinds.into_iter();
                let partitions =
                    partitions.filter_map(|kind| Some(kind.partition(&session.namespace)?.0));
                let index = (BY_RESOURCE, LISTED_CONFIG);
                let (items, next) = session.partitioned_page(index, partitions, position).await?;
                let first = || Some([(BY_ENTITY.hash.to_owned(), last_parts.next()?)].into());
                (items, next.or_else(first))
            }
        };
        // An item can name a partition of each index, and is listed once.
        items.retain(|item| {
            let level = item.key().and_then(|key| ConfigKey::parse(&key));
            level.is_some_and(|key| key.by_namespace().is_some() == is_last_part)
        });
        Ok(Page {
            items,
            unreadable: vec![],
            next: next.map(|position| PageToken::new(list, position)),
        })
    }

    fn level_key(&self, level: &ConfigLevel) -> ItemKey {
        key(&self.session.namespace, level).item_key()
    }

    /// Replaces a configuration by what `next` makes of it, or deletes it if that is `None`. With a
    /// `version`, only if the item still has it.
    async fn change_level(
        &self,
        level: &ConfigLevel,
        version: Option<i64>,
        author: Option<String>,
        next: impl Fn(Option<&Config>) -> Result<Option<Config>, Error>,
        removal: Removal,
    ) -> Result<Change, Error> {
        self.session
            .at_home(async {
                let session = &*self.session;
                let key = key(&session.namespace, level);
                let what = format!("the configuration of {level}");
                let editing = ConfigEdit::new(session, what, CacheKey::Level(level.clone()));
                let mut editing = editing.by(author);
                let item_key = key.item_key();
                let plan = self.plan_of(level).await?;
                let wider = wider(level, plan.as_ref());
                let keys = wider.iter().map(|level| self.level_key(level));
                let keys: Vec<_> = [item_key.clone()].into_iter().chain(keys).collect();
                loop {
                    let (items, mark) = editing.read(&keys).await?;
                    let seen = stored(&item_key, &items)?;
                    let next = next(seen.value.as_ref())?;
                    let changes = version.map(|version| seen.version.saturating_sub(version));
                    let report = ConfigReport { before: seen.value.clone(), after: next.clone() };
                    if seen.value == next && matches!(changes, None | Some(0 | 1)) {
                        return Ok(Change::Made(report));
                    }
                    if !matches!(changes, None | Some(0)) {
                        return Ok(Change::Refused);
                    }
                    let limits = next.iter().flat_map(|next| &next.limits);
                    check_functions(&self.session, limits, editing.deadline()).await?;
                    // One that cannot be read is in force nowhere, and must not keep others from being
                    // written.
                    let of = |level: &ConfigLevel| {
                        let stored = stored(&self.level_key(level), &items).ok()?;
                        Some((level.clone(), stored.value?))
                    };
                    let proposal = Proposal {
                        level,
                        seen: &seen,
                        next: next.as_ref(),
                        plan: plan.as_ref(),
                        wider: wider.iter().filter_map(of).collect(),
                        replaced: vec![],
                        planned: &Planned::new(),
                    };
                    let (mut other, mut conditions) = (None, vec![]);
                    if removal == Removal::Checked {
                        self.check_kinds(&proposal).await?;
                    }
                    if removal != Removal::Forced && next.is_none() {
                        (other, conditions) = self.check_last_of_plan(level).await?;
                    }
                    let mut actions = vec![write_config(&key, &seen, next.as_ref())];
                    let by = i64::from(next.is_some()) - i64::from(seen.value.is_some());
                    if let Some(plan) = level.plan().filter(|_| by != 0) {
                        let count = count_level(&session.namespace, plan, by, conditions);
                        actions.push(count);
                    }
                    let change = AuditChange::Config {
                        level: level.clone(),
                        before: seen.value,
                        after: next,
                    };
                    actions.push(editing.record(change));
                    actions.extend(other.into_iter().chain(mark));
                    if editing.write(&actions).await? {
                        return Ok(Change::Made(report));
                    }
                }
            })
            .await
    }
}

/// What is checked before a level is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// That its limits may go, and that it is not the last one of a plan that entities have.
    Checked,
    /// That it is not the last one of a plan that entities have: it goes with its plan, whose limits
    /// were checked as a whole.
    OfPlan,
    /// Nothing: as `OfPlan`, and entities may have the plan.
    Forced,
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// The level is configured so; it may have been before.
    Made(ConfigReport),
    /// The version was another one; nothing was written.
    Refused,
}

/// Returns a valid configuration, its limits in the order in which they are read back.
fn checked(config: &Config) -> Result<Config, Error> {
    config.check()?;
    let mut config = config.clone();
    config.limits.sort_by(|one, other| one.name().cmp(other.name()));
    Ok(config)
}

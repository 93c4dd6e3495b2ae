//! Configurations in the table: set, delete, read, list.

use weirgate_shared::write::write_config;
use weirgate_shared::{AuditChange, Config, ConfigFilter, ConfigKey, ConfigLevel};
use weirgate_store::{BY_RESOURCE, Item, Query, SortKeys};

use super::limiter::RateLimiter;
use super::page::{Page, PageToken};
use crate::config::{ConfigEdit, key, stored};
use crate::session::{CacheKey, CacheStats, Session};
use crate::values::Error;

impl RateLimiter {
    /// Sets the configuration of a level, and replaces the one before. It holds at once for
    /// acquires of this limiter, and within [`Builder::config_ttl`](crate::Builder::config_ttl) for
    /// others. It reaches each bucket with its next acquire. An equal configuration changes
    /// nothing.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use weirgate::{Config, ConfigLevel, Limit};
    /// let limits = [Limit::per_minute("rpm", 600)?, Limit::per_minute("tpm", 100_000)?];
    /// limiter.set_config(&ConfigLevel::Resource("gpt-4".try_into()?), &Config::of(limits)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid configuration, before anything is sent.
    /// [`Error::Contended`] if other processes kept changing it, [`Error::Store`] if the outcome is
    /// not known.
    pub async fn set_config(&self, level: &ConfigLevel, config: &Config) -> Result<(), Error> {
        config.check()?;
        let mut config = config.clone();
        // In the order in which they are read back.
        config
            .limits
            .sort_by(|one, other| one.name().cmp(other.name()));
        self.change_config(level, Some(config)).await.map(|_| ())
    }

    /// Deletes the configuration of a level, so that the next level with one applies. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// As [`set_config`](Self::set_config).
    pub async fn delete_config(&self, level: &ConfigLevel) -> Result<bool, Error> {
        self.change_config(level, None).await
    }

    /// Returns the configuration of exactly this level, read from the table; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if the item was changed by other means.
    pub async fn config(&self, level: &ConfigLevel) -> Result<Option<Config>, Error> {
        let key = key(&self.session.namespace, level).item_key();
        let items = self.session.table.read(std::slice::from_ref(&key)).await?;
        stored(&key, &items).map(|stored| stored.value)
    }

    /// Lists configurations, one page at a time; `after` is the previous page's token. Recent
    /// changes may be missing in lists of more than one entity.
    ///
    /// # Errors
    /// As [`config`](Self::config).
    pub async fn configs(
        &self,
        of: &ConfigFilter,
        after: Option<&PageToken>,
    ) -> Result<Page<(ConfigLevel, Config)>, Error> {
        let Session {
            table, namespace, ..
        } = &*self.session;
        let (partition, prefix) = of.partition(namespace);
        let is_own = matches!(of, ConfigFilter::Entity(_));
        let listing = Query {
            index: (!is_own).then_some(BY_RESOURCE),
            ..Query::new(&partition, SortKeys::StartingWith(prefix))
        };
        let found = self.session.page(listing, after).await?;
        let keys: Vec<_> = found.items.iter().filter_map(Item::key).collect();
        let items = if is_own {
            found.items
        } else {
            table.read(&keys).await?
        };
        let mut configs = vec![];
        for key in keys {
            let Some(ConfigKey { level, .. }) = ConfigKey::parse(&key) else {
                continue;
            };
            configs.extend(stored(&key, &items)?.value.map(|config| (level, config)));
        }
        Ok(Page {
            items: configs,
            next: found.next,
        })
    }

    /// Returns the counters of the configuration cache since the limiter was built.
    #[must_use]
    pub fn cache_stats(&self) -> CacheStats {
        self.session.config_cache.stats()
    }

    /// Changes or deletes a configuration. Returns whether there was one before.
    async fn change_config(
        &self,
        level: &ConfigLevel,
        next: Option<Config>,
    ) -> Result<bool, Error> {
        let session = &*self.session;
        let key = key(&session.namespace, level);
        let what = format!("the configuration of {level}");
        let mut editing = ConfigEdit::new(session, what, CacheKey::Level(level.clone()));
        loop {
            let item_key = key.item_key();
            let (items, mark) = editing.read(std::slice::from_ref(&item_key)).await?;
            let seen = stored(&item_key, &items)?;
            let existed = seen.value.is_some();
            if seen.value == next {
                return Ok(existed);
            }
            let mut actions = vec![write_config(&key, &seen, next.as_ref())];
            let change = AuditChange::Config {
                level: level.clone(),
                before: seen.value,
                after: next.clone(),
            };
            actions.push(editing.record(change));
            actions.extend(mark);
            if editing.write(&actions).await? {
                return Ok(existed);
            }
        }
    }
}

//! Resolves the limits in force for an entity on a resource: from the cache, or with one read.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weirgate_shared::{
    Config, ConfigLevel, ConfigStatus, Entity, EntityId, EntityKey, Limit, LimitMode, Versioned,
    read_config, read_entity, schema_key,
};
use weirgate_store::{Consistency, Item};

use super::cache::Cached;
use super::schema;
use crate::Error;
use crate::ages::Moment;
use crate::bucket::BucketState;
use crate::clock::deadline;
use crate::inner::Inner;
use crate::limits::Limits;
use crate::stats::count;

/// Age below which a configuration is not read again for any reason, 1 s.
pub(crate) const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// The limits in force for an entity on a resource, and the parent.
#[derive(Debug)]
pub(crate) struct ResolvedConfig {
    /// `None` if no level has a configuration.
    pub(crate) config: Option<Arc<EffectiveConfig>>,
    /// Parent that the entity cascades to.
    pub(crate) parent: Option<EntityId>,
    /// Time of the last read of the oldest part, successful or not.
    read_at: Moment,
    valid_until: Moment,
    generation: u64,
}

/// Configuration of the level that applies.
#[derive(Debug)]
pub(crate) struct EffectiveConfig {
    pub(crate) level: ConfigLevel,
    pub(crate) status: ConfigStatus,
    /// Limits, with the sum of all levels' versions, which rises with every change of any level.
    pub(crate) limits: Limits,
}

impl EffectiveConfig {
    /// Creates it. In shadow mode all enforced limits become shadow limits.
    pub(crate) fn new(level: ConfigLevel, config: &Config, version: Option<i64>) -> Self {
        let in_mode = |limit: &Limit| {
            let is_shadow = config.is_shadow && limit.mode() == LimitMode::Enforced;
            if is_shadow {
                limit.clone().in_mode(LimitMode::Shadow)
            } else {
                limit.clone()
            }
        };
        let limits = Limits::new(config.limits.iter().map(in_mode).collect(), version);
        let limits = if matches!(level, ConfigLevel::EntityResource(..)) {
            limits.own()
        } else {
            limits
        };
        Self {
            level,
            status: config.status,
            limits,
        }
    }
}

/// Resolved limits of one bucket, and the lock of their load.
#[derive(Debug, Default)]
pub(crate) struct LimitsSlot {
    state: Mutex<State>,
    loading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    resolved: Option<Arc<ResolvedConfig>>,
    /// Number of finished loads.
    loads: u64,
    /// Error of the last load, if it failed.
    failed: Option<Error>,
}

/// Greatest age of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The limiter's setting.
    AnyAge,
    /// [`MIN_REREAD_INTERVAL`], because the limits have probably changed.
    Recent,
}

impl ResolvedConfig {
    /// Returns the configuration of a file, which needs no table.
    #[cfg(feature = "yaml")]
    fn of_file(
        file: &crate::LimitsFile,
        inner: &Inner,
        key: &weirgate_shared::BucketKey,
    ) -> Option<Arc<Self>> {
        let (config, parent) =
            file.rules((&key.entity, &key.resource), inner.table.skew().local())?;
        let now = inner.ages.now();
        Some(Arc::new(Self {
            config: Some(config),
            parent,
            read_at: now,
            valid_until: now,
            generation: 0,
        }))
    }

    /// Returns whether it is old enough to be read again.
    pub(crate) fn may_be_stale(&self, now: Moment) -> bool {
        now.since(self.read_at) >= MIN_REREAD_INTERVAL
    }

    /// Returns whether a bucket showed a `newer` version, and this one is old enough to be read
    /// again.
    fn is_older_than(&self, newer: i64, now: Moment) -> bool {
        self.config
            .as_ref()
            .is_some_and(|config| config.limits.version < Some(newer))
            && self.may_be_stale(now)
    }
}

impl LimitsSlot {
    fn state(&self) -> MutexGuard<'_, State> {
        // Ignore poisoning: the state is consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the limits in force for the entity and resource of a bucket.
///
/// # Errors
/// The store's, if nothing is cached and the table cannot be read.
pub(crate) async fn resolve(
    inner: &Inner,
    bucket: &BucketState,
    age: Freshness,
    timeout: Duration,
) -> Result<Arc<ResolvedConfig>, Error> {
    #[cfg(feature = "yaml")]
    if let Some(said) = inner
        .settings
        .file
        .as_ref()
        .and_then(|file| ResolvedConfig::of_file(file, inner, &bucket.key))
    {
        return Ok(said);
    }
    let slot = &bucket.config;
    let is_good = |resolved: &Arc<ResolvedConfig>, age: Freshness| {
        resolved.generation == inner.config_cache.generation()
            && match age {
                Freshness::AnyAge => inner.ages.now() < resolved.valid_until,
                Freshness::Recent => !resolved.may_be_stale(inner.ages.now()),
            }
    };
    let counters = &inner.config_cache.counters;
    let (known, loads) = {
        let state = slot.state();
        (state.resolved.clone(), state.loads)
    };
    let mut age = age;
    if let Some(known) = known.filter(|known| is_good(known, age)) {
        if !known.is_older_than(bucket.summary().version(), inner.ages.now()) {
            count(&counters.hits, 1);
            count(&counters.negative_hits, u64::from(known.config.is_none()));
            return Ok(known);
        }
        age = Freshness::Recent;
    }
    count(&counters.misses, 1);
    let _turn = slot.loading.lock().await;
    {
        let state = slot.state();
        if let Some(known) = state.resolved.clone().filter(|known| is_good(known, age)) {
            return Ok(known);
        }
        // A request that waited for this load takes its failure too.
        if let Some(error) = state.failed.clone().filter(|_| state.loads > loads) {
            return Err(error);
        }
    }
    let loaded = ConfigLoad::new(inner, bucket, age, timeout)
        .run()
        .await
        .map(Arc::new);
    let mut state = slot.state();
    state.loads += 1;
    state.failed = loaded.as_ref().err().cloned();
    if let Ok(resolved) = &loaded {
        state.resolved = Some(Arc::clone(resolved));
    }
    loaded
}

type KnownLevel = Option<Cached<Arc<Versioned<Config>>>>;

/// One load of missing or old entries.
struct ConfigLoad<'a> {
    age: Freshness,
    inner: &'a Inner,
    bucket: &'a BucketState,
    /// Levels in order of precedence.
    levels: [(ConfigLevel, KnownLevel); 4],
    entity: Option<Cached<Option<Arc<Entity>>>>,
    max_age: Duration,
    timeout: Duration,
    generation: u64,
}

impl<'a> ConfigLoad<'a> {
    fn new(inner: &'a Inner, bucket: &'a BucketState, age: Freshness, timeout: Duration) -> Self {
        let generation = inner.config_cache.generation();
        let (entity, resource) = (&bucket.key.entity, &bucket.key.resource);
        let levels = ConfigLevel::of(entity, resource).map(|level| {
            let known = inner.config_cache.level(&level);
            (level, known)
        });
        let ttl = inner.settings.config_ttl;
        let max_age = if age == Freshness::Recent {
            ttl.min(MIN_REREAD_INTERVAL)
        } else {
            ttl
        };
        Self {
            age,
            inner,
            bucket,
            levels,
            entity: inner.config_cache.entity(entity),
            max_age,
            timeout,
            generation,
        }
    }

    async fn run(mut self) -> Result<ResolvedConfig, Error> {
        let Err(error) = self.read().await else {
            return Ok(self.resolved(None));
        };
        // Old limits are better than no decision.
        if !self.has_all() {
            return Err(error);
        }
        count(&self.inner.config_cache.counters.stale, 1);
        let bucket = self.bucket.key.item_key().pk;
        tracing::warn!(%error, bucket, "limits could not be read again: those known before are used");
        let failed = self.inner.ages.now();
        Ok(self.resolved(Some(failed)))
    }

    /// Returns whether everything is cached, at any age.
    fn has_all(&self) -> bool {
        self.entity.is_some() && self.levels.iter().all(|(_, known)| known.is_some())
    }

    /// Returns strong consistency only if a change is probable, or this process has made one.
    const fn consistency(&self) -> Consistency {
        match self.age {
            Freshness::AnyAge if self.generation == 0 => Consistency::Eventual,
            Freshness::AnyAge | Freshness::Recent => Consistency::Strong,
        }
    }

    /// Reads missing or old entries in one request, together with the bucket's first shard if there
    /// is no view of it.
    async fn read(&mut self) -> Result<(), Error> {
        let (inner, namespace) = (self.inner, &self.inner.namespace);
        let at = inner.ages.now();
        let is_missing =
            |read_at: Option<Moment>| read_at.is_none_or(|read| at.since(read) >= self.max_age);
        let mut wanted: Vec<Option<usize>> = vec![];
        let mut keys = vec![];
        for (place, (level, known)) in self.levels.iter().enumerate() {
            if is_missing(known.as_ref().map(|known| known.read_at)) {
                keys.push(super::key(namespace, level).item_key());
                wanted.push(Some(place));
            }
        }
        let entity = EntityKey {
            namespace: namespace.clone(),
            entity: self.bucket.key.entity.clone(),
        };
        if is_missing(self.entity.as_ref().map(|known| known.read_at)) {
            keys.push(entity.item_key());
            wanted.push(None);
        }
        if keys.is_empty() {
            return Ok(());
        }
        let asks_schema = !inner.config_cache.has_schema.load(Ordering::Relaxed);
        keys.extend(asks_schema.then(|| schema_key(namespace)));
        // The acquire that needs the limits would read it next.
        let queue = self.bucket.queue(0);
        let bucket = queue.is_unknown().then(|| queue.key.item_key());
        keys.extend(bucket.clone());
        count(&inner.config_cache.counters.loads, 1);
        let until = deadline(self.timeout);
        let patience = if self.has_all() { None } else { Some(until) };
        let _permit = inner.breaker.admit()?;
        let timeout = self.timeout;
        let read = inner.read_with(&keys, self.consistency(), patience);
        let items = match tokio::time::timeout_at(until, read).await {
            Ok(items) => items?,
            Err(_) => {
                return Err(inner
                    .timeout_error("BatchGetItem of limits", timeout)
                    .into());
            }
        };
        let find = |key| items.iter().find(|item| item.key().as_ref() == Some(key));
        if asks_schema {
            schema::check(inner, items.iter())?;
        }
        if let Some(key) = &bucket {
            // The bucket's queue reports an unreadable item.
            match find(key).map(Item::bucket).transpose() {
                Ok(seen) => queue.record_read(seen, at, inner.now()),
                Err(error) => tracing::debug!(%error, bucket = key.pk, "a bucket is not readable"),
            }
        }
        let (mut levels, mut parent) = (vec![], None);
        for (key, place) in keys.iter().zip(wanted) {
            let item = find(key);
            let unreadable = |error| Error::UnreadableItem {
                pk: key.pk.clone(),
                sk: key.sk.clone(),
                error,
            };
            match place {
                Some(place) => {
                    let stored = item
                        .map(|item| read_config(item.attributes()))
                        .transpose()
                        .map_err(unreadable)?;
                    levels.push((
                        place,
                        Cached {
                            read_at: at,
                            value: Arc::new(stored.unwrap_or_default()),
                        },
                    ));
                }
                None => {
                    let read = |item: &Item| read_entity(entity.entity.clone(), item.attributes());
                    let found = item.map(read).transpose().map_err(unreadable)?;
                    parent = Some(Cached {
                        read_at: at,
                        value: found.map(|(entity, _)| Arc::new(entity)),
                    });
                }
            }
        }
        let by_level = levels
            .iter()
            .map(|(place, read)| (self.levels[*place].0.clone(), read.clone()));
        inner.config_cache.insert(
            self.generation,
            by_level,
            parent.clone().map(|read| (entity.entity.clone(), read)),
        );
        for (place, read) in levels {
            self.levels[place].1 = Some(read);
        }
        self.entity = parent.or(self.entity.take());
        Ok(())
    }

    /// Combines the levels. `failed` is the time of a failed read.
    fn resolved(self, failed: Option<Moment>) -> ResolvedConfig {
        let oldest = self
            .levels
            .iter()
            .filter_map(|(_, known)| Some(known.as_ref()?.read_at));
        let oldest = oldest
            .chain(self.entity.as_ref().map(|known| known.read_at))
            .min()
            .unwrap_or_else(|| self.inner.ages.now());
        let stored = || {
            self.levels
                .iter()
                .filter_map(|(level, known)| Some((level, known.as_ref()?)))
        };
        let version = stored()
            .map(|(_, known)| known.value.version)
            .fold(0, i64::saturating_add);
        let config = stored().find_map(|(level, known)| {
            let config = known.value.value.as_ref()?;
            Some(EffectiveConfig::new(level.clone(), config, Some(version)))
        });
        let entity = self
            .entity
            .as_ref()
            .and_then(|known| known.value.as_ref())
            .filter(|entity| entity.cascades);
        let ttl = self.inner.settings.config_ttl;
        ResolvedConfig {
            config: config.map(Arc::new),
            parent: entity.and_then(|entity| entity.parent.clone()),
            read_at: failed.unwrap_or(oldest),
            valid_until: failed.map_or_else(|| oldest + ttl, |failed| failed + MIN_REREAD_INTERVAL),
            generation: self.generation,
        }
    }
}

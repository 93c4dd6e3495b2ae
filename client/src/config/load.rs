//! One load of configurations and entities that are not cached, or too old.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{
    Config, ConfigLevel, Entity, EntityId, EntityKey, LimitsVersion, PlanKey, PlanName, Versioned,
    read_entity, read_plan_count, schema_key, switches_key,
};
use weirgate_store::{Consistency, Item};

use super::freshness::{Freshness, MIN_REREAD_INTERVAL, ResolvedConfig};
use super::schema;
use super::stored::{key, read_items, stored, unreadable};
use super::switches::{record_switches, stored_switches};
use crate::queue::ShardState;
use crate::session::{Cached, HANGS_AFTER, Moment, Session, deadline, quarter_left};
use crate::values::{EffectiveConfig, Error, FileLevels, count};

type KnownLevel = Option<Cached<Arc<Versioned<Config>>>>;

/// One load of missing or old entries.
pub(super) struct ConfigLoad {
    age: Freshness,
    session: Arc<Session>,
    /// Queue of the bucket's first shard.
    first: Arc<ShardState>,
    /// Levels in order of precedence; those of the plan, once it is known.
    levels: Vec<(ConfigLevel, KnownLevel)>,
    entity: Option<Cached<Arc<Versioned<Entity>>>>,
    /// Whether this load has read all but the levels of the plan that the entity has now.
    has_read: bool,
    max_age: Duration,
    /// When the request that begins it must be answered.
    until: Instant,
    generation: u64,
    /// The levels of a limits file, beside those of the table.
    file: Option<Arc<FileLevels>>,
}

impl ConfigLoad {
    /// Returns a load that has found in the cache what is known.
    pub(super) fn new(
        session: &Arc<Session>,
        first: &Arc<ShardState>,
        age: Freshness,
        file: Option<Arc<FileLevels>>,
        until: Instant,
    ) -> Self {
        // Before anything is taken from the cache, so a later change by this process makes it invalid.
        let generation = session.config_cache.generation();
        let mut load = Self {
            age,
            session: Arc::clone(session),
            first: Arc::clone(first),
            levels: vec![],
            entity: session.config_cache.entity(&first.key.entity),
            has_read: false,
            max_age: age.max_age(session),
            until,
            generation,
            file,
        };
        load.find_levels();
        load
    }

    pub(super) async fn run(mut self) -> Result<ResolvedConfig, Error> {
        loop {
            self.read().await?;
            // An entity that was not known may have a plan, whose levels the process may not know.
            let plan = self.plan();
            let mut levels = self.levels.iter();
            if levels.find_map(|(level, _)| level.plan()) == plan.as_ref() {
                let is_plan_there = self.is_plan_there().await;
                return Ok(self.resolved(is_plan_there.as_ref()));
            }
            self.find_levels();
        }
    }

    /// Returns the limits that are known, if they can stand in for those of a read with this error.
    ///
    /// Old limits are better than no decision. So are those of the file in an outage, in which no bucket
    /// is reached either. But a read that was throttled comes again, and a level that it did not bring
    /// may be narrower than those of the file.
    pub(super) fn instead_of(self, error: &Error) -> Option<ResolvedConfig> {
        let is_throttled = match error {
            Error::Store(error) => error.kind.is_throttle(),
            Error::Timeout { last, .. } => {
                last.as_ref().is_some_and(|error| error.kind.is_throttle())
            }
            _ => false,
        };
        let has_file = error.is_transient() && !is_throttled && self.has_file_config();
        (self.has_all() || has_file).then(|| self.cached())
    }

    /// Returns the limits that are known, because they could not be read, or not in time. They are next read
    /// in a second.
    pub(super) fn cached(self) -> ResolvedConfig {
        count(&self.session.config_cache.counters.stale, 1);
        let tried_at = self.session.env.ages.now();
        let known = self.doubtful_plan();
        let known = known.and_then(|plan| self.session.config_cache.plan(&plan));
        let most = self.session.settings.config_ttl * 2;
        let resolved = self.resolved(known.as_ref());
        let (next, expires) = (tried_at + MIN_REREAD_INTERVAL, resolved.read_at + most);
        let valid_until = match tried_at < expires {
            true => next.min(expires),
            false => next,
        };
        ResolvedConfig { tried_at, valid_until, ..resolved }
    }

    /// Returns whether a request can do without a read, because everything is cached, and younger than
    /// twice the limiter's setting. Older limits are awaited as long as unknown ones, or a process that
    /// was frozen, or whose reads always hang, would use them indefinitely.
    pub(super) fn is_usable(&self) -> bool {
        let now = self.session.env.ages.now();
        let most = self.session.settings.config_ttl * 2;
        let levels = self.levels.iter().filter_map(|(_, known)| known.as_ref());
        let read_at = levels.map(|known| known.read_at);
        let mut read_at = read_at.chain(self.entity.as_ref().map(|known| known.read_at));
        self.has_all() && read_at.all(|at| now.since(at) < most)
    }

    /// Finds the levels in the cache. Those that this load has read stay.
    fn find_levels(&mut self) {
        let (entity, resource) = (&self.first.key.entity, &self.first.key.resource);
        let levels = ConfigLevel::of_entity(entity, self.plan().as_ref(), resource).into_iter();
        let mut read = std::mem::take(&mut self.levels);
        let known = |level: ConfigLevel| {
            let of = read.iter().position(|(known, _)| *known == level);
            let known = of.and_then(|of| read.swap_remove(of).1);
            let known = known.or_else(|| self.session.config_cache.level(&level));
            (level, known)
        };
        self.levels = levels.map(known).collect();
    }

    /// Returns the plan of the entity: the file's, or else the table's.
    fn plan(&self) -> Option<PlanName> {
        if let Some(plan) = self.file_plan() {
            return Some(plan.clone());
        }
        self.entity.as_ref()?.value.value.as_ref()?.plan.clone()
    }

    /// Returns the plan of the entity, if the levels of it that were read have no configuration. It may
    /// have limits on other resources.
    fn doubtful_plan(&self) -> Option<PlanName> {
        let has_config = |(level, known): &(ConfigLevel, KnownLevel)| {
            let stored = known.as_ref().and_then(|known| known.value.value.as_ref());
            level.plan().is_some() && (stored.is_some() || self.file_config(level).is_some())
        };
        let plan = self.plan().filter(|plan| !self.has_file_plan(plan))?;
        (!self.levels.iter().any(has_config)).then_some(plan)
    }

    /// Returns whether the plan of the entity exists, if its levels leave that open. A read that fails
    /// changes nothing that is known, and fails no acquire; a plan that is not known counts as there.
    async fn is_plan_there(&self) -> Option<Cached<bool>> {
        let (session, plan) = (&self.session, self.doubtful_plan()?);
        let at = session.env.ages.now();
        let known = session.config_cache.plan(&plan);
        let is_due = |known: &Cached<bool>| at.since(known.read_at) >= self.max_age;
        if known.as_ref().is_some_and(|known| !is_due(known)) {
            return known;
        }
        let namespace = session.namespace.clone();
        let key = PlanKey { namespace, plan };
        let keys = [key.item_key()];
        // The decision needs most of the time, and can be made without it. A load that lasts longer than
        // its request keeps nothing waiting.
        let left = quarter_left(self.until);
        let until = deadline(if left.is_zero() { HANGS_AFTER } else { left });
        let read = read_items(session, &keys, self.consistency(), until, None, "a plan").await;
        let count = read.and_then(|items| {
            let count = items.first().map(|item| read_plan_count(item.attributes()));
            count.transpose().map_err(|error| unreadable(&keys[0], error))
        });
        let value = match count {
            Ok(count) => count.is_some_and(|count| count.levels > 0),
            Err(error) => {
                tracing::debug!(%error, plan = %key.plan, "not known whether the plan exists");
                known.is_none_or(|known| known.value)
            }
        };
        // Also after a failure, so that not each entity of the plan waits for a read of its own.
        let read = Cached { read_at: at, value };
        let cache = &session.config_cache;
        cache.insert_plan(self.generation, key.plan, read.clone());
        Some(read)
    }

    fn has_file_plan(&self, plan: &PlanName) -> bool {
        self.file.as_ref().is_some_and(|file| file.has_plan(plan))
    }

    fn file_plan(&self) -> Option<&PlanName> {
        self.file.as_ref()?.plan(&self.first.key.entity)
    }

    /// Returns whether everything is cached, at any age.
    pub(super) fn has_all(&self) -> bool {
        self.entity.is_some() && self.levels.iter().all(|(_, known)| known.is_some())
    }

    /// Returns whether a file has a configuration.
    fn has_file_config(&self) -> bool {
        let mut levels = self.levels.iter();
        levels.any(|(level, _)| self.file_config(level).is_some())
    }

    /// Returns the configuration that a file has of a level.
    fn file_config(&self, level: &ConfigLevel) -> Option<Arc<EffectiveConfig>> {
        self.file.as_ref()?.config(level).cloned()
    }

    /// Returns the parent that an entity cascades to: the file's, or else the table's.
    fn parent(&self) -> Option<EntityId> {
        let file = self.file.as_ref();
        if let Some(parent) = file.and_then(|file| file.cascades_to(&self.first.key.entity)) {
            return parent.cloned();
        }
        let entity = self.entity.as_ref()?.value.value.as_ref()?;
        entity.parent.clone().filter(|_| entity.cascades)
    }

    /// Returns strong consistency only if a change is probable, or this process has made one.
    fn consistency(&self) -> Consistency {
        match self.age {
            Freshness::AnyAge => self.session.config_cache.consistency(),
            Freshness::Recent | Freshness::Now => Consistency::Strong,
        }
    }

    /// Reads missing or old entries in one request, together with the bucket's first shard if there
    /// is no view of it.
    async fn read(&mut self) -> Result<(), Error> {
        let (session, queue) = (&Arc::clone(&self.session), &Arc::clone(&self.first));
        let namespace = &session.namespace;
        let sent = session.env.ages.sent();
        let at = sent.at;
        let is_missing =
            |read_at: Option<Moment>| read_at.is_none_or(|read| at.since(read) >= self.max_age);
        let mut wanted: Vec<Option<usize>> = vec![];
        let mut keys = vec![];
        for (place, (level, known)) in self.levels.iter().enumerate() {
            let is_left = !self.has_read || level.plan().is_some();
            if is_left && is_missing(known.as_ref().map(|known| known.read_at)) {
                keys.push(key(namespace, level).item_key());
                wanted.push(Some(place));
            }
        }
        let entity = EntityKey { namespace: namespace.clone(), entity: queue.key.entity.clone() };
        if !self.has_read && is_missing(self.entity.as_ref().map(|known| known.read_at)) {
            keys.push(entity.item_key());
            wanted.push(None);
        }
        if keys.is_empty() {
            return Ok(());
        }
        let cache = &session.config_cache.switches;
        let is_strong = self.consistency() == Consistency::Strong;
        let switches = cache.fresh(session).is_none();
        let switches = switches.then(|| (switches_key(namespace), cache.begin(at, is_strong)));
        keys.extend(switches.iter().map(|(key, _)| key.clone()));
        let asks_schema = !session.config_cache.has_schema.load(Ordering::Relaxed);
        keys.extend(asks_schema.then(|| schema_key(namespace)));
        // The acquire that needs the limits would read it next.
        let bucket = queue.is_unknown().then(|| queue.key.item_key());
        keys.extend(bucket.clone());
        let of_switches = switches.as_ref().map(|(_, request)| request.consistency());
        let consistency = of_switches.unwrap_or_else(|| self.consistency());
        // It goes on where the request has less time, as long as it does not hang.
        let until = self.until.max(deadline(HANGS_AFTER));
        let repeat_until = (!self.has_all()).then_some(self.until);
        let read = read_items(session, &keys, consistency, until, repeat_until, "limits");
        let items = read.await?;
        let find = |key| items.iter().find(|item| item.key().as_ref() == Some(key));
        if asks_schema {
            schema::check(session, items.iter())?;
        }
        if let Some(key) = &bucket {
            queue.record_item(find(key), sent, session);
        }
        if let Some((key, request)) = &switches {
            record_switches(session, *request, stored_switches(key, find(key)));
        }
        self.has_read = true;
        let (mut levels, mut parent) = (vec![], None);
        for (key, place) in keys.iter().zip(wanted) {
            match place {
                Some(place) => {
                    let value = Arc::new(stored(key, &items)?);
                    levels.push((place, Cached { read_at: at, value }));
                }
                None => {
                    let read = |item: &Item| read_entity(entity.entity.clone(), item.attributes());
                    let found = find(key).map(read).transpose();
                    let found = found.map_err(|error| unreadable(key, error))?;
                    parent = Some(Cached {
                        read_at: at,
                        value: found.map(|(read, _)| Arc::new(read)).unwrap_or_default(),
                    });
                }
            }
        }
        let by_level =
            levels.iter().map(|(place, read)| (self.levels[*place].0.clone(), read.clone()));
        session.config_cache.insert(
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

    /// Combines the levels. `is_plan_there` is whether the plan exists.
    fn resolved(self, is_plan_there: Option<&Cached<bool>>) -> ResolvedConfig {
        let oldest = self.levels.iter().filter_map(|(_, known)| Some(known.as_ref()?.read_at));
        let oldest = oldest
            .chain(self.entity.as_ref().map(|known| known.read_at))
            .chain(is_plan_there.map(|known| known.read_at))
            .min()
            .unwrap_or_else(|| self.session.env.ages.now());
        let known = self.levels.iter().filter_map(|(_, known)| known.as_ref());
        let of_entity = self.entity.as_ref().map(|known| known.value.version);
        let version =
            known.map(|known| known.value.version).chain(of_entity).fold(0, i64::saturating_add);
        // By a plan of the file, the versions of the table say nothing about what is newer.
        let of_table = self.file_plan().is_none().then(|| LimitsVersion::new(version));
        // The first level that has a configuration wins, in the file or in the table.
        let levels = || {
            self.levels.iter().filter_map(|(level, known)| {
                self.file_config(level).or_else(|| {
                    let config = known.as_ref()?.value.value.as_ref()?;
                    let config = EffectiveConfig::new(level.clone(), config, of_table);
                    Some(Arc::new(config))
                })
            })
        };
        let config = levels().next();
        let now = self.session.now();
        let config = config.map(|config| config.among(levels).at(now));
        ResolvedConfig {
            config,
            parent: self.parent(),
            missing_plan: self.plan().filter(|_| is_plan_there.is_some_and(|there| !there.value)),
            read_at: oldest,
            tried_at: oldest,
            valid_until: oldest + self.session.settings.config_ttl,
            generation: self.generation,
            version,
            file: self.file,
        }
    }
}

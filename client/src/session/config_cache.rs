//! Cache of configurations and entities.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quick_cache::sync::Cache;
use weirgate_shared::{
    AuditId, Config, ConfigLevel, Entity, EntityId, EpochMillis, Switches, Versioned,
};

use super::ages::{Cached, Moment};
use super::switch_cache::SwitchCache;
use crate::values::{Locked, counters};

/// Most cached configurations and entities, 20,000, including missing ones.
const MAX_ENTRIES: usize = 20_000;

/// Cached configurations and entities.
#[derive(Debug)]
pub(crate) struct ConfigCache {
    levels: Cache<ConfigLevel, Cached<Arc<Versioned<Config>>>>,
    entities: Cache<EntityId, Cached<Option<Arc<Entity>>>>,
    pub(crate) switches: SwitchCache,
    /// Number of changes by this process; a change invalidates resolved limits.
    generation: AtomicU64,
    /// Lock that orders inserts and invalidations.
    update_lock: Locked<()>,
    /// Whether the namespace was seen to have this code's schema version.
    pub(crate) has_schema: AtomicBool,
    last_event: Locked<Option<AuditId>>,
    pub(crate) counters: Counters,
}

counters! {
    /// Counters of a limiter's configuration cache since it was built. All but the entries are
    /// metrics too.
    CacheStats {
        hits: "weirgate_config_hits_total", "Lookups of limits, for an acquire or an ancestor, that the cache answered.";
        misses: "weirgate_config_misses_total", "Lookups of limits that the cache could not answer, or no longer.";
        negative_hits: "weirgate_config_negative_hits_total", "Hits that found that nothing is configured.";
        loads: "weirgate_config_loads_total", "Reads of configurations.";
        stale: "weirgate_config_stale_total", "Failed reads of configurations, after which the cached ones were used.";
    }
    /// Cached configurations and entities, including missing ones.
    entries: u64;
}

impl Default for ConfigCache {
    fn default() -> Self {
        Self {
            levels: Cache::new(MAX_ENTRIES),
            entities: Cache::new(MAX_ENTRIES),
            switches: SwitchCache::default(),
            generation: AtomicU64::default(),
            update_lock: Locked::default(),
            has_schema: AtomicBool::default(),
            last_event: Locked::default(),
            counters: Counters::default(),
        }
    }
}

impl ConfigCache {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn level(&self, level: &ConfigLevel) -> Option<Cached<Arc<Versioned<Config>>>> {
        self.levels.get(level)
    }

    pub(crate) fn entity(&self, entity: &EntityId) -> Option<Cached<Option<Arc<Entity>>>> {
        self.entities.get(entity)
    }

    /// Inserts what was read, unless this process has changed something since `generation`.
    pub(crate) fn insert(
        &self,
        generation: u64,
        levels: impl IntoIterator<Item = (ConfigLevel, Cached<Arc<Versioned<Config>>>)>,
        entity: Option<(EntityId, Cached<Option<Arc<Entity>>>)>,
    ) {
        let _turn = self.update_lock.lock();
        if self.generation() != generation {
            return;
        }
        for (level, read) in levels {
            self.levels.insert(level, read);
        }
        if let Some((entity, read)) = entity {
            self.entities.insert(entity, read);
        }
    }

    /// Caches switches that were read at `read_at`, unless this process has changed something since
    /// `generation`. Returns them.
    pub(crate) fn insert_switches(
        &self,
        generation: u64,
        read_at: Moment,
        read: Switches,
    ) -> Arc<Switches> {
        let _turn = self.update_lock.lock();
        let is_current = self.generation() == generation;
        self.switches.insert(is_current, read_at, read)
    }

    /// Removes an entry that this process has changed, or may have.
    pub(crate) fn invalidate(&self, what: &CacheKey) {
        let _turn = self.update_lock.lock();
        self.generation.fetch_add(1, Ordering::AcqRel);
        match what {
            CacheKey::Level(level) => drop(self.levels.remove(level)),
            CacheKey::Entity(entity) => drop(self.entities.remove(entity)),
            CacheKey::Switches => self.switches.mark_changed(),
            CacheKey::Nothing => {}
        }
    }

    /// Returns an id for the audit event of a change made now. Ids of one process sort by time.
    pub(crate) fn next_event(&self, now: EpochMillis) -> AuditId {
        let random = u128::from(weirgate_store::random_bits()) << 16;
        let mut last = self.last_event.lock();
        let id = match *last {
            Some(last) if last.at() >= now => last.next(),
            _ => AuditId::new(now, random),
        };
        *last.insert(id)
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let entries = u64::try_from(self.levels.len() + self.entities.len()).unwrap_or(u64::MAX);
        CacheStats {
            entries,
            ..self.counters.read()
        }
    }
}

/// Key of an entry that this process changes.
#[derive(Debug, Clone)]
pub(crate) enum CacheKey {
    Level(ConfigLevel),
    Entity(EntityId),
    Switches,
    /// The change concerns nothing that is cached.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::AgeClock;

    /// A value read before a change must not be cached after it.
    #[test]
    fn a_value_read_before_a_change_is_not_cached_after_it() {
        let (known, read) = (
            ConfigCache::default(),
            Cached {
                read_at: AgeClock::default().now(),
                value: Arc::default(),
            },
        );
        let remember =
            |generation| known.insert(generation, [(ConfigLevel::System, read.clone())], None);
        let before = known.generation();
        remember(before);
        assert!(known.level(&ConfigLevel::System).is_some());
        known.invalidate(&CacheKey::Level(ConfigLevel::System));
        remember(before);
        assert!(known.level(&ConfigLevel::System).is_none());
        remember(known.generation());
        assert!(known.level(&ConfigLevel::System).is_some());
    }

    #[test]
    fn events_of_one_instant_sort_as_they_were_made() {
        let known = ConfigCache::default();
        let ids: Vec<_> = [5, 5, 4, 5, 6, 1]
            .map(|ms| known.next_event(EpochMillis(ms)))
            .into();
        assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
        assert_eq!(ids[4].at(), EpochMillis(6));
    }
}

//! What was read of configurations and entities, for as long as it is good.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::sync::Cache;
use weirgate_shared::{AuditId, Config, ConfigLevel, Entity, EntityId, EpochMillis, Versioned};

use crate::ages::Moment;
use crate::stats::counters;

/// The most configurations and entities that are remembered, missing ones among them.
const MAX_ENTRIES: usize = 20_000;

/// Something as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Cached<T> {
    /// When, before it was asked for.
    pub(crate) read_at: Moment,
    pub(crate) value: T,
}

/// What was read of the table, by what it is about.
#[derive(Debug)]
pub(crate) struct ConfigCache {
    levels: Cache<ConfigLevel, Cached<Arc<Versioned<Config>>>>,
    entities: Cache<EntityId, Cached<Option<Arc<Entity>>>>,
    /// Counts what this process has changed: what was read before is then looked at again.
    generation: AtomicU64,
    /// What is read is remembered, or forgotten, in turn.
    update_lock: Mutex<()>,
    /// The namespace says that it is written in the version this code knows.
    pub(crate) has_schema: AtomicBool,
    last_event: Mutex<Option<AuditId>>,
    pub(crate) counters: Counters,
}

counters! {
    /// What a limiter's memory of configurations has done since it was built. All but the entries
    /// are metrics too.
    CacheStats {
        hits: "weirgate_config_hits_total", "Acquires, and their ancestors', whose limits were known.";
        misses: "weirgate_config_misses_total", "Acquires, and their ancestors', whose limits were not known, or no more.";
        negative_hits: "weirgate_config_negative_hits_total", "Hits where it was known that nothing is configured.";
        loads: "weirgate_config_loads_total", "Reads of what is configured.";
        stale: "weirgate_config_stale_total", "Reads that failed, where what was known before was used instead.";
    }
    /// Configurations and entities that are remembered, missing ones among them.
    entries
}

impl Default for ConfigCache {
    fn default() -> Self {
        Self {
            levels: Cache::new(MAX_ENTRIES),
            entities: Cache::new(MAX_ENTRIES),
            generation: AtomicU64::default(),
            update_lock: Mutex::default(),
            has_schema: AtomicBool::default(),
            last_event: Mutex::default(),
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

    /// Remembers what was read, unless this process has changed something since `generation`.
    pub(crate) fn insert(
        &self,
        generation: u64,
        levels: impl IntoIterator<Item = (ConfigLevel, Cached<Arc<Versioned<Config>>>)>,
        entity: Option<(EntityId, Cached<Option<Arc<Entity>>>)>,
    ) {
        let _turn = self
            .update_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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

    /// Forgets what this process has changed, or may have.
    pub(crate) fn invalidate(&self, what: &CacheKey) {
        let _turn = self
            .update_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::AcqRel);
        match what {
            CacheKey::Level(level) => drop(self.levels.remove(level)),
            CacheKey::Entity(entity) => drop(self.entities.remove(entity)),
        }
    }

    /// An id for the event of a change made now. Those of one process sort as they were made.
    pub(crate) fn next_event(&self, now: EpochMillis) -> AuditId {
        let random = u128::from(weirgate_store::random_bits()) << 16;
        let mut last = self
            .last_event
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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

/// What this process changes.
#[derive(Debug, Clone)]
pub(crate) enum CacheKey {
    Level(ConfigLevel),
    Entity(EntityId),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ages::AgeClock;

    /// What was read before a change must not be remembered after it.
    #[test]
    fn what_was_read_before_a_change_is_not_remembered_after_it() {
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

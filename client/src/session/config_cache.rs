//! Cache of configurations and entities.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quick_cache::sync::Cache;
use weirgate_shared::{
    AuditId, Config, ConfigLevel, Entity, EntityId, EpochMillis, PlanName, Switch, Switches,
    Versioned,
};
use weirgate_store::Consistency;

use super::env::{Cached, Moment};
use super::switch_cache::{SwitchCache, SwitchRequest};
use crate::values::{Locked, counters};

/// Most cached configurations and entities, 20,000, including missing ones.
const MAX_ENTRIES: usize = 20_000;
/// Groups of keys by their hash, 1,024: a change keeps answers of its group from being cached.
const GROUPS: usize = 1_024;

/// Cached configurations and entities.
#[derive(Debug)]
pub(crate) struct ConfigCache {
    levels: Cache<ConfigLevel, Cached<Arc<Versioned<Config>>>>,
    entities: Cache<EntityId, Cached<Arc<Versioned<Entity>>>>,
    /// Whether plans exist, of those that have no limits on some resource.
    plans: Cache<PlanName, Cached<bool>>,
    pub(crate) switches: SwitchCache,
    /// Number of changes by this process; a change invalidates resolved limits.
    generation: AtomicU64,
    /// Generation of the last change in each group. The lock orders inserts and invalidations.
    changed_at: Locked<Vec<u64>>,
    /// Whether the namespace was seen to have this code's schema version.
    pub(crate) has_schema: AtomicBool,
    pub(crate) functions: KnownFunctions,
    last_event: Locked<Option<AuditId>>,
    pub(crate) counters: Counters,
}

/// What is known of the functions of the table.
#[derive(Debug, Default)]
pub(crate) struct KnownFunctions {
    /// Whether they were seen to know quotas.
    pub(crate) know_quotas: AtomicBool,
    /// When they were last seen not to. The lock is held during a read.
    pub(crate) missing_at: tokio::sync::Mutex<Option<Moment>>,
}

counters! {
    /// Counters of a limiter's configuration cache since it was built. All but the entries are
    /// metrics too.
    CacheStats {
        hits: "weirgate_config_hits_total", "Lookups of limits, for an acquire or an ancestor, that the cache answered.";
        misses: "weirgate_config_misses_total", "Lookups of limits that the cache could not answer, or no longer.";
        negative_hits: "weirgate_config_negative_hits_total", "Hits that found that nothing is configured.";
        loads: "weirgate_config_loads_total", "Reads of configurations.";
        stale: "weirgate_config_stale_total", "Lookups of limits that used old ones, because a read failed or took too long.";
    }
    /// Cached configurations and entities, including missing ones.
    entries: u64;
}

impl Default for ConfigCache {
    fn default() -> Self {
        Self {
            levels: Cache::new(MAX_ENTRIES),
            entities: Cache::new(MAX_ENTRIES),
            plans: Cache::new(MAX_ENTRIES),
            switches: SwitchCache::default(),
            generation: AtomicU64::default(),
            changed_at: Locked::new(vec![0; GROUPS]),
            has_schema: AtomicBool::default(),
            functions: KnownFunctions::default(),
            last_event: Locked::default(),
            counters: Counters::default(),
        }
    }
}

impl ConfigCache {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the consistency of a read: a process reads its own changes.
    pub(crate) fn consistency(&self) -> Consistency {
        match self.generation() {
            0 => Consistency::Eventual,
            _ => Consistency::Strong,
        }
    }

    pub(crate) fn level(&self, level: &ConfigLevel) -> Option<Cached<Arc<Versioned<Config>>>> {
        self.levels.get(level)
    }

    pub(crate) fn entity(&self, entity: &EntityId) -> Option<Cached<Arc<Versioned<Entity>>>> {
        self.entities.get(entity)
    }

    /// Returns whether a plan exists.
    pub(crate) fn plan(&self, plan: &PlanName) -> Option<Cached<bool>> {
        self.plans.get(plan)
    }

    /// Inserts whether a plan exists, unless this process has changed the plan since `generation`, or a
    /// later read was faster.
    pub(crate) fn insert_plan(&self, generation: u64, plan: PlanName, read: Cached<bool>) {
        let changed_at = self.changed_at.lock();
        let known = self.plans.peek(&plan).map(|known| known.read_at);
        if changed_at[group(&plan)] <= generation && known <= Some(read.read_at) {
            self.plans.insert(plan, read);
        }
    }

    /// Inserts what was read, unless this process has changed it since `generation`, or a later read
    /// was faster.
    pub(crate) fn insert(
        &self,
        generation: u64,
        levels: impl IntoIterator<Item = (ConfigLevel, Cached<Arc<Versioned<Config>>>)>,
        entities: impl IntoIterator<Item = (EntityId, Cached<Arc<Versioned<Entity>>>)>,
    ) {
        let changed_at = self.changed_at.lock();
        for (level, read) in levels {
            let known = self.levels.peek(&level).map(|known| known.read_at);
            if changed_at[group(&level)] <= generation && known <= Some(read.read_at) {
                self.levels.insert(level, read);
            }
        }
        for (entity, read) in entities {
            let known = self.entities.peek(&entity).map(|known| known.read_at);
            if changed_at[group(&entity)] <= generation && known <= Some(read.read_at) {
                self.entities.insert(entity, read);
            }
        }
    }

    /// Removes an entry that this process has changed, or may have.
    pub(crate) fn invalidate(&self, what: &CacheKey) {
        let mut changed_at = self.changed_at.lock();
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        match what {
            CacheKey::Level(level) => {
                changed_at[group(level)] = generation;
                self.levels.remove(level);
                if let Some(plan) = level.plan() {
                    changed_at[group(plan)] = generation;
                    self.plans.remove(plan);
                }
            }
            CacheKey::Entity(entity) => {
                changed_at[group(entity)] = generation;
                self.entities.remove(entity);
            }
            CacheKey::Switches => self.switches.mark_changed(),
            CacheKey::AllLimits => {
                changed_at.fill(generation);
                self.levels.clear();
                self.entities.clear();
                self.plans.clear();
            }
            CacheKey::Nothing => {}
        }
    }

    /// Caches switches, and forgets all limits where they start the system: a namespace is stopped to
    /// purge it, and limits of before and after a purge must not be combined.
    pub(crate) fn record_switches(
        &self,
        request: SwitchRequest,
        answer: Switches,
    ) -> Arc<Switches> {
        let stops = |all: &Switches| all.levels.get(&ConfigLevel::System) == Some(&Switch::Stopped);
        if self.switches.latest().is_some_and(|all| stops(&all)) && !stops(&answer) {
            self.invalidate(&CacheKey::AllLimits);
        }
        self.switches.record(request, answer)
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
        CacheStats { entries, ..self.counters.read() }
    }
}

fn group(key: &impl Hash) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let [low, high, ..] = hasher.finish().to_le_bytes();
    usize::from(u16::from_le_bytes([low, high])) % GROUPS
}

/// Key of an entry that this process changes.
#[derive(Debug, Clone)]
pub(crate) enum CacheKey {
    Level(ConfigLevel),
    Entity(EntityId),
    Switches,
    /// All configurations and entities.
    AllLimits,
    /// The change concerns nothing that is cached.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::AgeClock;

    #[test]
    fn a_value_read_before_a_change_is_not_cached_after_it_and_others_are() {
        let (known, read) = (
            ConfigCache::default(),
            Cached { read_at: AgeClock::default().now(), value: Arc::default() },
        );
        let other = ConfigLevel::Entity(EntityId::new("e-1").unwrap());
        let levels = [ConfigLevel::System, other];
        let cached = |generation| {
            let read = levels.clone().map(|level| (level, read.clone()));
            known.insert(generation, read, None);
            levels.clone().map(|level| known.level(&level).is_some())
        };
        let before = known.generation();
        assert_eq!(cached(before), [true, true]);
        known.invalidate(&CacheKey::Level(ConfigLevel::System));
        assert_eq!(cached(before), [false, true]);
        assert_eq!(cached(known.generation()), [true, true]);
        known.invalidate(&CacheKey::AllLimits);
        assert_eq!(cached(before), [false, false]);
    }

    #[test]
    fn events_of_one_instant_sort_as_they_were_made() {
        let known = ConfigCache::default();
        let ids: Vec<_> = [5, 5, 4, 5, 6, 1].map(|ms| known.next_event(EpochMillis(ms))).into();
        assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
        assert_eq!(ids[4].at(), EpochMillis(6));
    }
}

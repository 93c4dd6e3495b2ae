//! State that every layer uses: the table, the settings, the clocks, and the counters.

mod circuit_breaker;
mod clock;
mod config_cache;
mod env;
mod load_turn;
mod requests;
mod switch_cache;
mod tasks;

pub use circuit_breaker::CircuitBreakerConfig;
pub(crate) use circuit_breaker::{CircuitBreaker, Permit};
pub use clock::FakeClock;
pub use config_cache::CacheStats;
pub(crate) use config_cache::{CacheKey, ConfigCache};
pub(crate) use env::{
    AgeClock, Cached, ClockJumps, Env, MAX_JUMPED_READS, Moment, Sent, after, deadline,
    quarter_left,
};
pub(crate) use load_turn::LoadTurn;
pub(crate) use requests::{HANGS_AFTER, Refusals, decode_meter, decode_shard, undecodable};
pub(crate) use switch_cache::{KnownSwitches, SwitchRequest};
pub(crate) use tasks::{Background, Home, Work};
pub(crate) use weirgate_store::backoff;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use weirgate_shared::{LimitName, Namespace, Resource};
use weirgate_store::Table;

use crate::values::{FileLevels, OnUnavailable, Prefetch, VendorAdvices, VendorCount};

/// Most loads of limits, switches and ancestors that are tasks, 100: they may hang, and outlast their
/// requests.
const MAX_LOAD_TASKS: usize = 100;

/// The table, and what every request to it needs.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) table: Table,
    pub(crate) namespace: Namespace,
    pub(crate) settings: Settings,
    pub(crate) breaker: CircuitBreaker,
    pub(crate) config_cache: ConfigCache,
    pub(crate) vendor_advices: VendorAdvices,
    pub(crate) background: Background,
    /// Held by the read that shows whether reads are answered.
    checking_reads: Arc<tokio::sync::Mutex<()>>,
    /// Held by each load that is a task.
    load_tasks: Arc<Semaphore>,
    home: Home,
    /// Ends, for its receivers, with the session.
    pub(crate) alive: watch::Sender<()>,
    pub(crate) env: Env,
}

/// Settings of a limiter.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) denial_cache_ttl: Duration,
    pub(crate) owner: Arc<str>,
    pub(crate) principal: Arc<str>,
    pub(crate) config_ttl: Duration,
    pub(crate) audit_retention: Option<Duration>,
    pub(crate) usage_retention: Duration,
    pub(crate) is_shadow: bool,
    pub(crate) has_resource_metrics: bool,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) prefetch: HashMap<Resource, Prefetch>,
    /// Limits whose balances follow a vendor's, by what the vendor counts.
    pub(crate) vendor_limits: BTreeMap<VendorCount, LimitName>,
    #[cfg(feature = "yaml")]
    pub(crate) file: Option<crate::file::LimitsFile>,
}

impl Session {
    pub(crate) fn new(
        runtime: Handle,
        table: Table,
        namespace: Namespace,
        settings: Settings,
        breaker: CircuitBreakerConfig,
    ) -> Self {
        let env = Env::new(
            table.name().to_owned(),
            table.skew().clone(),
            settings.timeout,
            settings.denial_cache_ttl,
        );
        let alive = watch::Sender::default();
        Self {
            home: Home::new(runtime, alive.subscribe()),
            table,
            namespace,
            settings,
            breaker: CircuitBreaker::new(breaker, env.ages.clone()),
            config_cache: ConfigCache::default(),
            vendor_advices: VendorAdvices::default(),
            background: Background::default(),
            checking_reads: Arc::default(),
            load_tasks: Arc::new(Semaphore::new(MAX_LOAD_TASKS)),
            env,
            alive,
        }
    }

    /// Returns the decision while DynamoDB is unavailable: the stored one as far as is known, or else the
    /// one that is `set`.
    pub(crate) fn on_unavailable(&self, set: OnUnavailable) -> OnUnavailable {
        let switches = self.config_cache.switches.known(self).latest;
        let stored = switches.and_then(|switches| switches.on_unavailable);
        stored.unwrap_or(set)
    }

    /// Returns the levels of the limits file now, if the limiter has one.
    #[cfg(feature = "yaml")]
    pub(crate) fn file_levels(&self) -> Option<Arc<FileLevels>> {
        let file = self.settings.file.as_ref()?;
        Some(file.levels(self.table.skew().local()))
    }

    #[cfg(not(feature = "yaml"))]
    pub(crate) const fn file_levels(&self) -> Option<Arc<FileLevels>> {
        None
    }
}

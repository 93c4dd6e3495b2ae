//! Resolves the limits in force for an entity on a resource: from the cache, or with one read.

use std::sync::{Arc, MutexGuard};

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

use super::freshness::Freshness;
use super::freshness::ResolvedConfig;
use super::load::{ConfigLoad, LoadWait};
use crate::queue::ShardState;
use crate::session::Session;
use crate::values::{Error, Locked, count};

/// Resolved limits of one bucket, and the lock of their load.
#[derive(Debug, Default)]
pub(crate) struct LimitsSlot {
    state: Locked<State>,
    loading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct State {
    resolved: Option<Arc<ResolvedConfig>>,
    /// Number of finished loads.
    loads: u64,
    /// Error of the last load, if it failed.
    failed: Option<Error>,
}

impl LimitsSlot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits for reads of the bucket's limits and ancestors, and keeps others waiting.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.loading).lock_owned().await
    }
}

/// Returns the limits in force for the entity and resource of a bucket, whose slot and first shard
/// these are. Those that are due are used as they are if they cannot be read while there is patience.
///
/// # Errors
/// The store's, if nothing is cached and the table cannot be read.
pub(crate) async fn resolve(
    session: &Arc<Session>,
    slot: &LimitsSlot,
    first: &ShardState,
    age: Freshness,
    wait: &mut LoadWait,
) -> Result<Arc<ResolvedConfig>, Error> {
    let file = session.file_levels();
    let is_valid = |known: &Arc<ResolvedConfig>, age: Freshness| {
        let is_of_file = known.file.as_ref().map(Arc::as_ptr) == file.as_ref().map(Arc::as_ptr);
        is_of_file && age.accepts(known, session)
    };
    let counters = &session.config_cache.counters;
    let (known, loads) = {
        let state = slot.state();
        (state.resolved.clone(), state.loads)
    };
    let mut age = age;
    if let Some(known) = known.filter(|known| is_valid(known, age)) {
        if !known.is_older_than(first.summary.version(), session.env.ages.now()) {
            count(&counters.hits, 1);
            count(&counters.negative_hits, u64::from(known.config.is_none()));
            return Ok(known);
        }
        age = Freshness::Recent;
    }
    count(&counters.misses, 1);
    let (patience, wait) = (wait.patience(), *wait);
    let load = || ConfigLoad::new(session, first, age, file.clone(), wait);
    let usable = || Some(load()).filter(ConfigLoad::is_usable);
    let asked = Instant::now();
    let turn = match usable() {
        Some(_) => timeout_at(patience, slot.turn()).await.ok(),
        None => None,
    };
    let _turn = match turn {
        Some(turn) => turn,
        None => {
            // Found again, because this process may have changed some since.
            if let Some(known) = usable() {
                return Ok(Arc::new(known.cached()));
            }
            let turn = timeout_at(wait.until, slot.turn()).await;
            turn.map_err(|_| {
                let env = &session.env;
                env.no_answer("BatchGetItem of limits", asked.elapsed())
            })?
        }
    };
    {
        let state = slot.state();
        if let Some(known) = state.resolved.clone().filter(|known| is_valid(known, age)) {
            return Ok(known);
        }
        // A request that waited for this load takes its failure too.
        if let Some(error) = state.failed.clone().filter(|_| state.loads > loads) {
            return Err(error);
        }
    }
    // Boxed, as every rare part of an acquire: its future is smaller.
    let loaded = Box::pin(load().run()).await.map(Arc::new);
    let mut state = slot.state();
    state.loads += 1;
    state.failed = loaded.as_ref().err().cloned();
    if let Ok(resolved) = &loaded {
        state.resolved = Some(Arc::clone(resolved));
    }
    loaded
}

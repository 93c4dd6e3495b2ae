//! Resolves the limits in force for an entity on a resource: from the cache, or with one read.

use std::sync::{Arc, MutexGuard};

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout};

use super::freshness::{Freshness, ResolvedConfig};
use super::load::ConfigLoad;
use crate::queue::ShardState;
use crate::session::{Session, deadline, quarter_left};
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
/// these are, until `until`.
///
/// Limits that are due are awaited for a quarter of the time, until they are twice as old. Then those
/// known stay in force for another second, while the read goes on: it would never end where each
/// request has less time than it takes. Older ones, as after a freeze, are awaited until `until`.
///
/// # Errors
/// The store's, if nothing is cached and the table cannot be read.
pub(crate) async fn resolve(
    session: &Arc<Session>,
    slot: &Arc<LimitsSlot>,
    first: &Arc<ShardState>,
    age: Freshness,
    until: Instant,
) -> Result<Arc<ResolvedConfig>, Error> {
    #[cfg(feature = "yaml")]
    let file =
        (session.settings.file.as_ref()).map(|file| file.levels(session.table.skew().local()));
    let is_valid = |known: &Arc<ResolvedConfig>, age: Freshness| {
        #[cfg(feature = "yaml")]
        if known.file.as_ref().map(Arc::as_ptr) != file.as_ref().map(Arc::as_ptr) {
            return false;
        }
        age.accepts(known, session)
    };
    let counters = &session.config_cache.counters;
    let (known, loads) = {
        let state = slot.state();
        (state.resolved.clone(), state.loads)
    };
    let (mut age, can_wait) = (age, age == Freshness::AnyAge);
    if let Some(known) = known.filter(|known| is_valid(known, age)) {
        if !known.is_older_than(first.summary.version(), session.env.ages.now()) {
            count(&counters.hits, 1);
            count(&counters.negative_hits, u64::from(known.config.is_none()));
            return Ok(known);
        }
        age = Freshness::Recent;
    }
    count(&counters.misses, 1);
    let load = |until| {
        let (session, first) = (Arc::clone(session), Arc::clone(first));
        ConfigLoad::new(
            session,
            first,
            #[cfg(feature = "yaml")]
            file.clone(),
            age,
            until,
        )
    };
    let old = Some(load(until)).filter(|old| can_wait && old.is_usable());
    let patience = deadline(session.settings.timeout);
    let within = match old {
        Some(_) => quarter_left(until.min(patience)),
        None => until.saturating_duration_since(Instant::now()),
    };
    // Boxed, as every rare part of an acquire: its future is smaller.
    let loaded = Box::pin(async {
        let turn = slot.turn().await;
        {
            let state = slot.state();
            if let Some(known) = state.resolved.clone().filter(|known| is_valid(known, age)) {
                return Some(Ok(known));
            }
            // A request that waited for this load takes its failure too.
            if let Some(error) = state.failed.clone().filter(|_| state.loads > loads) {
                return Some(Err(error));
            }
        }
        let until = match old {
            Some(_) => patience,
            None => until,
        };
        let (load, slot) = (load(until), Arc::clone(slot));
        // Only a runtime that shuts down drops the task.
        tokio::spawn(async move {
            let loaded = load.run().await.map(Arc::new);
            let mut state = slot.state();
            state.loads += 1;
            state.failed = loaded.as_ref().err().cloned();
            if let Ok(resolved) = &loaded {
                state.resolved = Some(Arc::clone(resolved));
            }
            drop((state, turn));
            loaded
        })
        .await
        .ok()
    });
    if let Some(loaded) = timeout(within, loaded).await.ok().flatten() {
        return loaded;
    }
    let error = session.env.no_answer("BatchGetItem of limits", within);
    match old {
        Some(old) => {
            let old = Arc::new(old.cached(&error.into()));
            let mut state = slot.state();
            if state.loads == loads {
                state.resolved = Some(Arc::clone(&old));
            }
            Ok(old)
        }
        None => Err(error.into()),
    }
}

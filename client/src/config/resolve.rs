//! Resolves the limits in force for an entity on a resource: from the cache, or with one read.

use std::sync::{Arc, MutexGuard};

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

use super::freshness::Freshness;
use super::freshness::ResolvedConfig;
use super::load::ConfigLoad;
use crate::queue::ShardState;
use crate::session::{Session, deadline, quarter_left};
use crate::values::{Error, FileLevels, Locked, count};

/// Resolved limits of one bucket, and the lock of their load.
#[derive(Debug, Default)]
pub(crate) struct LimitsSlot(Locked<State>);

#[derive(Debug, Default)]
struct State {
    resolved: Option<Arc<ResolvedConfig>>,
    /// Number of finished loads.
    loads: u64,
    /// Error of the last load, if it failed.
    failed: Option<Error>,
    /// Held by the load in flight.
    loading: Arc<tokio::sync::Mutex<()>>,
    /// Generation of the cache that it began with.
    generation: u64,
    /// When the request that began it must be answered.
    awaited_until: Option<Instant>,
}

impl LimitsSlot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Waits for reads of the bucket's limits and ancestors, and keeps others waiting. A read keeps
    /// nothing waiting that began before a change by this process, or for a request that has ended: it
    /// may hang.
    ///
    /// # Errors
    /// The open circuit breaker, if there is a read: it may have begun before, and hang.
    pub(crate) async fn turn(&self, session: &Session) -> Result<OwnedMutexGuard<()>, Error> {
        let generation = session.config_cache.generation();
        let loading = {
            let mut state = self.state();
            let is_over = state.awaited_until.is_some_and(|end| end <= Instant::now());
            if state.generation < generation || is_over {
                (state.generation, state.loading) = (generation, Arc::default());
                state.awaited_until = None;
            }
            Arc::clone(&state.loading)
        };
        if let Ok(turn) = Arc::clone(&loading).try_lock_owned() {
            return Ok(turn);
        }
        drop(session.breaker.admit()?);
        Ok(loading.lock_owned().await)
    }

    /// Records what a load brought, unless another one has begun in its place: the cache has what it
    /// read.
    fn record(&self, turn: &OwnedMutexGuard<()>, loaded: &Result<Arc<ResolvedConfig>, Error>) {
        let mut state = self.state();
        if !Arc::ptr_eq(OwnedMutexGuard::mutex(turn), &state.loading) {
            return;
        }
        state.loads += 1;
        state.failed = loaded.as_ref().err().cloned();
        if let Ok(resolved) = loaded {
            state.resolved = Some(Arc::clone(resolved));
        }
    }
}

/// How long limits are awaited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadWait {
    /// That of the first lookup that is not answered at once; most acquires have none.
    patience: Option<Instant>,
    /// End of the wait for limits that a request needs.
    until: Instant,
}

impl LoadWait {
    /// Returns the waits of a call that is answered by `until`.
    pub(crate) const fn by(until: Instant) -> Self {
        Self {
            patience: None,
            until,
        }
    }

    /// Returns the end of the wait for limits that a request can do without. All its lookups have one
    /// end, because its decision needs most of the time.
    fn patience(&mut self) -> Instant {
        let until = self.until;
        let of_first = || deadline(quarter_left(until));
        *self.patience.get_or_insert_with(of_first)
    }
}

/// Returns the limits in force for the entity and resource of a bucket, whose slot and first shard
/// these are. Those that are due are used as they are if they cannot be read while there is patience,
/// unless the caller needs limits of a certain age.
///
/// # Errors
/// The store's, if nothing is cached and the table cannot be read.
pub(crate) async fn resolve(
    session: &Arc<Session>,
    slot: &Arc<LimitsSlot>,
    first: &Arc<ShardState>,
    age: Freshness,
    wait: &mut LoadWait,
) -> Result<Arc<ResolvedConfig>, Error> {
    let mut lookup = Lookup {
        session,
        slot,
        first,
        age,
        until: wait.until,
        file: session.file_levels(),
        loads: 0,
    };
    let counters = &session.config_cache.counters;
    let known = {
        let state = slot.state();
        lookup.loads = state.loads;
        state.resolved.clone()
    };
    if let Some(known) = known.filter(|known| lookup.accepts(known)) {
        if !known.is_older_than(first.summary.version(), session.env.ages.now()) {
            count(&counters.hits, 1);
            count(&counters.negative_hits, u64::from(known.config.is_none()));
            return Ok(known);
        }
        lookup.age = Freshness::Recent;
    }
    count(&counters.misses, 1);
    // Boxed, as every rare part of an acquire: its future is smaller.
    Box::pin(lookup.answer(age == Freshness::AnyAge, wait)).await
}

/// A lookup of limits.
struct Lookup<'a> {
    session: &'a Arc<Session>,
    slot: &'a Arc<LimitsSlot>,
    first: &'a Arc<ShardState>,
    age: Freshness,
    until: Instant,
    file: Option<Arc<FileLevels>>,
    /// Number of loads that had finished when it began.
    loads: u64,
}

impl Lookup<'_> {
    fn accepts(&self, known: &ResolvedConfig) -> bool {
        let is_of_file =
            known.file.as_ref().map(Arc::as_ptr) == self.file.as_ref().map(Arc::as_ptr);
        is_of_file && self.age.accepts(known, self.session)
    }

    fn load(&self) -> ConfigLoad {
        let file = self.file.clone();
        ConfigLoad::new(self.session, self.first, self.age, file, self.until)
    }

    async fn answer(
        &self,
        may_be_old: bool,
        wait: &mut LoadWait,
    ) -> Result<Arc<ResolvedConfig>, Error> {
        let began = Instant::now();
        let give_up = || {
            let key = self.first.key.item_key();
            let request = "BatchGetItem of limits";
            self.session.given_up(request, began.elapsed(), &key)
        };
        let read_by = async |until| {
            let loaded = timeout_at(until, self.loaded()).await;
            loaded.unwrap_or_else(|_| Err(give_up().into()))
        };
        let is_usable = may_be_old && self.load().is_usable();
        let mut until = match is_usable {
            true => wait.patience(),
            false => self.until,
        };
        loop {
            let error = match read_by(until).await {
                Ok(loaded) => return Ok(loaded),
                Err(error) => error,
            };
            let is_last = until >= self.until;
            // Found again after the wait, because this process may have changed some since.
            let known = Some(self.load()).filter(|_| may_be_old);
            let known = known.and_then(|load| match is_last {
                true => Some((load.has_all(), load.instead_of(&error)?)),
                false => load.is_usable().then(|| (true, load.cached())),
            });
            if let Some((is_complete, known)) = known {
                let bucket = self.first.key.item_key().pk;
                tracing::debug!(%error, bucket, "limits were not read in time");
                let known = Arc::new(known);
                // Limits of a file alone may be overruled by levels that were not read.
                if is_complete {
                    self.slot.state().resolved = Some(Arc::clone(&known));
                }
                return Ok(known);
            }
            if is_last {
                return Err(error);
            }
            until = self.until;
        }
    }

    /// Returns what a load brings: of another request, if one is under way. It goes on where a request
    /// has less time, so the next one has its limits.
    async fn loaded(&self) -> Result<Arc<ResolvedConfig>, Error> {
        let turn = self.slot.turn(self.session).await?;
        {
            let state = self.slot.state();
            if let Some(known) = state.resolved.as_ref().filter(|known| self.accepts(known)) {
                return Ok(Arc::clone(known));
            }
            // A request that waited for this load takes its failure too.
            if let Some(error) = state.failed.clone().filter(|_| state.loads > self.loads) {
                return Err(error);
            }
        }
        let (load, slot) = (self.load(), Arc::clone(self.slot));
        slot.state().awaited_until = Some(self.until);
        // Only a runtime that shuts down drops the task.
        let loaded = tokio::spawn(async move {
            let loaded = load.run().await.map(Arc::new);
            slot.record(&turn, &loaded);
            drop(turn);
            loaded
        });
        loaded.await.unwrap_or_else(|_| {
            let reason = "the runtime of the limiter has ended".to_owned();
            let env = &self.session.env;
            Err(env.unconfirmed("BatchGetItem of limits", reason).into())
        })
    }
}

//! Resolves the limits in force for an entity on a resource: from the cache, or with one read.

use std::sync::{Arc, MutexGuard};

use tokio::time::Instant;

use super::freshness::Freshness;
use super::freshness::ResolvedConfig;
use super::load::ConfigLoad;
use crate::queue::ShardState;
use crate::session::{LoadTurn, Session, deadline, quarter_left};
use crate::values::{Error, FileLevels, Locked, count};

/// Resolved limits of one bucket, and the turn of their load.
#[derive(Debug, Default)]
pub(crate) struct LimitsSlot {
    state: Locked<State>,
    loading: LoadTurn,
}

#[derive(Debug, Default)]
struct State {
    resolved: Option<Arc<ResolvedConfig>>,
    /// Turn of the last load that brought some.
    turn: u64,
    /// Number of loads that failed while others waited for them.
    failures: u64,
    /// Error of the last one.
    failed: Option<Error>,
}

impl LimitsSlot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Records what the load of a turn brought, unless a later one was faster. A failure is one for
    /// those that wait for it, and not if its request has ended: others have loads of their own.
    fn record(&self, turn: u64, loaded: &Result<Arc<ResolvedConfig>, Error>, session: &Session) {
        let is_awaited = self.loading.is_kept(turn, session);
        let mut state = self.state();
        match loaded {
            Ok(loaded) if state.turn <= turn => {
                (state.turn, state.resolved) = (turn, Some(Arc::clone(loaded)));
            }
            Err(error) if is_awaited => {
                state.failures += 1;
                state.failed = Some(error.clone());
            }
            Ok(_) | Err(_) => {}
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
        Self { patience: None, until }
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
        failures: 0,
    };
    let counters = &session.config_cache.counters;
    let known = {
        let state = slot.state();
        lookup.failures = state.failures;
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
    Box::pin(lookup.answer(age, wait)).await
}

/// A lookup of limits.
struct Lookup<'a> {
    session: &'a Arc<Session>,
    slot: &'a Arc<LimitsSlot>,
    first: &'a Arc<ShardState>,
    age: Freshness,
    until: Instant,
    file: Option<Arc<FileLevels>>,
    /// Number of loads that had failed when it began.
    failures: u64,
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
        asked: Freshness,
        wait: &mut LoadWait,
    ) -> Result<Arc<ResolvedConfig>, Error> {
        let began = Instant::now();
        let given_up = || {
            let key = self.first.key.item_key();
            let request = "BatchGetItem of limits";
            self.session.given_up(request, began.elapsed(), &key)
        };
        let may_be_old = asked == Freshness::AnyAge;
        let mut until = match may_be_old && self.load().is_usable() {
            true => wait.patience(),
            false => self.until,
        };
        loop {
            let error = match self.loaded(until).await {
                Ok(Some(loaded)) => return Ok(loaded),
                Ok(None) => given_up().into(),
                Err(error) => error,
            };
            // A read that ends with the wait for it is given up.
            let has_failed = Instant::now() < until;
            let is_last = has_failed || until >= self.until;
            // Found again after the wait, because this process may have changed some since.
            let load = self.load();
            let is_complete = load.has_all();
            let known = match asked {
                Freshness::Now => None,
                _ if has_failed => load.instead_of(&error).map(ResolvedConfig::after_failure),
                Freshness::Recent => None,
                Freshness::AnyAge if is_last => load.instead_of(&error),
                Freshness::AnyAge => load.is_usable().then(|| load.cached()),
            };
            if let Some(known) = known {
                let bucket = self.first.key.item_key().pk;
                match has_failed {
                    true => {
                        tracing::warn!(%error, bucket, "limits could not be read: using the cached ones")
                    }
                    false => tracing::debug!(%error, bucket, "limits were not read in time"),
                }
                let known = Arc::new(known);
                // Limits of a file alone may be overruled by levels that were not read.
                if is_complete || has_failed {
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
    async fn loaded(&self, until: Instant) -> Result<Option<Arc<ResolvedConfig>>, Error> {
        let known = || {
            let state = self.slot.state();
            let resolved = state.resolved.as_ref().filter(|known| self.accepts(known));
            let failed = (state.failed.as_ref()).filter(|_| state.failures > self.failures);
            match (resolved, failed) {
                (Some(known), _) => Some(Ok(Arc::clone(known))),
                (None, failed) => failed.cloned().map(Err),
            }
        };
        let load = |turn| {
            let (slot, session) = (Arc::clone(self.slot), Arc::clone(self.session));
            let load = self.load();
            async move {
                let loaded = load.run().await.map(Arc::new);
                slot.record(turn, &loaded, &session);
                loaded
            }
        };
        let loading = &self.slot.loading;
        let loaded = loading.share(self.session, until, known, load).await?;
        loaded.transpose()
    }
}

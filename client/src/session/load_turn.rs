//! Loads that requests share: one is awaited at a time, and none that hangs keeps others waiting for
//! long.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::Session;
use super::env::{Moment, deadline};
use super::requests::HANGS_AFTER;
use crate::values::{Error, Locked};

/// Most loads that share a turn and are tasks, 4.
const MAX_TASKS: usize = 4;

/// The turn of the request that loads what others wait for.
#[derive(Debug, Default)]
pub(crate) struct LoadTurn {
    state: Locked<State>,
    /// Notification of the end of a load or of a turn. Each load that is a task has a clone.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of turns so far.
    turns: u64,
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// Number of the turn.
    turn: u64,
    /// Changes by this process before it began.
    generation: u64,
    /// By the clock for ages, which a freeze does not stop.
    until: Moment,
}

/// Keeps a turn until it is dropped.
struct Keeper<'a> {
    of: &'a LoadTurn,
    turn: u64,
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        if state.kept.take_if(|kept| kept.turn == self.turn).is_some() {
            self.of.changed.notify_waiters();
        }
    }
}

impl LoadTurn {
    /// Returns what `known` finds, or else what `load` brings; `None` if neither does by `until`. Loads get
    /// the numbers of their turns.
    ///
    /// A load keeps others waiting as long as the request that began it waits, for a second at most,
    /// and not after a change by this process: it may hang. It goes on where its request has ended,
    /// unless many do.
    ///
    /// # Errors
    /// The open circuit breaker, if another request's load is under way: it may have begun before. A
    /// runtime that has ended.
    pub(crate) async fn share<T, L>(
        &self,
        session: &Session,
        until: Instant,
        known: impl Fn() -> Option<T>,
        load: impl FnOnce(u64) -> L,
    ) -> Result<Option<T>, Error>
    where
        T: Send + 'static,
        L: Future<Output = T> + Send + 'static,
    {
        let shared = async {
            let keeper = loop {
                // Before the look at what is known, or a change in between would be missed.
                let changed = self.changed.notified();
                if let Some(known) = known() {
                    return Ok(Some(known));
                }
                if Instant::now() >= until {
                    return Ok(None);
                }
                match self.keep(session, until) {
                    Ok(keeper) => break keeper,
                    Err(end) => {
                        drop(session.breaker.admit()?);
                        let left = end.since(session.env.ages.now());
                        timeout(left, changed).await.ok();
                    }
                }
            };
            let mut loading = pin!(self.run(session, load(keeper.turn)));
            loop {
                let changed = self.changed.notified();
                tokio::select! {
                    // A fixed order, so that a run depends only on its inputs.
                    biased;
                    loaded = &mut loading => return loaded.map(Some),
                    () = changed => {}
                }
                // What an earlier load brings is as good.
                if let Some(known) = known() {
                    return Ok(Some(known));
                }
            }
        };
        timeout_at(until, shared).await.unwrap_or(Ok(None))
    }

    /// Returns whether others wait for the load of this turn.
    pub(crate) fn is_kept(&self, turn: u64, session: &Session) -> bool {
        let state = self.state.lock();
        let mut kept = state.kept.iter().filter(|kept| kept.turn == turn);
        kept.any(|kept| !kept.is_over(session))
    }

    /// Takes the turn until then, or returns when that of another request is over.
    fn keep(&self, session: &Session, until: Instant) -> Result<Keeper<'_>, Moment> {
        let mut state = self.state.lock();
        if let Some(kept) = state.kept.as_ref().filter(|kept| !kept.is_over(session)) {
            return Err(kept.until);
        }
        state.turns += 1;
        let turn = state.turns;
        state.kept = Some(Kept {
            turn,
            generation: session.config_cache.generation(),
            until: session.env.ages.of(until.min(deadline(HANGS_AFTER))),
        });
        Ok(Keeper { of: self, turn })
    }

    /// Runs a load as a task, which goes on where its request ends. What hangs stays until its own end,
    /// so there are few of them: further ones end with their requests.
    async fn run<T, L>(&self, session: &Session, load: L) -> Result<T, Error>
    where
        T: Send + 'static,
        L: Future<Output = T> + Send + 'static,
    {
        let changed = Arc::clone(&self.changed);
        let is_one_of_few = Arc::strong_count(&changed) <= 1 + MAX_TASKS;
        let permit = Arc::clone(&session.load_tasks).try_acquire_owned();
        let Some(permit) = permit.ok().filter(|_| is_one_of_few) else {
            return Ok(load.await);
        };
        // Only a runtime that shuts down drops the task.
        let task = tokio::spawn(async move {
            let loaded = load.await;
            changed.notify_waiters();
            drop(permit);
            loaded
        });
        task.await.map_err(|_| {
            let reason = "the runtime of the limiter has ended".to_owned();
            session.env.unconfirmed("BatchGetItem", reason).into()
        })
    }
}

impl Kept {
    fn is_over(&self, session: &Session) -> bool {
        self.until <= session.env.ages.now() || self.generation < session.config_cache.generation()
    }
}

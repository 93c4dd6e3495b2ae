//! What goes on after its caller has gone, such as the return of a dropped request's tokens.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Session;

/// Work that takes tokens or returns some, in the rounds in which it began.
#[derive(Debug, Default)]
pub(crate) struct Background {
    rounds: watch::Sender<Rounds>,
}

/// Amount of work in progress by round. A round ends when a caller begins to wait for it, so new work
/// never prolongs the wait.
#[derive(Debug, Default)]
struct Rounds {
    current: u64,
    in_progress: BTreeMap<u64, usize>,
}

/// A piece of work, until it is dropped.
pub(crate) struct Work {
    session: Arc<Session>,
    round: u64,
}

impl Session {
    /// Runs a task on the limiter's runtime, from any thread. [`finished`](Background::finished) waits
    /// for it. A runtime that has ended drops it.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let work = Work::begin(self);
        self.home.spawn(async move {
            task.await;
            drop(work);
        })
    }
}

impl Background {
    /// Waits until the work is done that has begun before, and until what it leads to is done: a write
    /// for a request that has gone is followed by the return of its tokens.
    pub(crate) async fn finished(&self) {
        for _ in 0..2 {
            let mut last = 0;
            self.rounds.send_modify(|rounds| {
                last = rounds.current;
                rounds.current += 1;
            });
            let is_done = |rounds: &Rounds| rounds.in_progress.range(..=last).next().is_none();
            // It fails only without a sender, which `self` is.
            let _ = self.rounds.subscribe().wait_for(is_done).await;
        }
    }
}

impl Work {
    pub(crate) fn begin(session: &Arc<Session>) -> Self {
        let mut round = 0;
        session.background.rounds.send_modify(|rounds| {
            round = rounds.current;
            *rounds.in_progress.entry(round).or_default() += 1;
        });
        Self {
            session: Arc::clone(session),
            round,
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.session.background.rounds.send_modify(|rounds| {
            if let Some(count) = rounds.in_progress.get_mut(&self.round) {
                *count -= 1;
                if *count == 0 {
                    rounds.in_progress.remove(&self.round);
                }
            }
        });
    }
}

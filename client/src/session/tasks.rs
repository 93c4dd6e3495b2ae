//! The runtime of a limiter: the one on which it was built. Its connections, timers and queues belong
//! to that runtime and stand still with it, so every call runs there, wherever it is awaited.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::Session;
use crate::values::Error;

/// The runtime of a limiter.
#[derive(Debug)]
pub(crate) struct Home {
    runtime: Handle,
    /// Whether the runtime has ended. Polls from elsewhere hold the lock, so a runtime that shuts down
    /// waits for them: a timer panics once its runtime has ended.
    has_ended: Arc<RwLock<bool>>,
}

/// A task of the runtime holds it, and is dropped before the runtime's timers end.
struct Ending(Arc<RwLock<bool>>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl Home {
    /// Returns the home of a session, which lives until `alive` closes.
    pub(super) fn new(runtime: Handle, mut alive: watch::Receiver<()>) -> Self {
        let has_ended = Arc::default();
        let ending = Ending(Arc::clone(&has_ended));
        runtime.spawn(async move {
            let _ending = ending;
            // Nothing is ever sent, so a change is the end of the session.
            alive.changed().await.ok();
        });
        Self { runtime, has_ended }
    }

    /// Runs a task, unless the runtime has ended.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        // Tried, because this poll may hold the lock already.
        if self.has_ended.try_read().is_ok_and(|has_ended| *has_ended) {
            tracing::warn!(
                "the runtime of the limiter has ended: tokens of dropped requests and grants count as taken, and leases expire by themselves"
            );
        }
        self.runtime.spawn(task)
    }

    fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.runtime.id())
    }

    /// Polls from elsewhere, within the runtime's context. The error says why that is impossible.
    fn poll_from_elsewhere<T>(&self, poll: impl FnOnce() -> T) -> Result<T, String> {
        let has_ended = self.has_ended.read().unwrap_or_else(PoisonError::into_inner);
        if *has_ended {
            return Err(
                "a limiter must be used while its runtime runs, and that has ended; build it on a runtime that lives as long as it does"
                    .to_owned(),
            );
        }
        if self.runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Err(
                "a limiter built on a current-thread runtime must be used there, got a call from elsewhere; build it on a multi-thread runtime, or build one on each runtime"
                    .to_owned(),
            );
        }
        let _context = self.runtime.enter();
        Ok(poll())
    }
}

pin_project! {
    /// A call of a limiter, on the limiter's runtime.
    pub(crate) struct AtHome<'a, F> {
        session: &'a Session,
        is_begun: bool,
        #[pin]
        call: F,
    }
}

impl Session {
    /// Begins a settlement at once, in a task that goes on if its caller goes away.
    pub(crate) fn in_task<T: Send + 'static, S>(
        self: &Arc<Self>,
        settling: S,
    ) -> impl Future<Output = Result<T, Error>> + use<T, S>
    where
        S: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (send, done) = oneshot::channel();
        self.spawn(async move {
            // Without a caller only the log needs it.
            if let Err(Err(error)) = send.send(settling.await) {
                tracing::warn!(%error, "a settlement whose caller is gone failed");
            }
        });
        let session = Arc::clone(self);
        async move { done.await.unwrap_or_else(|_| Err(session.ended())) }
    }

    /// Returns the error of a settlement whose task is gone.
    pub(crate) fn ended(&self) -> Error {
        let ended =
            "the runtime ended: what was taken may count as used, and a lease ends by itself";
        self.env.unconfirmed("settlement", ended.to_owned()).into()
    }

    /// Runs a call on the limiter's runtime. From elsewhere, that runtime's own threads drive its
    /// connections and timers; if it has none or has ended, the call fails at once.
    pub(crate) const fn at_home<F>(&self, call: F) -> AtHome<'_, F> {
        AtHome { session: self, is_begun: false, call }
    }
}

impl<T, E: From<Error>, F: Future<Output = Result<T, E>>> Future for AtHome<'_, F> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let this = self.project();
        let home = &this.session.home;
        if home.is_here() {
            *this.is_begun = true;
            return this.call.poll(context);
        }
        match home.poll_from_elsewhere(|| this.call.poll(context)) {
            Ok(polled) => {
                *this.is_begun = true;
                polled
            }
            Err(reason) if *this.is_begun => {
                let error = this.session.env.unconfirmed("call", reason);
                Poll::Ready(Err(Error::from(error).into()))
            }
            Err(reason) => Poll::Ready(Err(Error::Invalid(reason).into())),
        }
    }
}

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
        Self { session: Arc::clone(session), round }
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

//! The queue of one shard: its machine, the callers that wait, and the task that makes the machine's
//! requests. The task belongs to no caller, so a dropped request does not stop the others. Nor does one
//! that is not polled, whatever its request would hold meanwhile: a connection that is being made, the
//! breaker's probe. Without the task, a lone take from Redis would be a sixth faster.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use weirgate_shared::Shard;
use weirgate_store::{Item, StoreError};

use super::machine::{Command, Machine};
use super::part::Taken;
use super::shard_state::ShardState;
use super::waiter::{Reason, Waiter};
use crate::session::{Session, Work, decode_shard};
use crate::values::{BucketRequest, Error, Locked, Outcome};

/// Time after the deadline in which the machine may still reply, 20 ms.
pub(crate) const GRACE: Duration = Duration::from_millis(20);

type Caller = oneshot::Sender<Result<Outcome<Taken, Reason>, Error>>;

/// The queue of one shard.
#[derive(Debug)]
pub(crate) struct ShardQueue {
    pub(crate) shard: Arc<ShardState>,
    state: Locked<State>,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    callers: HashMap<u64, Caller>,
    has_driver: bool,
}

impl ShardQueue {
    pub(crate) fn new(shard: ShardState) -> Self {
        let shard = Arc::new(shard);
        let state = State {
            machine: Machine::new(Arc::clone(&shard), 0),
            callers: HashMap::new(),
            has_driver: false,
        };
        Self { shard, state: Locked::new(state) }
    }

    /// Returns the shard's index.
    pub(crate) fn index(&self) -> u32 {
        self.shard.key.shard
    }

    /// Returns whether a request is under way: a new one then shares the next write.
    pub(crate) fn is_busy(&self) -> bool {
        self.state().has_driver
    }

    /// Returns the shard's reply to a request, by its deadline.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: BucketRequest,
        enqueued_at: Instant,
        deadline: Instant,
    ) -> Result<Outcome<Taken, Reason>, Error> {
        let (caller, mut reply) = oneshot::channel();
        let (id, is_first) = {
            let mut state = self.state();
            let waiter = Waiter::new(request, enqueued_at, deadline);
            let id = state.machine.arrive(waiter);
            state.callers.insert(id, caller);
            (id, !std::mem::replace(&mut state.has_driver, true))
        };
        let mut waiting = Waiting { queue: Some(self), id };
        if is_first {
            tokio::spawn(drive(Arc::clone(session), Arc::clone(self)));
        }
        // Also for the response to a request that is under way at the deadline.
        let reply = match timeout_at(deadline + GRACE, &mut reply).await {
            Ok(reply) => reply.ok(),
            Err(_) => {
                self.with_machine(session, |machine| machine.deadline_passed(&session.env, id));
                // It is sent, or about to be: another thread may have it.
                reply.await.ok()
            }
        };
        waiting.queue = None;
        reply.unwrap_or_else(|| {
            let request = format!("take of {}", self.shard.key.item_key().pk);
            let reason = "the runtime of the limiter has ended".to_owned();
            Err(session.env.unconfirmed(&request, reason).into())
        })
    }

    /// Changes the machine, and sends the replies that follow.
    fn with_machine<T>(&self, session: &Arc<Session>, change: impl FnOnce(&mut Machine) -> T) -> T {
        self.with_state(session, |state| change(&mut state.machine))
    }

    fn with_state<T>(&self, session: &Arc<Session>, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, replies) = {
            let mut state = self.state();
            let changed = change(&mut state);
            let State { machine, callers, .. } = &mut *state;
            let replies = machine.take_replies().into_iter();
            let replies: Vec<_> = replies.map(|(id, reply)| (callers.remove(&id), reply)).collect();
            (changed, replies)
        };
        for (caller, reply) in replies {
            let claimable = |portion| Taken::new(Arc::clone(session), portion);
            let reply = reply.map(|outcome| outcome.map(claimable));
            // What was taken for a caller that has gone returns as it is dropped.
            if let Some(caller) = caller {
                drop(caller.send(reply));
            }
        }
        changed
    }

    /// Returns the machine's next command. A machine that stops has no driver any more.
    fn poll(&self, session: &Arc<Session>) -> Command {
        self.with_state(session, |state| {
            let command = state.machine.poll(&session.env);
            state.has_driver = !matches!(command, Command::Stop);
            command
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the machine, which has no driver but the caller.
    #[cfg(test)]
    pub(crate) fn explore<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state.machine);
        state.has_driver = !state.machine.rests();
        changed
    }
}

/// Makes the machine's requests until nothing waits.
async fn drive(session: Arc<Session>, queue: Arc<ShardQueue>) {
    let mut driver = Driver { queue: &queue, is_done: false };
    let key = queue.shard.key.item_key();
    loop {
        let work = Work::begin(&session);
        match queue.poll(&session) {
            Command::Stop => {
                driver.is_done = true;
                return;
            }
            Command::Wait(until) => sleep_until(until).await,
            Command::Read(consistency) => {
                let found = shard_of(session.read_once(&key, consistency).await);
                queue.with_machine(&session, |machine| machine.read_done(&session.env, found));
            }
            Command::LookUp => {
                let found = shard_of(session.look_up(&key).await);
                queue.with_machine(&session, |machine| machine.read_done(&session.env, found));
            }
            Command::Write(update) => {
                let outcome = session.update(&update).await.map_err(Error::from);
                let outcome = outcome.and_then(|outcome| outcome.read(decode_shard));
                queue.with_machine(&session, |machine| machine.written(&session.env, outcome));
            }
        }
        drop(work);
    }
}

fn shard_of(found: Result<Option<Item>, StoreError>) -> Result<Option<Shard>, Error> {
    found?.as_ref().map(decode_shard).transpose()
}

/// A caller without a reply. One that goes away leaves the line.
struct Waiting<'a> {
    /// `None` once there is one.
    queue: Option<&'a ShardQueue>,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(queue) = self.queue else {
            return;
        };
        let mut state = queue.state();
        if state.callers.remove(&self.id).is_some() {
            state.machine.leave(self.id);
        }
    }
}

/// The task of a queue. If the runtime shuts down, it stops early, and its callers elsewhere get an
/// error.
struct Driver<'a> {
    queue: &'a ShardQueue,
    is_done: bool,
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut state = self.queue.state();
        let last_id = state.machine.last_id;
        state.machine = Machine::new(Arc::clone(&self.queue.shard), last_id);
        state.callers.clear();
        state.has_driver = false;
    }
}

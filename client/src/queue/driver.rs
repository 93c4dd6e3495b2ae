//! The queue of one shard: its machine, the callers that wait, and the driver that makes the machine's
//! requests. The driver is a task, which belongs to no caller, so a dropped request does not stop the
//! others. Where callers have come one by one, the caller polls it: tasks that wake each other take as
//! long as the request. It becomes a task once another caller waits for it or this one goes away.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::{Instant, sleep_until, timeout_at};
use weirgate_shared::Shard;
use weirgate_store::{Item, StoreError, WriteOutcome};

use super::machine::{Command, Machine, Written};
use super::part::Taken;
use super::shard_state::ShardState;
use super::waiter::{Reason, Reply, Waiter};
use crate::session::{Session, Work, decode_shard};
use crate::values::{BucketRequest, Error, Locked, Outcome};

/// Time after the deadline in which the machine may still reply, 20 ms.
pub(crate) const GRACE: Duration = Duration::from_millis(20);

/// Callers in a row that are alone before the next one polls the driver itself, 16. It does so at once, so that others
/// which come in the same moment need a second write: one of 17 at most.
const ALONE: u32 = 16;

type Answer = Result<Outcome<Taken, Reason>, Error>;
type Caller = oneshot::Sender<Answer>;
type Drive = Pin<Box<dyn Future<Output = ()> + Send>>;

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
    driver: Driver,
    /// Callers in a row that were alone.
    alone: u32,
}

/// Who polls the driver.
enum Driver {
    /// Nothing waits.
    None,
    Caller(Lent),
    /// A task of its own.
    Task,
}

impl State {
    /// Lends a driver to a caller that is alone, as those before it were. Otherwise returns the driver, to be a task, unless
    /// it is one.
    fn drive_for(
        &mut self,
        session: &Arc<Session>,
        queue: &Arc<ShardQueue>,
        id: u64,
    ) -> Option<Drive> {
        if !matches!(self.driver, Driver::None) {
            self.alone = 0;
            return self.detached(None);
        }
        let drive = Box::pin(drive(Arc::clone(session), Arc::clone(queue)));
        if self.alone < ALONE {
            self.alone += 1;
            self.driver = Driver::Task;
            return Some(drive);
        }
        self.driver = Driver::Caller(Lent {
            id,
            drive: Some(drive),
            waker: Waker::noop().clone(),
        });
        None
    }

    /// Returns the driver, to be a task, if a caller has it: this one, or any.
    fn detached(&mut self, by: Option<u64>) -> Option<Drive> {
        match &self.driver {
            Driver::Caller(lent) if by.is_none_or(|id| lent.id == id) => {}
            _ => return None,
        }
        let Driver::Caller(lent) = std::mem::replace(&mut self.driver, Driver::Task) else {
            return None;
        };
        // Its reply is to wake it from now on.
        lent.waker.wake();
        lent.drive
    }
}

impl Driver {
    /// Returns the driver, if the caller with this id polls it.
    fn lent_to(&mut self, id: u64) -> Option<&mut Lent> {
        match self {
            Self::Caller(lent) if lent.id == id => Some(lent),
            _ => None,
        }
    }
}

/// A driver that a caller polls.
struct Lent {
    id: u64,
    /// `None` while it is polled.
    drive: Option<Drive>,
    /// Wakes the caller, which its reply does not: a task that wakes itself is polled once more, and another
    /// thread is woken for it.
    waker: Waker,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Caller(..) => "Caller",
            Self::Task => "Task",
        })
    }
}

impl ShardQueue {
    pub(super) fn new(shard: ShardState) -> Self {
        let shard = Arc::new(shard);
        let state = State {
            machine: Machine::new(Arc::clone(&shard), 0),
            callers: HashMap::new(),
            driver: Driver::None,
            alone: 0,
        };
        Self {
            shard,
            state: Locked::new(state),
        }
    }

    /// Returns the shard's index.
    pub(crate) fn index(&self) -> u32 {
        self.shard.key.shard
    }

    /// Returns whether a request is under way: a new one then shares the next write.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.state().driver, Driver::None)
    }

    /// Returns the shard's reply to a request, by its deadline.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: BucketRequest,
        enqueued_at: Instant,
        deadline: Instant,
    ) -> Answer {
        let (caller, mut reply) = oneshot::channel();
        let (id, drive) = {
            let mut state = self.state();
            let waiter = Waiter::new(request, enqueued_at, deadline);
            let id = state.machine.arrive(waiter);
            state.callers.insert(id, caller);
            (id, state.drive_for(session, self, id))
        };
        let mut waiting = Waiting {
            session,
            queue: self,
            id,
            is_answered: false,
        };
        if let Some(drive) = drive {
            session.spawn_alone(drive);
        }
        let answered = poll_fn(|context| {
            if !self.poll_drive(session, id, context) {
                return Pin::new(&mut reply).poll(context).map(Result::ok);
            }
            match reply.try_recv() {
                Ok(reply) => Poll::Ready(Some(reply)),
                Err(TryRecvError::Empty) => Poll::Pending,
                Err(TryRecvError::Closed) => Poll::Ready(None),
            }
        });
        // Also for the response to a request that is under way at the deadline.
        let reply = match timeout_at(deadline + GRACE, answered).await {
            Ok(reply) => reply,
            Err(_) => {
                self.with_machine(session, |machine| machine.deadline_passed(&session.env, id));
                // It is sent, or about to be: another thread may have it.
                reply.await.ok()
            }
        };
        waiting.is_answered = true;
        drop(waiting);
        reply.unwrap_or_else(|| {
            let request = format!("take of {}", self.shard.key.item_key().pk);
            let reason = "the runtime of the limiter has ended".to_owned();
            Err(session.env.unconfirmed(&request, reason).into())
        })
    }

    /// Polls the driver for a caller. Returns whether that will do so again, or the driver has stopped.
    fn poll_drive(&self, session: &Arc<Session>, id: u64, context: &mut Context<'_>) -> bool {
        let mut drive = {
            let mut state = self.state();
            let Some(lent) = state.driver.lent_to(id) else {
                return false;
            };
            lent.waker.clone_from(context.waker());
            lent.drive.take().expect("nothing else polls it")
        };
        if drive.as_mut().poll(context).is_ready() {
            return true;
        }
        if let Some(lent) = self.state().driver.lent_to(id) {
            lent.drive = Some(drive);
            return true;
        }
        // Another caller came meanwhile.
        session.spawn_alone(drive);
        false
    }

    /// Makes the driver a task, if a caller polls it: this one, or any.
    pub(crate) fn detach(&self, session: &Arc<Session>, by: Option<u64>) {
        // Without the lock: a runtime that has ended drops it here.
        let drive = self.state().detached(by);
        if let Some(drive) = drive {
            session.spawn_alone(drive);
        }
    }

    /// Changes the machine, and sends the replies that follow.
    fn with_machine<T>(&self, session: &Arc<Session>, change: impl FnOnce(&mut Machine) -> T) -> T {
        self.with_state(session, |state| change(&mut state.machine))
    }

    fn with_state<T>(&self, session: &Arc<Session>, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, replies) = {
            let mut state = self.state();
            let changed = change(&mut state);
            let State {
                machine, callers, ..
            } = &mut *state;
            let replies = machine.take_replies().into_iter();
            let replies: Vec<_> = replies
                .map(|(id, reply)| (callers.remove(&id), reply))
                .collect();
            (changed, replies)
        };
        for (caller, reply) in replies {
            let reply = for_caller(session, reply);
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
            if matches!(command, Command::Stop) {
                state.driver = Driver::None;
            }
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
        state.driver = match state.machine.rests() {
            true => Driver::None,
            false => Driver::Task,
        };
        changed
    }
}

/// Makes the machine's requests until nothing waits.
async fn drive(session: Arc<Session>, queue: Arc<ShardQueue>) {
    let mut running = Running {
        queue: &queue,
        is_done: false,
    };
    let key = queue.shard.key.item_key();
    loop {
        let work = Work::begin(&session);
        match queue.poll(&session) {
            Command::Stop => {
                running.is_done = true;
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
                let outcome = written(session.update(&update).await);
                queue.with_machine(&session, |machine| machine.written(&session.env, outcome));
            }
        }
        drop(work);
    }
}

fn shard_of(found: Result<Option<Item>, StoreError>) -> Result<Option<Shard>, Error> {
    found?.as_ref().map(decode_shard).transpose()
}

fn written(outcome: Result<WriteOutcome, StoreError>) -> Result<Written, Error> {
    Ok(match outcome? {
        WriteOutcome::Applied(Some(item)) => Written::Applied(decode_shard(&item)?),
        WriteOutcome::Applied(None) => unreachable!("the answer was asked for"),
        WriteOutcome::ConditionFailed(Some(item)) => Written::Refused(decode_shard(&item)?),
        WriteOutcome::ConditionFailed(None) => Written::Missing,
    })
}

fn for_caller(session: &Arc<Session>, reply: Reply) -> Answer {
    Ok(match reply? {
        Outcome::Granted(portion) => Outcome::Granted(Taken::new(Arc::clone(session), portion)),
        Outcome::Denied(denied) => Outcome::Denied(denied),
        Outcome::Elsewhere(reason) => Outcome::Elsewhere(reason),
    })
}

/// A caller. One that goes away without an answer leaves the line.
struct Waiting<'a> {
    session: &'a Arc<Session>,
    queue: &'a ShardQueue,
    id: u64,
    is_answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let mut state = self.queue.state();
            if state.callers.remove(&self.id).is_some() {
                state.machine.leave(self.id);
            }
        }
        self.queue.detach(self.session, Some(self.id));
    }
}

/// A driver. If the runtime shuts down, it stops early, and its callers elsewhere get an error.
struct Running<'a> {
    queue: &'a ShardQueue,
    is_done: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut state = self.queue.state();
        let last_id = state.machine.last_id;
        state.machine = Machine::new(Arc::clone(&self.queue.shard), last_id);
        state.callers.clear();
        state.driver = Driver::None;
    }
}

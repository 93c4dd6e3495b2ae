//! The waiters of one shard.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};

use super::shard_state::ShardState;
use super::waiter::Waiter;
use crate::values::Locked;

/// The waiters of one shard. A worker task drains them.
#[derive(Debug)]
pub(crate) struct ShardQueue {
    pub(crate) shard: Arc<ShardState>,
    waiters: Locked<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    waiting: VecDeque<Waiter>,
    /// Waiters of the worker, while it awaits a response.
    kept: VecDeque<Waiter>,
    /// Number of waiters that are gone, and may still be among those waiting.
    gone: usize,
    has_worker: bool,
}

impl ShardQueue {
    pub(super) fn new(shard: ShardState) -> Self {
        Self {
            shard: Arc::new(shard),
            waiters: Locked::default(),
        }
    }

    /// Returns the shard's index.
    pub(crate) fn index(&self) -> u32 {
        self.shard.key.shard
    }

    /// Adds a waiter. Returns whether the queue has no worker, so that one must be started.
    #[must_use]
    pub(crate) fn enqueue(&self, waiter: Waiter) -> bool {
        let mut waiters = self.waiters();
        waiters.waiting.push_back(waiter);
        !std::mem::replace(&mut waiters.has_worker, true)
    }

    /// Counts a waiter that is gone. Once half of those waiting may be gone, they are dropped: a
    /// request that hangs keeps the worker from it.
    pub(crate) fn leave(&self) {
        let mut waiters = self.waiters();
        waiters.gone += 1;
        if waiters.gone * 2 >= waiters.waiting.len() + waiters.kept.len() {
            waiters.gone = 0;
            let is_there = |waiter: &Waiter| !waiter.reply.is_closed();
            waiters.waiting.retain(is_there);
            waiters.kept.retain(is_there);
        }
    }

    /// Keeps the worker's waiters while it awaits a response, so that one that is gone is dropped.
    pub(super) fn keep(&self, kept: VecDeque<Waiter>) {
        self.waiters().kept = kept;
    }

    /// Returns the worker's waiters.
    pub(super) fn take_kept(&self) -> VecDeque<Waiter> {
        std::mem::take(&mut self.waiters().kept)
    }

    /// Returns whether a worker drains the queue: a new request then shares its next write.
    pub(crate) fn has_worker(&self) -> bool {
        self.waiters().has_worker
    }

    /// Removes and returns the waiters in order. If there are none and the worker has none either,
    /// marks the queue as without a worker.
    pub(super) fn drain(&self, worker_has_waiters: bool) -> VecDeque<Waiter> {
        let mut waiters = self.waiters();
        if waiters.waiting.is_empty() && !worker_has_waiters {
            waiters.has_worker = false;
        }
        waiters.gone = 0;
        std::mem::take(&mut waiters.waiting)
    }

    /// Drops the waiters after the worker stopped early: their reply channels close.
    pub(super) fn abort_waiters(&self) {
        let mut waiters = self.waiters();
        waiters.has_worker = false;
        waiters.waiting.clear();
        waiters.kept.clear();
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock()
    }
}

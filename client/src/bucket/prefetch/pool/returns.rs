//! What a pool returns to the table, or forfeits.

use std::time::Duration;

use tokio::task::AbortHandle;
use weirgate_shared::MilliTokens;

use super::super::state::TokenReturn;
use super::Pool;
use crate::values::{Amounts, Limits, count};

/// What to do about expired tokens.
pub(in crate::bucket::prefetch) enum NextReturn {
    Now(Vec<TokenReturn>),
    In(Duration),
    /// The pool is empty.
    Never,
}

impl Pool {
    /// Returns what to do about expired tokens, and about acquires that have been uncounted for as
    /// long.
    pub(in crate::bucket::prefetch) fn due(&self) -> NextReturn {
        let mut state = self.state();
        let now = self.ages.now();
        let oldest = self.cutoff(now);
        let old = state.give_back(|taken| taken <= oldest);
        if !old.is_empty() {
            return NextReturn::Now(old);
        }
        if let Some(taken) = state.blocks.front().and_then(|block| block.prefetched_at) {
            return NextReturn::In((taken + self.prefetch.max_age).since(now));
        }
        if state.unreported == 0 {
            state.expiry_task = None;
            return NextReturn::Never;
        }
        let at = state.last_granted_at + self.prefetch.max_age;
        if at > now {
            NextReturn::In(at.since(now))
        } else {
            NextReturn::Now(state.report())
        }
    }

    /// Returns the tokens to return early: all if the request has other limits, and those that
    /// expired while the expiry task was frozen.
    pub(in crate::bucket::prefetch) fn outdated(&self, limits: &Limits) -> Vec<TokenReturn> {
        let mut state = self.state();
        let oldest = self.cutoff(self.ages.now());
        let is_same = state.limits == *limits;
        if state.blocks.is_empty() {
            vec![]
        } else {
            state.give_back(|taken| !is_same || taken <= oldest)
        }
    }

    /// Ends the pool. Returns all tokens and uncounted acquires.
    pub(in crate::bucket::prefetch) fn close(&self) -> Vec<TokenReturn> {
        let mut state = self.state();
        state.is_closed = true;
        state.give_back_all()
    }

    /// Ends the return of `amounts`, which the bucket has back, or never gets.
    pub(in crate::bucket::prefetch) fn end_return(&self, amounts: &Amounts, is_back: bool) {
        self.state().end_in_flight(amounts);
        self.gauge.lower(amounts);
        let counter = if is_back {
            &self.counters.prefetch_returned_millitokens
        } else {
            &self.counters.prefetch_forfeited_millitokens
        };
        count(counter, milli(amounts));
        self.write_ended.notify_waiters();
    }

    /// Starts the expiry task with `start` if the pool needs one and has none.
    pub(in crate::bucket::prefetch) fn ensure_expiry_task(
        &self,
        start: impl FnOnce() -> AbortHandle,
    ) {
        let mut state = self.state();
        let is_kept = state
            .expiry_task
            .as_ref()
            .is_some_and(|task| !task.is_finished());
        if !is_kept && (!state.blocks.is_empty() || state.unreported != 0) {
            state.expiry_task = Some(start());
        }
    }
}

/// Forfeits the remaining tokens.
impl Drop for Pool {
    fn drop(&mut self) {
        let left = self.outstanding();
        if !left.is_empty() {
            self.gauge.lower(&left);
            count(&self.counters.prefetch_forfeited_millitokens, milli(&left));
        }
    }
}

/// Returns the sum in millitokens.
fn milli(amounts: &Amounts) -> u64 {
    let sum: MilliTokens = amounts.values().copied().sum();
    u64::try_from(sum.0).unwrap_or_default()
}

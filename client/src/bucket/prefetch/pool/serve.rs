//! What a pool serves, and when it fetches the next block.

use std::sync::Arc;

use weirgate_shared::{EpochMillis, Limit};

use super::super::state::State;
use super::{Block, Pool, PoolResult};
use crate::queue::ShardQueues;
use crate::session::Moment;
use crate::values::{Amounts, BucketRequest, debited};

impl Pool {
    /// Serves a request. Returns the result, and a block to fetch if one is needed. `is_new` if the
    /// request is served for the first time.
    pub(in crate::bucket::prefetch) fn serve(
        &self,
        queues: &ShardQueues,
        request: &BucketRequest,
        now: EpochMillis,
        is_new: bool,
    ) -> (PoolResult, Option<Block>) {
        let (at, amounts) = (self.ages.now(), debited(&request.asks));
        let mut state = self.state();
        if state.is_closed || !state.adopt_limits(&request.limits) {
            return (PoolResult::Miss, None);
        }
        state.demand.advance(at);
        let (result, block) = self.serve_from(&mut state, queues, (request, &amounts), (now, at));
        if is_new {
            state.demand.count(&amounts);
        }
        drop(state);
        if matches!(result, PoolResult::Served(_)) {
            self.gauge.lower(&amounts);
        }
        if let Some(block) = &block {
            self.gauge.raise(&block.amounts);
        }
        (result, block)
    }

    fn serve_from(
        &self,
        state: &mut State,
        queues: &ShardQueues,
        (request, amounts): (&BucketRequest, &Amounts),
        (now, at): (EpochMillis, Moment),
    ) -> (PoolResult, Option<Block>) {
        let is_paused = at < state.paused_until;
        let oldest = self.cutoff(at);
        if state.has(amounts, oldest) {
            let parts = state.draw(amounts, oldest);
            state.count(request.acquires, at);
            let mut block = None;
            if state.block_arrival.is_none() && !is_paused && self.is_low(state, amounts, oldest) {
                block = self.block(state, queues, amounts, false, (now, at));
                if block.is_none() {
                    state.paused_until = at + self.refetch_lead();
                }
            }
            return (PoolResult::Served(parts), block);
        }
        if let Some(arrival) = &state.block_arrival {
            return (PoolResult::Wait(Arc::clone(arrival).notified_owned()), None);
        }
        if is_paused {
            return (PoolResult::Miss, None);
        }
        match self.block(state, queues, amounts, true, (now, at)) {
            Some(block) => {
                let block_arrival = state
                    .block_arrival
                    .as_ref()
                    .map(|arrival| Arc::clone(arrival).notified_owned());
                (
                    block_arrival.map_or(PoolResult::Miss, PoolResult::Wait),
                    Some(block),
                )
            }
            None => (PoolResult::Miss, None),
        }
    }

    /// Returns whether the remaining tokens will be spent before a block that is fetched now
    /// arrives.
    fn is_low(&self, state: &State, amounts: &Amounts, oldest: Moment) -> bool {
        let is_low = |limit: &Limit| {
            let low = state
                .demand
                .within(limit.name(), self.prefetch.refetch_lead());
            let low = low.min(self.prefetch.max_outstanding(limit.rule().capacity) / 4);
            amounts.contains_key(limit.name()) && state.left(limit.name(), oldest) < low
        };
        state.limits.iter().any(is_low)
    }
}

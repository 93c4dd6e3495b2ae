//! How many tokens the next block has.

use std::sync::Arc;

use weirgate_shared::{EpochMillis, MilliTokens};

use super::super::state::State;
use super::{Block, Pool};
use crate::queue::ShardQueues;
use crate::session::Moment;
use crate::values::Amounts;

/// Requests like the current one that a block must serve to be worth its write, 3. With two,
/// prefetch would cost as many writes if the second request does not come and its tokens return.
const MIN_REQUESTS_PER_BLOCK: i64 = 3;

impl Pool {
    /// Returns the block to fetch, if it is worth its write: the amounts `asked` by a waiting
    /// request, and the expected demand.
    ///
    /// Never more than may be outstanding. Of the bucket's balance, as far as it was seen, half is
    /// left for other processes.
    pub(super) fn block(
        &self,
        state: &mut State,
        queues: &ShardQueues,
        asked: &Amounts,
        waits: bool,
        (now, at): (EpochMillis, Moment),
    ) -> Option<Block> {
        let oldest = self.cutoff(at);
        let mut amounts = Amounts::new();
        for limit in state
            .limits
            .iter()
            .filter(|limit| limit.rule().kind().refills())
        {
            let (name, capacity) = (limit.name(), limit.rule().capacity);
            let need = asked.get(name).copied().unwrap_or_default();
            let waiting = if waits { need } else { MilliTokens::ZERO };
            let expected = state.demand.within(name, self.prefetch.horizon());
            let wanted = (waiting + expected).min(self.prefetch.max_outstanding(capacity))
                - state.outstanding(name);
            let room = (queues.max_balance(limit, now) - waiting).max(MilliTokens::ZERO) / 2;
            let amount = wanted.min(waiting + room).max(MilliTokens::ZERO);
            if state.left(name, oldest) + amount
                < MilliTokens(need.0.saturating_mul(MIN_REQUESTS_PER_BLOCK))
            {
                return None;
            }
            if amount > MilliTokens::ZERO {
                amounts.insert(name.clone(), amount);
            }
        }
        if amounts.is_empty() {
            return None;
        }
        state.begin_in_flight(&amounts);
        state.block_arrival = Some(Arc::default());
        let acquires = state.unreported.max(0);
        state.unreported -= acquires;
        Some(Block {
            limits: state.limits.clone(),
            amounts,
            acquires,
            requested_at: at,
        })
    }
}

//! Contents of a pool, and its tokens in flight. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use weirgate_shared::{LimitName, MilliTokens, Shard};

use super::demand::Demand;
use crate::queue::{HoldPart, ShardState};
use crate::session::Moment;
use crate::values::{Amounts, Limits};

/// Prefetched tokens of one bucket.
#[derive(Debug)]
pub(super) struct State {
    /// Limits under which all tokens were taken.
    pub(super) limits: Limits,
    pub(super) demand: Demand,
    /// Remaining tokens of each block, oldest first.
    pub(super) blocks: VecDeque<HoldPart>,
    /// Tokens in flight to or from the table; they count as outstanding.
    tokens_in_flight: Amounts,
    /// Number of writes in flight.
    pub(super) writes_in_flight: usize,
    /// Notification that the block in flight has arrived.
    pub(super) block_arrival: Option<Arc<Notify>>,
    /// Granted acquires that no write has counted. Negative if a write counted some that were not
    /// granted after all.
    pub(super) unreported: i64,
    /// Time of the last grant that a write of the pool must count.
    pub(super) last_granted_at: Moment,
    /// Shard of the last block.
    pub(super) last: Option<(Arc<ShardState>, Arc<Shard>)>,
    /// End of the pause between fetches.
    pub(super) paused_until: Moment,
    /// Expiry task, which returns expired tokens.
    pub(super) expiry_task: Option<AbortHandle>,
    pub(super) is_closed: bool,
}

/// Tokens that return to one shard, and the acquires that the write counts.
#[derive(Debug)]
pub(super) struct TokenReturn {
    pub(super) part: HoldPart,
    pub(super) acquires: i64,
}

impl State {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            limits: Limits::default(),
            demand: Demand::new(now),
            blocks: VecDeque::new(),
            tokens_in_flight: Amounts::new(),
            writes_in_flight: 0,
            block_arrival: None,
            unreported: 0,
            last_granted_at: now,
            last: None,
            paused_until: now,
            expiry_task: None,
            is_closed: false,
        }
    }

    /// Returns whether the pool has these limits. It adopts them if nothing is outstanding.
    pub(super) fn adopt_limits(&mut self, limits: &Limits) -> bool {
        if self.limits == *limits {
            return true;
        }
        let is_free = self.blocks.is_empty() && self.writes_in_flight == 0;
        if is_free {
            self.limits = limits.clone();
        }
        is_free
    }

    /// Returns the tokens of a limit that were taken after `oldest`.
    pub(super) fn left(&self, limit: &LimitName, oldest: Moment) -> MilliTokens {
        self.young(oldest).filter_map(|block| block.amounts.get(limit)).copied().sum()
    }

    /// Returns the outstanding tokens of a limit.
    pub(super) fn outstanding(&self, limit: &LimitName) -> MilliTokens {
        let all = self.blocks.iter().map(|block| &block.amounts).chain([&self.tokens_in_flight]);
        all.filter_map(|amounts| amounts.get(limit)).copied().sum()
    }

    /// Returns the outstanding tokens of all limits.
    pub(super) fn all_outstanding(&self) -> Amounts {
        let mut all = self.tokens_in_flight.clone();
        for (limit, amount) in self.blocks.iter().flat_map(|block| &block.amounts) {
            *all.entry(limit.clone()).or_default() += *amount;
        }
        all
    }

    pub(super) fn has(&self, amounts: &Amounts, oldest: Moment) -> bool {
        amounts.iter().all(|(limit, need)| self.left(limit, oldest) >= *need)
    }

    fn young(&self, oldest: Moment) -> impl Iterator<Item = &HoldPart> {
        self.blocks.iter().filter(move |block| is_younger(block, oldest))
    }

    /// Takes what the pool has of `amounts`, oldest first.
    pub(super) fn draw(&mut self, amounts: &Amounts, oldest: Moment) -> Vec<HoldPart> {
        let mut wanted = amounts.clone();
        let mut parts = vec![];
        for block in self.blocks.iter_mut().filter(|block| is_younger(block, oldest)) {
            let amounts = give(&mut block.amounts, &mut wanted);
            if !amounts.is_empty() {
                let (state, shard) = (Arc::clone(&block.state), Arc::clone(&block.shard));
                parts.push(HoldPart {
                    prefetched_at: block.prefetched_at,
                    ..HoldPart::of(state, shard, amounts)
                });
            }
            if wanted.is_empty() {
                break;
            }
        }
        while self.blocks.front().is_some_and(|block| block.amounts.is_empty()) {
            self.blocks.pop_front();
        }
        parts
    }

    /// Adds a part of a block, in the order of the takes.
    pub(super) fn add_block_part(&mut self, part: HoldPart) {
        let at = self.blocks.partition_point(|block| block.prefetched_at <= part.prefetched_at);
        match at.checked_sub(1).and_then(|before| self.blocks.get_mut(before)) {
            Some(block)
                if block.prefetched_at == part.prefetched_at
                    && Arc::ptr_eq(&block.state, &part.state) =>
            {
                add(&mut block.amounts, &part.amounts);
            }
            _ => self.blocks.insert(at, part),
        }
    }

    /// Adds granted acquires that a write of the pool must count.
    pub(super) const fn count(&mut self, acquires: i64, now: Moment) {
        self.unreported += acquires;
        self.last_granted_at = now;
    }

    /// Adds a write in flight with these amounts.
    pub(super) fn begin_in_flight(&mut self, amounts: &Amounts) {
        self.writes_in_flight += 1;
        add(&mut self.tokens_in_flight, amounts);
    }

    /// Ends a write in flight.
    pub(super) fn end_in_flight(&mut self, amounts: &Amounts) {
        self.writes_in_flight -= 1;
        for (limit, amount) in amounts {
            if let Some(tokens) = self.tokens_in_flight.get_mut(limit) {
                *tokens -= *amount;
            }
        }
    }

    /// Removes the blocks whose instant `is_due`. Returns one write per shard; the first counts
    /// the acquires.
    pub(super) fn give_back(&mut self, is_due: impl Fn(Moment) -> bool) -> Vec<TokenReturn> {
        let mut returns: Vec<TokenReturn> = vec![];
        let (due, left) = std::mem::take(&mut self.blocks)
            .into_iter()
            .partition(|block| block.prefetched_at.is_none_or(&is_due));
        self.blocks = left;
        let due: VecDeque<HoldPart> = due;
        for part in due.into_iter().filter(|part| !part.amounts.is_empty()) {
            self.begin_in_flight(&part.amounts);
            match returns.iter_mut().find(|back| Arc::ptr_eq(&back.part.state, &part.state)) {
                Some(back) => {
                    // Two blocks of a shard are one write.
                    self.writes_in_flight -= 1;
                    add(&mut back.part.amounts, &part.amounts);
                }
                None => returns.push(TokenReturn { part, acquires: 0 }),
            }
        }
        if let Some(first) = returns.first_mut() {
            first.acquires = std::mem::take(&mut self.unreported);
        }
        returns
    }

    /// Removes all blocks, and counts all acquires.
    pub(super) fn give_back_all(&mut self) -> Vec<TokenReturn> {
        let all = self.give_back(|_| true);
        if all.is_empty() { self.report() } else { all }
    }

    /// Returns a write that only counts acquires.
    pub(super) fn report(&mut self) -> Vec<TokenReturn> {
        let acquires = std::mem::take(&mut self.unreported);
        let Some((state, shard)) = self.last.clone().filter(|_| acquires != 0) else {
            return vec![];
        };
        let part = HoldPart::of(state, shard, Amounts::new());
        self.begin_in_flight(&part.amounts);
        vec![TokenReturn { part, acquires }]
    }
}

fn is_younger(block: &HoldPart, oldest: Moment) -> bool {
    block.prefetched_at.is_some_and(|taken| taken > oldest)
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (limit, amount) in more {
        *sum.entry(limit.clone()).or_default() += *amount;
    }
}

/// Moves `wanted` amounts out of `left`, as far as available. Removes limits with nothing left from
/// both.
fn give(left: &mut Amounts, wanted: &mut Amounts) -> Amounts {
    let has = |(limit, want): (&LimitName, &MilliTokens)| {
        left.get(limit).is_some_and(|left| left >= want)
    };
    let given = if wanted.iter().all(has) {
        std::mem::take(wanted)
    } else {
        let part = |(limit, want): (&LimitName, &mut MilliTokens)| {
            let given = left.get(limit).copied()?.min(*want);
            *want -= given;
            Some((limit.clone(), given))
        };
        let given = wanted.iter_mut().filter_map(part).collect();
        wanted.retain(|_, want| *want > MilliTokens::ZERO);
        given
    };
    for (limit, amount) in &given {
        let Some(there) = left.get_mut(limit) else {
            continue;
        };
        *there -= *amount;
        if *there == MilliTokens::ZERO {
            left.remove(limit);
        }
    }
    given
}

//! What a pool holds, and what of it is on its way. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use weirgate_shared::{LimitName, MilliTokens, Shard};

use super::demand::Demand;
use crate::ages::Moment;
use crate::hold::HoldPart;
use crate::limits::Limits;
use crate::queue::{Amounts, ShardQueue};

/// The tokens of one bucket that were taken ahead.
#[derive(Debug)]
pub(super) struct State {
    /// The limits that everything here was taken under.
    pub(super) limits: Limits,
    pub(super) demand: Demand,
    /// What is left of each block, those taken first at the front.
    pub(super) batches: VecDeque<HoldPart>,
    /// On the way from the table or back to it, so outstanding too.
    away: Amounts,
    /// Writes on the way.
    pub(super) under_way: usize,
    /// Told when the block on its way has arrived.
    pub(super) landing: Option<Arc<Notify>>,
    /// Acquires granted from here that no write has counted yet.
    pub(super) unreported: i64,
    /// When the last acquire was granted from here.
    pub(super) granted: Moment,
    /// The shard that gave the last block.
    pub(super) last: Option<(Arc<ShardQueue>, Arc<Shard>)>,
    /// No block is fetched until then.
    pub(super) paused_until: Moment,
    /// Gives back what has become too old.
    pub(super) keeper: Option<AbortHandle>,
    pub(super) is_closed: bool,
}

/// Tokens that go back to one shard, and acquires that the write counts.
#[derive(Debug)]
pub(super) struct TokenReturn {
    pub(super) part: HoldPart,
    pub(super) takes: i64,
}

impl State {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            limits: Limits::default(),
            demand: Demand::new(now),
            batches: VecDeque::new(),
            away: Amounts::new(),
            under_way: 0,
            landing: None,
            unreported: 0,
            granted: now,
            last: None,
            paused_until: now,
            keeper: None,
            is_closed: false,
        }
    }

    /// Whether it is under these limits, which it may become while nothing is outstanding.
    pub(super) fn adopt_limits(&mut self, limits: &Limits) -> bool {
        if self.limits == *limits {
            return true;
        }
        let is_free = self.batches.is_empty() && self.under_way == 0;
        if is_free {
            self.limits = limits.clone();
        }
        is_free
    }

    /// What is there of a limit that was taken after `oldest`.
    pub(super) fn left(&self, limit: &LimitName, oldest: Moment) -> MilliTokens {
        self.young(oldest)
            .filter_map(|batch| batch.amounts.get(limit))
            .copied()
            .sum()
    }

    /// What was taken of a limit and is neither spent nor known to be back.
    pub(super) fn outstanding(&self, limit: &LimitName) -> MilliTokens {
        let all = self
            .batches
            .iter()
            .map(|batch| &batch.amounts)
            .chain([&self.away]);
        all.filter_map(|amounts| amounts.get(limit)).copied().sum()
    }

    pub(super) fn has(&self, amounts: &Amounts, oldest: Moment) -> bool {
        amounts
            .iter()
            .all(|(limit, need)| self.left(limit, oldest) >= *need)
    }

    fn young(&self, oldest: Moment) -> impl Iterator<Item = &HoldPart> {
        self.batches
            .iter()
            .filter(move |batch| is_younger(batch, oldest))
    }

    /// Takes what there is of `needs`, the oldest first.
    pub(super) fn draw(&mut self, amounts: &Amounts, oldest: Moment) -> Vec<HoldPart> {
        let mut wanted = amounts.clone();
        let mut parts = vec![];
        for batch in self
            .batches
            .iter_mut()
            .filter(|batch| is_younger(batch, oldest))
        {
            let amounts = give(&mut batch.amounts, &mut wanted);
            if !amounts.is_empty() {
                let (queue, shard) = (Arc::clone(&batch.queue), Arc::clone(&batch.shard));
                parts.push(HoldPart {
                    queue,
                    amounts,
                    shard,
                    prefetched_at: batch.prefetched_at,
                    lease: None,
                });
            }
            if wanted.is_empty() {
                break;
            }
        }
        while self
            .batches
            .front()
            .is_some_and(|batch| batch.amounts.is_empty())
        {
            self.batches.pop_front();
        }
        parts
    }

    /// Keeps a part of a block, in the order in which they were taken.
    pub(super) fn add_batch(&mut self, part: HoldPart) {
        let at = self
            .batches
            .partition_point(|batch| batch.prefetched_at <= part.prefetched_at);
        match at
            .checked_sub(1)
            .and_then(|before| self.batches.get_mut(before))
        {
            Some(batch)
                if batch.prefetched_at == part.prefetched_at
                    && Arc::ptr_eq(&batch.queue, &part.queue) =>
            {
                add(&mut batch.amounts, &part.amounts);
            }
            _ => self.batches.insert(at, part),
        }
    }

    /// A write is on its way, with these amounts.
    pub(super) fn begin_in_flight(&mut self, amounts: &Amounts) {
        self.under_way += 1;
        add(&mut self.away, amounts);
    }

    /// It has arrived, or never will.
    pub(super) fn end_in_flight(&mut self, amounts: &Amounts) {
        self.under_way -= 1;
        for (limit, amount) in amounts {
            if let Some(away) = self.away.get_mut(limit) {
                *away -= *amount;
            }
        }
    }

    /// Sends back the batches taken at an instant that `is_due`: one write for each shard. The
    /// first counts acquires.
    pub(super) fn give_back(&mut self, is_due: impl Fn(Moment) -> bool) -> Vec<TokenReturn> {
        let mut returns: Vec<TokenReturn> = vec![];
        let (due, left) = std::mem::take(&mut self.batches)
            .into_iter()
            .partition(|batch| batch.prefetched_at.is_none_or(&is_due));
        self.batches = left;
        let due: VecDeque<HoldPart> = due;
        for part in due.into_iter().filter(|part| !part.amounts.is_empty()) {
            self.begin_in_flight(&part.amounts);
            match returns
                .iter_mut()
                .find(|back| Arc::ptr_eq(&back.part.queue, &part.queue))
            {
                Some(back) => {
                    // Two batches of a shard are one write.
                    self.under_way -= 1;
                    add(&mut back.part.amounts, &part.amounts);
                }
                None => returns.push(TokenReturn { part, takes: 0 }),
            }
        }
        if let Some(first) = returns.first_mut() {
            first.takes = std::mem::take(&mut self.unreported);
        }
        returns
    }

    /// Sends back everything, and counts all acquires.
    pub(super) fn give_back_all(&mut self) -> Vec<TokenReturn> {
        let all = self.give_back(|_| true);
        if all.is_empty() { self.report() } else { all }
    }

    /// Counts acquires where there is nothing to send back.
    pub(super) fn report(&mut self) -> Vec<TokenReturn> {
        let takes = std::mem::take(&mut self.unreported);
        let Some((queue, shard)) = self.last.clone().filter(|_| takes > 0) else {
            return vec![];
        };
        let part = HoldPart {
            queue,
            amounts: Amounts::new(),
            shard,
            prefetched_at: None,
            lease: None,
        };
        self.begin_in_flight(&part.amounts);
        vec![TokenReturn { part, takes }]
    }
}

fn is_younger(batch: &HoldPart, oldest: Moment) -> bool {
    batch.prefetched_at.is_some_and(|taken| taken > oldest)
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (limit, amount) in more {
        *sum.entry(limit.clone()).or_default() += *amount;
    }
}

/// Moves what is `wanted` out of `left`, as far as it is there. Neither keeps a limit of which
/// nothing is left.
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

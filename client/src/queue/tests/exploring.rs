//! What the explorers of shards and of routers share.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tokio::runtime::{Builder, Runtime};
use weirgate_shared::write::{LeaseChange, Settle, Update};
use weirgate_shared::{EpochMillis, LimitName, MilliTokens, Shard, WriteId};

use super::super::machine::Written;
use super::super::part::Portion;
use crate::session::Env;

/// Returns a runtime whose time is paused, for what draws from the seed of this thread.
pub(crate) fn runtime() -> Runtime {
    weirgate_store::seed_ids_of_thread();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How often each event happened, by its name.
#[derive(Debug, Default)]
pub(crate) struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub(crate) fn add(&mut self, event: &'static str, times: u64) {
        *self.0.entry(event).or_default() += times;
    }

    pub(crate) fn of(&self, event: &str) -> u64 {
        self.0.get(event).copied().unwrap_or_default()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (event, times) in other.0 {
            self.add(event, times);
        }
    }

    /// Checks that each of these events has happened.
    pub(crate) fn assert_all(&self, events: &[&str]) {
        let never: Vec<_> = events.iter().filter(|event| self.of(event) == 0).collect();
        assert!(never.is_empty(), "{never:?} never happen: {self:?}");
    }
}

/// Explores `SEEDS` seeds on all threads, as many as `count` by default, or `SEED` alone. Of many
/// seeds, each of the events happens.
pub(crate) fn run_seeds(count: u64, events: &[&str], explore: impl AsyncFn(u64) -> Counts + Sync) {
    let first = number("SEED");
    let end = first.map_or_else(|| number("SEEDS").unwrap_or(count), |seed| seed + 1);
    let next = AtomicU64::new(first.unwrap_or_default());
    let run = || {
        let (runtime, mut all) = (runtime(), Counts::default());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return all;
            }
            let seen = catch_unwind(AssertUnwindSafe(|| runtime.block_on(explore(seed))));
            let seen =
                seen.unwrap_or_else(|_| panic!("SEED={seed} fails: TRACE=1 shows its events"));
            all.merge(seen);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let mut all = Counts::default();
        for thread in threads {
            all.merge(thread.join().expect("a seed fails"));
        }
        all
    });
    println!("{all:?}");
    if first.is_none() {
        all.assert_all(events);
    }
}

/// Returns a portion by writes as a hold makes them. Returns the response to the last one.
pub(crate) fn roll_back(
    portion: &Portion,
    env: &Env,
    now: EpochMillis,
    mut apply: impl FnMut(&Update) -> Written,
) -> Written {
    let part = &portion.part;
    let delta = |(limit, amount): (&LimitName, &MilliTokens)| {
        let delta = part.returned_delta(&portion.limits, limit, *amount);
        (limit.clone(), delta)
    };
    let settle = Settle {
        key: &part.state.key,
        write_id: weirgate_store::random_id(),
        lease: part.lease.as_ref().map(|(id, _)| (id, LeaseChange::End)),
        amounts: part.amounts.iter().map(delta).collect(),
        acquires: -portion.acquires,
        roll: part.state.roll(env, now),
    };
    let is_held = |shard: &Shard| {
        let mut leases = shard.leases.iter().flatten();
        let holds = |(id, _): &(WriteId, _)| leases.any(|(known, _)| known == id);
        settle.has_limits(shard) && part.lease.as_ref().is_none_or(holds)
    };
    match apply(&settle.full(None)) {
        Written::ConditionFailed(Some(shard)) if is_held(&shard) => apply(&settle.capped(&shard)),
        written => written,
    }
}

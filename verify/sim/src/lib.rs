//! Weirgate in simulation: the real client, the real functions and the real AWS SDK over an
//! embedded DynamoDB, on one thread, on virtual time, from one seed. Every run of a seed is the
//! same. The same protocol is explored exhaustively as a [`model`].
//!
//! # Layout
//!
//! - `scenario`: [`Scenario`]: what a seed decides: buckets, fleet, and what goes wrong how often
//! - `fault`: [`fault::Kind`] of trouble, and what must happen, and how often it did
//! - `world`: what all of a run share: the table, the true time, the random generators, what was seen
//! - `network`: the network between a process and the table; where most goes wrong
//! - `fleet`, `caller`: processes and what their callers do; `operator`: what an operator does
//!   meanwhile; `functions`: the functions as Lambda runs them
//! - `clock`, `limiter`: a process's clock and its limiter; `hostile`: a tenant that writes what it likes under its own keys
//! - `cancel`: futures that are dropped, or stand still, at any await
//! - `ledger`: the responses to callers
//! - `quota`: quotas of a scenario, and a calendar of the checker's own
//! - `stored_shard`: shards as the table stores them; `stream_check`: checks each write by its
//!   record, `window_check` those of quotas; `resharding`: checks splits and merges
//! - `check`: compares the ledger with the table
//! - `settled`: checks after the last fault, with `settled::probes` for each bucket
//! - `freeze_check`: the state that a process uses after a freeze
//! - [`model`]: the protocol as a state machine, two clients and one limit
//! - `guards`: what to take out of the sources to see that it is missed

pub mod caller;
pub mod cancel;
pub mod check;
pub mod clock;
pub mod fault;
pub mod fleet;
pub mod freeze_check;
pub mod functions;
pub mod guards;
pub mod hostile;
pub mod ledger;
pub mod limiter;
pub mod model;
pub mod network;
pub mod operator;
pub mod quota;
mod resharding;
pub mod scenario;
pub mod settled;
mod stored_shard;
mod stream_check;
mod window_check;
pub mod world;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use fault::{Counts, Event, Kind};
use ledger::SharedLedger;
use scenario::Scenario;
use world::World;

/// The result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Seed of the run.
    pub seed: u64,
    /// Violations as text; empty if every invariant holds.
    pub violations: Vec<String>,
    /// Number of faults by kind.
    pub counts: Counts<Kind>,
    /// Number of events by kind.
    pub events: Counts<Event>,
    /// Requests that wrote, or tried to.
    pub writes: u64,
    /// Hash of everything that happened; two runs with the same events share it.
    pub hash: u64,
}

/// Runs a seed on its own runtime with virtual time. Prints what happens if `is_printed`.
pub fn run(seed: u64, is_printed: bool) -> Outcome {
    // Backoff delays and ids come from the thread's random generator.
    fastrand::seed(seed);
    weirgate_store::seed_ids_of_thread();
    weirgate_testkit::runtime().block_on(live(Scenario::of(seed), is_printed))
}

/// Runs seeds, each on its own thread, `threads` at a time. Calls `each` with every outcome; no
/// further seed begins after it returns false. A panic fails only its own seed, and becomes a
/// violation.
pub fn run_all(seeds: Range<u64>, threads: usize, each: impl FnMut(Outcome) -> bool + Send) {
    let next = AtomicU64::new(seeds.start);
    let each = Mutex::new((each, true));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let goes_on = each.lock().unwrap_or_else(PoisonError::into_inner).1;
            if seed >= seeds.end || !goes_on {
                return;
            }
            let thread =
                thread::Builder::new().name(format!("seed {seed}")).spawn(move || run(seed, false));
            let outcome = thread.expect("a thread starts").join();
            let panicked = |_| Outcome {
                seed,
                violations: vec!["panicked, see above".to_owned()],
                ..Outcome::default()
            };
            let mut each = each.lock().unwrap_or_else(PoisonError::into_inner);
            each.1 &= (each.0)(outcome.unwrap_or_else(panicked));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
}

async fn live(scenario: Scenario, is_printed: bool) -> Outcome {
    let seed = scenario.seed;
    let world = World::new(scenario, is_printed).await;
    world.note(|| format!("{:?}", world.scenario()));
    let ledger = SharedLedger::default();
    let mapping = functions::Mapping::new(&world);
    let (processes, mut mapping, (), ()) = tokio::join!(
        fleet::run(&world, &ledger),
        mapping.run(),
        functions::schedule(world.clone()),
        check::finality::read_often(&world)
    );
    settled::settle(&world, &mut mapping, &ledger, processes).await;
    freeze_check::check_after_freeze(&world).await;
    let (violations, counts, events) = (world.violations(), world.counts(), world.events());
    Outcome { seed, violations, counts, events, writes: world.writes(), hash: world.hash() }
}

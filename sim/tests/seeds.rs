//! Fixed seeds, the same every time; `make sim` runs more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use weirgate_sim::fault::{Counts, Kind};
use weirgate_sim::{guards, run};

const SEEDS: u64 = 200;

#[test]
fn i1_to_i7_hold_with_200_seeds_and_every_kind_of_trouble() {
    let next = AtomicU64::new(0);
    let work = || {
        let mut counts = Counts::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return counts;
            }
            let outcome = run(seed, false);
            let replay = format!("replay it with: make sim ARGS='--seed {seed}'");
            assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}\n{replay}", outcome.violations);
            counts.merge(&outcome.counts);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let counts = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Counts::default();
        for thread in threads {
            all.merge(&thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    for kind in Kind::ALL {
        assert!(counts.of(kind) > 0, "{kind:?} never happened:\n{counts}");
    }
}

#[test]
fn a_seed_runs_the_same_every_time() {
    for seed in 0..8 {
        assert_eq!(run(seed, false).hash, run(seed, false).hash, "seed {seed}");
    }
}

#[test]
fn every_guard_is_where_the_table_says() {
    for text in guards::guards().into_iter().flat_map(|guard| guard.texts) {
        let source = std::fs::read_to_string(format!("{}/../{}", env!("CARGO_MANIFEST_DIR"), text.file)).unwrap();
        let removed = text.removed(&source);
        assert!(removed.is_some_and(|removed| removed != source), "{:?} is not there once: {}", text.from, text.file);
    }
}

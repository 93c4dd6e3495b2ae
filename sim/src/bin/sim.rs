//! Runs seeds, and prints those that fail.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use weirgate_sim::fault::Counts;
use weirgate_sim::{Outcome, run};

/// Runs Weirgate in simulation: each seed is a fleet, its functions, and what goes wrong, and runs the same every time.
#[derive(Debug, Parser)]
#[command(name = "sim")]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Runs just this seed, and prints all that happens.
    #[arg(long)]
    seed: Option<u64>,
    /// Runs every seed twice, and fails if not the same happens.
    #[arg(long)]
    twice: bool,
    /// Goes on after the first seed that fails.
    #[arg(long)]
    all: bool,
    /// Threads, each with a seed at a time; as many as the machine has if not said.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        let outcome = run(seed, true);
        report(&outcome);
        return if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (next, total, failed) =
        (AtomicU64::new(args.from), Mutex::new((0, 0, Counts::default())), Mutex::new(VecDeque::new()));
    let end = args.from.saturating_add(args.seeds);
    let threads = args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let stops = !args.all && !failed.lock().expect("no thread panics").is_empty();
            if seed >= end || stops {
                return;
            }
            let mut outcome = thread::Builder::new();
            outcome = outcome.name(format!("seed {seed}"));
            let twice = args.twice;
            // A thread of its own for each: a seed that panics fails alone.
            let outcome = thread::scope(|scope| {
                let run = move || {
                    let mut first = run(seed, false);
                    if twice && run(seed, false).hash != first.hash {
                        first.violations.push("the seed does not run the same twice".to_owned());
                    }
                    first
                };
                outcome.spawn_scoped(scope, run).expect("a thread starts").join()
            });
            let mut total = total.lock().expect("no thread panics");
            total.0 += 1;
            match outcome {
                Ok(outcome) => {
                    total.1 += outcome.writes;
                    total.2.merge(&outcome.counts);
                    if !outcome.violations.is_empty() {
                        report(&outcome);
                        failed.lock().expect("no thread panics").push_back(seed);
                    }
                }
                Err(_) => {
                    println!("seed {seed} panicked\n  replay it with: make sim ARGS='--seed {seed}'");
                    failed.lock().expect("no thread panics").push_back(seed);
                }
            }
            if total.0 % 1000 == 0 {
                println!("{} seeds", total.0);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let (seeds, writes, counts) = *total.lock().expect("no thread panics");
    let failed = failed.into_inner().expect("no thread panics");
    println!(
        "\n{seeds} seeds, {writes} writes, {} failed {failed:?}\n\nwhat went wrong, how often:\n{counts}",
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(outcome: &Outcome) {
    let seed = outcome.seed;
    for violation in outcome.violations.iter().take(5) {
        println!("seed {seed}: {violation}");
    }
    if !outcome.violations.is_empty() {
        println!("  replay it with: make sim ARGS='--seed {seed}'");
    }
}

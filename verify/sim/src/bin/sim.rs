//! Runs seeds and prints those that fail.

use std::process::ExitCode;
use std::thread;

use clap::Parser;
use weirgate_sim::fault::Counts;
use weirgate_sim::{Outcome, run, run_all};

/// Runs Weirgate in simulation. A seed decides the fleet, its functions and the faults; every run
/// of it is the same.
#[derive(Debug, Parser)]
#[command(name = "sim")]
struct Args {
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Runs only this seed, and prints everything that happens.
    #[arg(long)]
    seed: Option<u64>,
    /// Continues after the first seed that fails.
    #[arg(long)]
    all: bool,
    /// Number of threads, each with one seed at a time; default: one per CPU.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        let outcome = run(seed, true);
        report(&outcome);
        println!("seed {seed} ran as {:016x}", outcome.hash);
        return if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let threads =
        args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let (mut seeds, mut writes, mut failed) = (0, 0, vec![]);
    let (mut counts, mut events) = (Counts::default(), Counts::default());
    run_all(args.from..args.from.saturating_add(args.seeds), threads, |outcome| {
        seeds += 1;
        writes += outcome.writes;
        counts.merge(&outcome.counts);
        events.merge(&outcome.events);
        if seeds % 1000 == 0 {
            println!("{seeds} seeds");
        }
        if outcome.violations.is_empty() {
            return true;
        }
        report(&outcome);
        failed.push(outcome.seed);
        args.all
    });
    failed.sort_unstable();
    println!("\n{seeds} seeds, {writes} writes, {} failed {failed:?}", failed.len());
    println!("\nwhat went wrong, how often:\n{counts}\nwhat happened, how often:\n{events}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(outcome: &Outcome) {
    let seed = outcome.seed;
    for violation in &outcome.violations {
        println!("seed {seed}: {violation}");
    }
    if !outcome.violations.is_empty() {
        println!("  replay it with: make sim ARGS='--seed {seed}'");
    }
}

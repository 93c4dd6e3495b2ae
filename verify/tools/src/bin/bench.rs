//! `make bench`: measures, prints each number beside its target, and writes `docs/benchmarks.md`.
//! With names as arguments it measures those parts, and writes nothing. With `--check` it compares
//! what it measured with the committed run, and writes nothing.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use std::{fs, io};

use peak_alloc::PeakAlloc;
use weirgate_tools::bench::aggregator::Memory;
use weirgate_tools::bench::comparison::compare;
use weirgate_tools::bench::machine::Machine;
use weirgate_tools::bench::parts::{PARTS, Part, measured};
use weirgate_tools::bench::run::Run;
use weirgate_tools::bench::{edge, page};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MEMORY: Memory = Memory {
    reset: || ALLOCATOR.reset_peak_usage(),
    current: || ALLOCATOR.current_usage(),
    peak: || ALLOCATOR.peak_usage(),
};

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [edge, endpoint] = &arguments[..]
        && edge == "--edge"
    {
        edge::process(endpoint).await;
        return ExitCode::SUCCESS;
    }
    let is_check = arguments.first().is_some_and(|first| first == "--check");
    if is_check {
        arguments.remove(0);
    }
    match run(is_check, &arguments).await {
        Ok(code) => code,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::from(2)
        }
    }
}

async fn run(is_check: bool, names: &[String]) -> Result<ExitCode, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let data = root.join("docs/benchmarks.json");
    let named: Result<Vec<_>, _> = names.iter().map(|name| Part::named(name)).collect();
    let named = named?;
    let parts = if named.is_empty() { &PARTS[..] } else { &named };
    // Before minutes of measuring.
    let committed = is_check.then(|| Run::read(&data)).transpose()?;
    let started = Instant::now();
    let rows = measured(parts, MEMORY).await;
    let now = Run {
        machine: Machine::this(),
        minutes: started.elapsed().as_secs().div_ceil(60),
        rows,
    };
    if let Some(committed) = committed {
        return Ok(checked(&committed, &now, named.is_empty()));
    }
    if named.is_empty() {
        written(&root, &data, &now)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what is worse than the committed run.
fn checked(committed: &Run, now: &Run, has_all_parts: bool) -> ExitCode {
    let comparison = compare(committed, now, has_all_parts);
    let (before, after) = (&committed.machine, &now.machine);
    if !before.is_like(after) {
        println!(
            "another machine: {}, {} cores; the committed run is of {}, {} cores",
            after.processor, after.cores, before.processor, before.cores
        );
    }
    for id in &comparison.unknown {
        println!("not in the committed run: {id}");
    }
    for regression in &comparison.regressions {
        println!("worse: {regression}");
    }
    let (compared, worse) = (comparison.compared, comparison.regressions.len());
    println!(
        "{compared} numbers compared with the run of {}, {worse} worse beyond noise",
        before.measured_on
    );
    if worse == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn written(root: &Path, data: &Path, now: &Run) -> Result<(), String> {
    let said = |error: io::Error| error.to_string();
    now.write(data).map_err(said)?;
    let path = root.join("docs/benchmarks.md");
    let text = page::written(&fs::read_to_string(&path).map_err(said)?, now)?;
    fs::write(&path, text).map_err(said)?;
    println!("written: docs/benchmarks.md and its data");
    Ok(())
}

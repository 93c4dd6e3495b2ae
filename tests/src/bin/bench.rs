//! `make bench`: measures, prints each number beside its target, and writes `docs/benchmarks.json`
//! and the table of `docs/benchmarks.md`. With names as arguments it measures those parts, and
//! writes nothing. With `--check` it compares with the committed run, and writes nothing.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use weirgate_tests::bench::edge;
use weirgate_tests::bench::parts::measured;
use weirgate_tests::bench::run::{Machine, Run};
use weirgate_tests::page::with_part;

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
    let parts = arguments.split_off(usize::from(is_check));
    match run(is_check, &parts).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether nothing is worse than it was.
async fn run(is_check: bool, parts: &[String]) -> Result<bool, String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let (data, page) = (docs.join("benchmarks.json"), docs.join("benchmarks.md"));
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let committed = fs::read_to_string(&data).map_err(|error| said(&error))?;
    let committed: Run = serde_json::from_str(&committed).map_err(|error| said(&error))?;
    let started = Instant::now();
    let rows = measured(parts, &committed).await?;
    let now =
        Run { machine: Machine::this(), minutes: started.elapsed().as_secs().div_ceil(60), rows };
    if let (true, Some(missing)) = (parts.is_empty(), now.lacks(&committed)) {
        return Err(format!("nothing measures {missing}"));
    }
    if is_check {
        let worse = now.worse_than(&committed);
        worse.iter().for_each(|worse| println!("worse: {worse}"));
        let (before, after) = (&committed.machine, &now.machine);
        println!(
            "{} numbers are worse beyond noise than on {}, {}, {} cores; this is {}, {} cores",
            worse.len(),
            before.measured_on,
            before.processor,
            before.cores,
            after.processor,
            after.cores
        );
        return Ok(worse.is_empty());
    }
    if parts.is_empty() {
        let text = fs::read_to_string(&page).map_err(|error| said(&error))?;
        let text = with_part(&text, "calls", &now.table()?)?;
        fs::write(&page, text).map_err(|error| said(&error))?;
        let text = now.text().map_err(|error| said(&error))?;
        fs::write(&data, text).map_err(|error| said(&error))?;
    }
    Ok(true)
}

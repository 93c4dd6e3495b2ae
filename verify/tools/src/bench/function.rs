//! The functions' binaries: their sizes, how long each takes from start to its first poll, and what
//! memory a large batch costs.

use std::path::Path;
use std::process::Command;

use weirgate_testkit::Dynamo;
use weirgate_testkit::batches::{batch, event};
use weirgate_testkit::lambda::invoke;
use weirgate_testkit::server::serve;

use super::row::Row;
use crate::number::Unit;
use crate::number::count;

const STARTS: usize = 20;

/// Returns the rows of all binaries, built by `make build`.
///
/// # Panics
/// If one is not there, or does not behave as a function.
pub async fn rows() -> Vec<Row> {
    let batch = event(&batch(1_000, 1_000).await.1);
    let schedule = include_str!("../../../../events/reconciler-schedule.json");
    let mut rows = vec![];
    for (function, what, event) in [
        ("aggregator", "1,000 records", &*batch),
        ("reconciler", "a run on an empty table", schedule),
    ] {
        rows.extend(measure(function, what, event).await);
    }
    rows
}

/// Returns the size and the start of a function, and its peak memory for `event`, which is `what`.
async fn measure(function: &str, what: &str, event: &str) -> Vec<Row> {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../target/functions/{function}/bootstrap"));
    let mut rows = sizes(function, &binary);
    let endpoint = serve(&Dynamo::new().await);
    let (mut starts, mut peaks) = (vec![], vec![]);
    for _ in 0..STARTS {
        let invoked = invoke(Command::new(&binary), &endpoint, event).await;
        starts.push(invoked.start.as_secs_f64());
        peaks.push(count(invoked.peak_kib) * 1024.0);
    }
    let row = |name: &str, what: String, unit, rounds: &[f64]| {
        Row::new(format!("function/{function}/{name}"), what, unit, rounds)
    };
    let start = format!("{function}: start to first poll");
    rows.push(row("start", start, Unit::Seconds, &starts).at_most(0.01));
    let memory = row(
        "memory",
        format!("{function}: peak memory for {what}"),
        Unit::Memory,
        &peaks,
    );
    rows.push(memory.at_most(32.0 * 1_048_576.0).within(5.0));
    rows
}

fn sizes(function: &str, binary: &Path) -> Vec<Row> {
    let bytes = std::fs::metadata(binary);
    let bytes = bytes.expect("run `make build` first").len();
    let gzip = Command::new("gzip").args(["-9", "-c"]).arg(binary).output();
    let zipped = gzip.expect("gzip is there").stdout.len();
    let zipped = u64::try_from(zipped).expect("a size");
    let row = |name: &str, text: &str, bytes: u64| {
        let id = format!("function/{function}/{name}");
        Row::new(
            id,
            format!("{function}: {text}"),
            Unit::Bytes,
            &[count(bytes)],
        )
    };
    vec![
        row("zipped", "binary for this machine, gzipped", zipped).at_most(2_500_000.0),
        row("size", "binary for this machine", bytes),
    ]
}

//! The functions' binaries: their sizes, how long each takes from start to its first poll, and what
//! memory a large batch costs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Row, print};
use weirgate_testkit::Dynamo;
use weirgate_testkit::batches::{batch, event};
use weirgate_testkit::lambda::invoke;
use weirgate_testkit::server::serve;

const STARTS: usize = 20;

/// Prints the rows of both binaries, built by `make build`.
///
/// # Panics
/// If one is not there, or does not behave as a function.
pub async fn run() {
    let batch = event(&batch(1_000, 1_000).await.1);
    let peak = measure("aggregator", &batch).await;
    print(&Row {
        what: "peak memory for 1,000 records",
        measured: format!(
            "{} MiB ({} KB of event)",
            peak.div_ceil(1024),
            batch.len() / 1000
        ),
        target: "at most 32 MiB",
        is_met: peak <= 32 * 1024,
    });
    measure(
        "reconciler",
        include_str!("../../../events/reconciler-schedule.json"),
    )
    .await;
}

/// Prints the size and the start of a function. Returns its peak memory in KiB for `event`.
async fn measure(function: &str, event: &str) -> u64 {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../target/functions/{function}/bootstrap"));
    print_size(function, &binary);
    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let (mut starts, mut peaks) = (vec![], vec![]);
    for _ in 0..STARTS {
        let invoked = invoke(Command::new(&binary), &endpoint, event).await;
        starts.push(invoked.start);
        peaks.push(invoked.peak_kib);
    }
    starts.sort();
    let start = starts[STARTS / 2];
    print(&Row {
        what: &format!("{function} start to first poll, median of {STARTS}"),
        measured: format!("{start:.1?}"),
        target: "at most 10 ms",
        is_met: start <= Duration::from_millis(10),
    });
    peaks.into_iter().max().expect("some starts")
}

fn print_size(function: &str, binary: &Path) {
    let bytes = std::fs::metadata(binary)
        .expect("run `make build` first")
        .len();
    let zipped = Command::new("gzip")
        .args(["-9", "-c"])
        .arg(binary)
        .output()
        .expect("gzip is there")
        .stdout
        .len();
    let zipped = u64::try_from(zipped).expect("a size");
    let mb = |bytes: u64| format!("{}.{:02} MB", bytes / 1_000_000, bytes % 1_000_000 / 10_000);
    print(&Row {
        what: &format!("{function} binary, and gzipped"),
        measured: format!("{} and {}", mb(bytes), mb(zipped)),
        target: "gzipped at most 2.5 MB; what is deployed is arm64",
        is_met: zipped <= 2_500_000,
    });
}

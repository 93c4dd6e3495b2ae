//! The deployed binary: its size, how long it takes from start to its first poll, and what memory a
//! large batch costs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::server::serve;
use super::{Row, print};
use crate::Dynamo;
use crate::batches::{batch, event};
use crate::lambda::invoke;

const STARTS: usize = 20;

/// Prints the rows of the aggregator's binary, built by `make build`.
///
/// # Panics
/// If it is not there, or does not behave as a function.
pub async fn run() {
    let binary =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/functions/aggregator/bootstrap");
    let bytes = std::fs::metadata(&binary)
        .expect("run `make build` first")
        .len();
    let zipped = Command::new("gzip")
        .args(["-9", "-c"])
        .arg(&binary)
        .output()
        .expect("gzip is there")
        .stdout
        .len();
    let zipped = u64::try_from(zipped).expect("a size");
    let mb = |bytes: u64| format!("{}.{:02} MB", bytes / 1_000_000, bytes % 1_000_000 / 10_000);
    print(&Row {
        what: "function binary, and gzipped",
        measured: format!("{} and {}", mb(bytes), mb(zipped)),
        target: "gzipped at most 2.5 MB; what is deployed is arm64",
        is_met: zipped <= 2_500_000,
    });

    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let event = event(&batch(1_000, 1_000).await.1);
    let (mut starts, mut peaks) = (vec![], vec![]);
    for _ in 0..STARTS {
        let invoked = invoke(Command::new(&binary), &endpoint, &event).await;
        starts.push(invoked.start);
        peaks.push(invoked.peak_kib);
    }
    starts.sort();
    let (start, peak) = (
        starts[STARTS / 2],
        *peaks.iter().max().expect("some starts"),
    );
    print(&Row {
        what: "function start to first poll, median of 20",
        measured: format!("{start:.1?}"),
        target: "at most 10 ms",
        is_met: start <= Duration::from_millis(10),
    });
    print(&Row {
        what: "peak memory for 1,000 records",
        measured: format!(
            "{} MiB ({} KB of event)",
            peak.div_ceil(1024),
            event.len() / 1000
        ),
        target: "at most 32 MiB",
        is_met: peak <= 32 * 1024,
    });
}

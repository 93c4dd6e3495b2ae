//! The functions' binaries: their sizes, how long each takes from start to its first poll, and what
//! memory a large batch costs.

use std::path::Path;
use std::process::Command;

use weirgate_testkit::Dynamo;
use weirgate_testkit::batches::{batch, event};
use weirgate_testkit::lambda::invoke;
use weirgate_testkit::server::serve;

use super::row::Rounds;
use crate::number::count;

const STARTS: usize = 20;

/// Returns the rows of all binaries, built by `make build`.
pub async fn rows() -> Vec<Rounds> {
    let batch = event(&batch(1_000, 1_000).await.1);
    let schedule = include_str!("../../../events/reconciler-schedule.json");
    let mut rows = vec![];
    for (function, event) in [("aggregator", &*batch), ("reconciler", schedule)] {
        let row = |name: &str, rounds| (format!("function/{function}/{name}"), rounds);
        let binary = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../target/functions/{function}/bootstrap"));
        let bytes = std::fs::metadata(&binary).expect("run `make build` first");
        let gzip = Command::new("gzip").args(["-9", "-c"]).arg(&binary).output();
        let zipped = gzip.expect("gzip is there").stdout.len();
        let zipped = u64::try_from(zipped).expect("a size");
        rows.push(row("zipped", vec![count(zipped)]));
        rows.push(row("size", vec![count(bytes.len())]));
        let endpoint = serve(&Dynamo::new().await);
        let (mut starts, mut peaks) = (vec![], vec![]);
        for _ in 0..STARTS {
            let invoked = invoke(Command::new(&binary), &endpoint, event).await;
            starts.push(invoked.start.as_secs_f64());
            peaks.push(count(invoked.peak_kib) * 1024.0);
        }
        rows.push(row("start", starts));
        rows.push(row("memory", peaks));
    }
    rows
}

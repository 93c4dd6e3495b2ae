//! One hot bucket of many clients, on virtual time; and callers that compete for the tokens of
//! eight shards.

use std::ops::RangeInclusive;
use std::time::Duration;

use weirgate::Limit;

use super::{Row, print};
use weirgate_testkit::heat::{Load, growth, run};
use weirgate_testkit::{Limits, heat};

/// Prints the rows.
///
/// # Panics
/// If a runtime cannot be made.
pub async fn run_all() {
    // Virtual time needs a runtime of its own.
    let rows = tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        let runtime = runtime.expect("a runtime");
        (
            runtime.block_on(run(&hot(), 3)),
            runtime.block_on(run(&contended(), 0)),
        )
    });
    let (hot, contended) = rows.await.expect("the runs end");
    print_hot(&hot);
    print_contended(&contended);
}

fn hot() -> Load {
    Load {
        clients: 1000,
        calls_per_second: 10_000,
        lasts: Duration::from_secs(22),
        limit: Limit::per_minute("rpm", 1_000_000).expect("a limit"),
        shards: 1,
        partitions: Limits::default(),
        enough: u32::MAX,
        seed: 1,
    }
}

/// Twice as much is asked as there is.
fn contended() -> Load {
    Load {
        clients: 64,
        calls_per_second: 1_600,
        lasts: Duration::from_secs(25),
        limit: Limit::per_second("rpm", 800).expect("a limit"),
        shards: 8,
        partitions: Limits::default(),
        enough: u32::MAX,
        seed: 1,
    }
}

fn print_hot(report: &heat::Report) {
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let at_15 = report.throttled_share(14, 15);
    let after = report.throttled_share(15, report.seconds.len());
    print(&Row {
        what: "10,000 acquires/s of 1,000 clients: throttled",
        measured: format!(
            "{} of writes in second 15, {} after",
            percent(at_15),
            percent(after)
        ),
        target: "under 5 % within 15 s, under 0.5 % after",
        is_met: at_15 < 0.05 && after < 0.005,
    });
    let most = report.shards.last().copied().unwrap_or_default();
    print(&Row {
        what: "the same: shards at rest",
        measured: format!("{most}, first seen in second {:?}", growth(&report.shards)),
        target: "a power of two, at most 20",
        is_met: most.is_power_of_two() && (10..=20).contains(&most),
    });
    print(&Row {
        what: "the same: granted, and counted",
        measured: format!(
            "{} granted, {} refused, {} counted",
            report.granted, report.refused, report.counted.0
        ),
        target: "as many counted as granted",
        is_met: report.counted.0 == report.granted,
    });
    print(&Row {
        what: "the same: shards after the load",
        measured: format!("{:?} after each run of the reconciler", report.cooled),
        target: "1 within 3 runs",
        is_met: report.cooled.last() == Some(&1),
    });
}

#[allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a ratio for people to read"
)]
fn print_contended(report: &heat::Report) {
    const FULL: RangeInclusive<f64> = 98.0..=100.0;
    let share = report.granted as f64 * 1000.0 / report.entitled.0 as f64 * 100.0;
    let writes: u64 = report.seconds.iter().map(|second| second.writes).sum();
    print(&Row {
        what: "64 clients on 8 shards, twice as much asked",
        measured: format!(
            "{share:.2} % of the entitled, {:.2} writes per admitted",
            writes as f64 / report.granted as f64
        ),
        target: "98 % to 100 %",
        is_met: FULL.contains(&share),
    });
}

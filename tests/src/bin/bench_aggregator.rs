//! The aggregator's part of the benchmark, alone.

use peak_alloc::PeakAlloc;
use weirgate_tests::bench::aggregator::{Memory, run};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    run(Memory {
        reset: || ALLOCATOR.reset_peak_usage(),
        current: || ALLOCATOR.current_usage(),
        peak: || ALLOCATOR.peak_usage(),
    })
    .await;
}

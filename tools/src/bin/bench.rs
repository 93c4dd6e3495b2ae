//! `make bench`: measures, and prints each number beside its target. With names as arguments, only
//! those parts.

use peak_alloc::PeakAlloc;
use weirgate_tools::bench::{
    acquire, aggregator, edge, function, heat, local, peer, prefetch, reconciler,
};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const PARTS: [&str; 9] = [
    "acquire",
    "prefetch",
    "peer",
    "edge",
    "aggregator",
    "function",
    "reconciler",
    "heat",
    "local",
];

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [part, endpoint] = &arguments[..]
        && part == "edge"
    {
        return edge::process(endpoint).await;
    }
    if let Some(unknown) = arguments
        .iter()
        .find(|part| !PARTS.contains(&part.as_str()))
    {
        eprintln!("bench: there is no part {unknown:?}, must be one of {PARTS:?}");
        std::process::exit(2);
    }
    let wanted =
        |part: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == part);
    if wanted("acquire") {
        acquire::run().await;
    }
    if wanted("peer") {
        peer::run().await;
    }
    if wanted("prefetch") {
        prefetch::run().await;
    }
    if wanted("edge") {
        edge::run().await;
    }
    if wanted("aggregator") {
        aggregator::run(aggregator::Memory {
            reset: || ALLOCATOR.reset_peak_usage(),
            current: || ALLOCATOR.current_usage(),
            peak: || ALLOCATOR.peak_usage(),
        })
        .await;
    }
    if wanted("function") {
        function::run().await;
    }
    if wanted("reconciler") {
        reconciler::run().await;
    }
    if wanted("heat") {
        heat::run_all().await;
    }
    if wanted("local") {
        local::run().await;
    }
}

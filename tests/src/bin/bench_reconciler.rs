//! The reconciler's rows of the benchmark table.

#[tokio::main(flavor = "current_thread")]
async fn main() {
    weirgate_tests::bench::reconciler::run().await;
}

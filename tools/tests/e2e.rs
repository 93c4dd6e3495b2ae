//! The demo's path, shortened: MiniStack, the real `sam build` and `sam deploy`, the real client.

use std::time::Duration;

use weirgate_tools::demo::{self, Options};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the tools that `make tools` installs; run by `make e2e`"]
async fn a_deployed_stack_counts_every_token_once_and_gives_back_what_a_killed_holder_had() {
    let options = Options {
        drive: Duration::from_secs(15),
        port: None,
        holder: env!("CARGO_BIN_EXE_demo").into(),
    };
    let report = demo::run(&options, |line| println!("{line}"))
        .await
        .expect("the demo runs");
    println!("{report}");
    assert!(report.is_exact(), "usage differs from what was consumed");
    assert!(
        report.is_good(),
        "the reconciler did not give the slots back"
    );
    assert!(report.records > 0, "the aggregator read nothing");
    assert!(report.granted > 0);
}

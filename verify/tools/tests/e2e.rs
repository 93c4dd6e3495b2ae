//! The demo's path, shortened: MiniStack, the real `sam build` and `sam deploy`, the real client.
//! Then a release of the same functions, deployed as a newcomer does it.

use std::time::Duration;

use serde_json::json;
use weirgate_tools::demo::{self, Options, Release, Stack};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the tools that `make tools` installs; run by `make e2e`"]
async fn a_deployed_stack_counts_every_token_once_and_gives_back_what_a_killed_holder_had() {
    let options = Options {
        drive: Duration::from_secs(15),
        port: None,
        holder: env!("CARGO_BIN_EXE_demo").into(),
    };
    let say = |line: &str| println!("{line}");
    let stack = Stack::start(options.port, say).await.expect("it deploys");
    let report = demo::run_on(&stack, &options, say)
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
    demo::check_options(&stack, say)
        .await
        .expect("the archive and a second stack work");
    a_release_is_deployed_with_the_aws_cli_alone(&stack).await;
}

async fn a_release_is_deployed_with_the_aws_cli_alone(stack: &Stack) {
    let release = Release::deploy(stack, |line| println!("{line}"))
        .await
        .expect("the commands of docs/deployment.md deploy it");
    let table = release.output("TableName").await.expect("outputs");
    let own = stack.output("TableName").expect("outputs");
    assert!(!table.is_empty() && table != own, "{table} {own}");

    for function in ["aggregator", "reconciler"] {
        assert_eq!(release.runs_its_zip(function).await, Ok(true), "{function}");
    }
    let answer = release.call("aggregator", "aggregator-modify.json").await;
    assert_eq!(answer, Ok(json!({"batchItemFailures": []})));
    let answer = release.call("reconciler", "reconciler-schedule.json").await;
    let answer = answer.expect("it answers");
    assert_eq!(
        (&answer["errors"], &answer["buckets_seen"]),
        (&json!([]), &json!(0))
    );
    println!("release {VERSION}: both functions answer, on the table {table}");
}

//! What was used already, and what was not used after all.

use std::time::Duration;

use crate::fixture::*;

const TPD: [(&str, &str); 2] = [("tenant", "a"), ("model", "x")];
const USED: [(&str, &str); 2] = [("used", "a"), ("model", "x")];

#[tokio::test]
async fn a_rule_that_settles_debits_into_debt_counts_usage_and_never_denies() {
    let agent = Agent::new(RULES).await;
    for used in [700, 700, 5_000] {
        let answer = agent.call(request([hits(&USED, used)])).await.unwrap();
        assert_eq!(codes(&answer), [Code::Ok]);
    }
    let (consumed, acquires) = agent.counted("a", "llm/x", "tpd");
    assert_eq!(
        (consumed, acquires),
        (6_400, 0),
        "the requests were counted when they asked"
    );
    let denied = agent.call(request([hits(&TPD, 1)])).await.unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(
        header(&denied, "retry-after"),
        Some("466647"),
        "5,401 of 1,000 a day"
    );
}

#[tokio::test]
async fn a_refund_gives_back_at_most_to_the_capacity_and_lowers_the_usage() {
    let agent = Agent::new(RULES).await;
    agent.call(request([hits(&TPD, 900)])).await.unwrap();
    let answer = agent.call(request([refund(&TPD, 300)])).await.unwrap();
    assert_eq!(codes(&answer), [Code::Ok]);
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 400);
    assert_eq!(agent.counted("a", "llm/x", "tpd"), (600, 1));
    agent.call(request([refund(&TPD, 900)])).await.unwrap();
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 1_000);
    let all = agent.call(request([hits(&TPD, 1_000)])).await.unwrap();
    assert_eq!(
        all.overall_code(),
        Code::Ok,
        "this process sees what came back"
    );
}

#[tokio::test]
async fn a_refund_of_a_bucket_that_nothing_was_taken_from_changes_nothing() {
    let agent = Agent::new(RULES).await;
    let answer = agent.call(request([refund(&TPD, 300)])).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 1_000);
    assert!(
        agent
            .dynamo
            .item("default/BUCKET#a#llm/x#0", "#STATE")
            .is_null()
    );
}

#[tokio::test]
async fn charges_and_refunds_of_one_call_after_the_response_all_count() {
    let agent = Agent::new(RULES).await;
    agent.call(request([hits(&TPD, 800)])).await.unwrap();
    let _ = agent.dynamo.take_operations();
    let settle = request([
        refund(&TPD, 800),
        hits(&USED, 950),
        descriptor(&[("tenant", "a")]),
    ]);
    let answer = agent.call(settle).await.unwrap();
    assert_eq!(codes(&answer), [Code::Ok, Code::Ok, Code::Ok]);
    let writes = agent.dynamo.take_operations()["UpdateItem"];
    assert_eq!(writes, 2, "the estimate and the usage are one write");
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 50);
    assert_eq!(agent.counted("a", "llm/x", "tpd"), (950, 1));
    assert_eq!(agent.left("a", "api", "rpd").await, 9);
}

#[tokio::test]
async fn what_was_used_is_debited_also_if_the_rest_of_the_call_is_denied() {
    let agent = Agent::new(RULES).await;
    let answer = agent
        .call(request([hits(&[("tenant", "a")], 11), hits(&USED, 300)]))
        .await;
    assert_eq!(codes(&answer.unwrap()), [Code::OverLimit, Code::Ok]);
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 700);
}

#[tokio::test]
async fn a_report_is_written_although_its_caller_has_left() {
    // A report reads and then writes, each half a second.
    let agent = Agent::slow(Duration::from_millis(500)).await;
    let report = agent.call_within(request([hits(&USED, 500)]), Duration::from_millis(300));
    assert_eq!(report.await.unwrap().overall_code(), Code::Ok);
    assert!(agent.dynamo.items().is_empty(), "the answer came first");
    // The gate counts it until it is written.
    agent.decider.gate.close_and_drain().await;
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 500);
}

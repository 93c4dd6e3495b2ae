//! What was used already, and what was not used after all.

use std::time::Duration;

use weirgate::Builder;
use weirgate_agent::rls::Options;

use super::fixture::*;

const TPD: [(&str, &str); 2] = [("tenant", "a"), ("model", "x")];
const USED: [(&str, &str); 2] = [("used", "a"), ("model", "x")];

#[tokio::test]
async fn a_report_is_written_although_its_caller_has_left() {
    // A report reads and then writes, each half a second.
    let agent = Agent::slow(Duration::from_millis(500)).await;
    let report = agent.call_within(request([hits(&USED, 500)]), Duration::from_millis(300));
    assert_eq!(report.await.unwrap().overall_code(), Code::Ok);
    assert!(agent.dynamo.items().is_empty(), "the answer came first");
    // The gate counts it until it is written.
    agent.gated.settling.close_and_drain().await;
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 500);
}

#[tokio::test]
async fn a_call_without_a_decision_is_not_retried_once_its_reports_are_written() {
    let agent = Agent::slow(Duration::from_millis(500)).await;
    let both = request([hits(&USED, 500), descriptor(&[("tenant", "a")])]);
    let answer = agent.call_within(both, Duration::from_millis(100)).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Aborted, "{status}");
    assert!(status.message().contains("do not repeat it"), "{status}");
    agent.gated.settling.close_and_drain().await;
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 500);
}

#[tokio::test]
async fn a_call_with_more_reports_than_may_be_in_flight_writes_none() {
    let agent = Agent::new(RULES).await;
    // One of its two reports could enter.
    let held: Vec<_> = (0..99).map(|_| agent.gated.settling.enter(0).unwrap()).collect();
    let other = [("used", "b"), ("model", "x")];
    let both = request([hits(&USED, 500), hits(&other, 500)]);
    let status = agent.call(both).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    drop(held);
    agent.gated.settling.close_and_drain().await;
    assert!(agent.dynamo.items().is_empty());
}

#[tokio::test]
async fn a_report_that_failed_is_not_retried() {
    let patient = Options { timeout: Duration::from_secs(60) };
    let impatient = |builder: Builder| builder.timeout(Duration::from_millis(50));
    let agent = Agent::with(RULES, patient, impatient).await;
    agent.dynamo.fail_when(|_| Some(weirgate_testkit::Fault::ServerError));
    let answer = agent.call(request([hits(&USED, 500)])).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Aborted, "{status}");
}

/// Reports and refunds of more than a limit can have, by the descriptor, by the request, and through
/// Kuadrant's calls. Each is refused with its amount, its bound and a remedy, and the others count.
#[tokio::test]
async fn an_absurd_report_is_refused_and_changes_nothing_of_the_others() {
    let amounts = [30_501, 1_000_000_000_000, 1_000_000_000_001, 1 << 62, u64::MAX];
    for amount in amounts {
        let agent = Agent::new(RULES).await;
        agent.call(request([hits(&TPD, 500)])).await.unwrap();
        // 30 days of 1,000.
        let bound = if amount > 1_000_000_000_000 { "1000000000000" } else { "30000" };
        for absurd in [hits(&USED, amount), refund(&TPD, amount)] {
            let is_refund = absurd.is_negative_hits;
            let status = agent.call(request([absurd.clone()])).await.unwrap_err();
            let text = status.message();
            assert!(text.contains(&amount.to_string()), "{text}");
            assert!(is_refund || text.contains(bound), "{text}");
            assert!(
                text.contains("report what was used") || text.contains("give back at most"),
                "{text}"
            );
            assert_eq!(agent.left("a", "llm/x", "tpd").await, 500, "{amount}");
            // Beside it, a report of another bucket counts, and a question is decided.
            let other = [("used", "b"), ("model", "x")];
            let both = request([absurd.clone(), hits(&other, 10)]);
            agent.call(both).await.unwrap_err();
            let asked = request([absurd.clone(), descriptor(&[("tenant", "a")])]);
            assert_eq!(agent.call(asked).await.unwrap().overall_code(), Code::Ok);
            let denied = request([absurd, hits(&TPD, 501)]);
            assert_eq!(agent.call(denied).await.unwrap().overall_code(), Code::OverLimit);
        }
        assert_eq!(agent.left("b", "llm/x", "tpd").await, 980);
        assert_eq!(agent.left("a", "api", "rpd").await, 8);
        // An estimate without its usage stays taken, in whatever order they come.
        for settle in
            [[refund(&TPD, 500), hits(&USED, amount)], [hits(&USED, amount), refund(&TPD, 500)]]
        {
            agent.call(request(settle)).await.unwrap_err();
            assert_eq!(agent.left("a", "llm/x", "tpd").await, 500, "{amount}");
        }
        let answer = agent.call(request([hits(&USED, 30_000)])).await.unwrap();
        assert_eq!(codes(&answer), [Code::Ok], "the bound itself");
    }
}

//! What was used already, and what was not used after all.

use std::time::Duration;

use weirgate::Builder;
use weirgate_agent::rls::Options;

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
async fn a_refund_gives_back_what_was_consumed_and_lowers_the_usage() {
    let agent = Agent::new(RULES).await;
    agent.call(request([hits(&TPD, 900)])).await.unwrap();
    let answer = agent.call(request([refund(&TPD, 300)])).await.unwrap();
    assert_eq!(codes(&answer), [Code::Ok]);
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 400);
    assert_eq!(agent.counted("a", "llm/x", "tpd"), (600, 1));
    let answer = agent.call(request([refund(&TPD, 900)])).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
    assert!(
        status.message().contains("give back at most 600"),
        "{status}"
    );
    agent.call(request([refund(&TPD, 600)])).await.unwrap();
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
    agent.decider.settling.close_and_drain().await;
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
    agent.decider.settling.close_and_drain().await;
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 500);
}

#[tokio::test]
async fn a_call_with_more_reports_than_may_be_in_flight_writes_none() {
    let agent = Agent::new(RULES).await;
    // One of its two reports could enter.
    let held: Vec<_> = (0..99)
        .map(|_| agent.decider.settling.enter(0).unwrap())
        .collect();
    let other = [("used", "b"), ("model", "x")];
    let both = request([hits(&USED, 500), hits(&other, 500)]);
    let status = agent.call(both).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    drop(held);
    agent.decider.settling.close_and_drain().await;
    assert!(agent.dynamo.items().is_empty());
}

#[tokio::test]
async fn a_report_that_failed_is_not_retried() {
    let patient = Options {
        timeout: Duration::from_secs(60),
        ..Options::default()
    };
    let impatient = |builder: Builder| builder.timeout(Duration::from_millis(50));
    let agent = Agent::with(RULES, patient, impatient).await;
    agent
        .dynamo
        .fail_when(|_| Some(weirgate_testkit::Fault::ServerError));
    let answer = agent.call(request([hits(&USED, 500)])).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Aborted, "{status}");
}

/// No limit counts what was used there, and the rest of the call is decided.
#[tokio::test]
async fn a_report_on_a_rule_that_blocks_every_request_denies_nothing() {
    let agent = Agent::new(RULES).await;
    let blocked = |descriptor| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 0,
            unit: envoy_types::pb::envoy::r#type::v3::RateLimitUnit::Hour.into(),
        }),
        ..descriptor
    };
    let reports = [blocked(refund(&TPD, 10)), blocked(hits(&USED, 10))];
    for report in reports {
        let call = request([report, hits(&USED, 100), descriptor(&[("tenant", "a")])]);
        let answer = agent.call(call).await.unwrap();
        assert_eq!(codes(&answer), [Code::Ok, Code::Ok, Code::Ok]);
    }
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 800);
    assert_eq!(agent.left("a", "api", "rpd").await, 8);
    let asked = agent.call(request([blocked(hits(&TPD, 10))])).await;
    assert_eq!(asked.unwrap().overall_code(), Code::OverLimit);
}

/// Reports and refunds of more than a limit can have, by the descriptor, by the request, and through
/// Kuadrant's calls. Each is refused with its amount, its bound and a remedy, and the others count.
#[tokio::test]
async fn an_absurd_report_is_refused_and_changes_nothing_of_the_others() {
    let amounts = [
        30_501,
        1_000_000_000_000,
        1_000_000_000_001,
        1 << 62,
        u64::MAX,
    ];
    for amount in amounts {
        let agent = Agent::new(RULES).await;
        agent.call(request([hits(&TPD, 500)])).await.unwrap();
        // 30 days of 1,000.
        let bound = if amount > 1_000_000_000_000 {
            "1000000000000"
        } else {
            "30000"
        };
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
            assert_eq!(
                agent.call(denied).await.unwrap().overall_code(),
                Code::OverLimit
            );
        }
        assert_eq!(agent.left("b", "llm/x", "tpd").await, 980);
        assert_eq!(agent.left("a", "api", "rpd").await, 8);
        // An estimate that comes back with it comes back alone.
        let settle = request([refund(&TPD, 500), hits(&USED, amount)]);
        agent.call(settle).await.unwrap_err();
        assert_eq!(agent.left("a", "llm/x", "tpd").await, 1_000);
        let answer = agent.call(request([hits(&USED, 30_000)])).await.unwrap();
        assert_eq!(codes(&answer), [Code::Ok], "the bound itself");
    }
}

//! Calls without a decision, and the health that says whether there can be one.

use std::time::Duration;

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use weirgate::OnUnavailable;
use weirgate_agent::rls::Options;

use super::fixture::*;

async fn without_answers(on_unavailable: OnUnavailable) -> Agent {
    Agent::without_answers(Options::default(), on_unavailable).await
}

fn ask() -> RateLimitRequest {
    request([descriptor(&[("tenant", "a")]), descriptor(&[("no", "rule")])])
}

#[tokio::test]
async fn a_call_without_a_decision_is_unavailable_before_the_callers_deadline() {
    let agent = without_answers(OnUnavailable::Error).await;
    for timeout in [20, 250] {
        let answer = agent.call_within(ask(), Duration::from_millis(timeout)).await;
        let status = answer.unwrap_err();
        // A deadline that passes in the client or in the server's own layer has another code.
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    }
}

#[tokio::test]
async fn without_a_deadline_of_the_caller_the_agents_own_counts() {
    let short = Options { timeout: Duration::from_millis(30) };
    let agent = Agent::without_answers(short, OnUnavailable::Error).await;
    let status = agent.call(ask()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
}

#[tokio::test]
async fn the_configured_answer_replaces_a_decision() {
    for (on_unavailable, code) in [
        (OnUnavailable::Allow, Code::Ok),
        (OnUnavailable::Deny, Code::OverLimit),
        (OnUnavailable::Local { percent: 50 }, Code::Ok),
    ] {
        let agent = without_answers(on_unavailable).await;
        let answer = agent.call_within(ask(), Duration::from_millis(400)).await;
        assert_eq!(answer.unwrap().overall_code(), code, "{on_unavailable:?}");
    }
}

/// Hits of 0 only peek, so the limiter's own option does not apply.
#[tokio::test]
async fn the_configured_answer_replaces_a_peek_that_fails_at_once() {
    for (on_unavailable, code) in [
        (OnUnavailable::Allow, Some(Code::Ok)),
        (OnUnavailable::Deny, Some(Code::OverLimit)),
        (OnUnavailable::Local { percent: 50 }, Some(Code::Ok)),
        (OnUnavailable::Error, None),
    ] {
        let settings = |builder: weirgate::Builder| builder.on_unavailable(on_unavailable);
        let agent = Agent::with(RULES, Options::default(), settings).await;
        agent.dynamo.fail_reads(|_, _| Some(weirgate_testkit::Fault::ServerError));
        let answer =
            agent.call(request([hits(&[("tenant", "a")], 0), descriptor(&[("no", "rule")])])).await;
        match code {
            Some(code) => {
                let answer = answer.unwrap();
                assert_eq!(codes(&answer), [code, Code::Ok], "{on_unavailable:?}");
                assert_eq!(answer.overall_code(), code);
            }
            None => assert_eq!(answer.unwrap_err().code(), tonic::Code::Unavailable),
        }
    }
}

/// Also where the service decides, without the limiter.
#[tokio::test]
async fn what_is_stored_for_the_namespace_overrides_the_configured_answer() {
    for (configured, stored, code) in [
        (OnUnavailable::Error, OnUnavailable::Deny, Code::OverLimit),
        (OnUnavailable::Allow, OnUnavailable::Deny, Code::OverLimit),
        (OnUnavailable::Error, OnUnavailable::Allow, Code::Ok),
        (OnUnavailable::Deny, OnUnavailable::Allow, Code::Ok),
    ] {
        let settings = |builder: weirgate::Builder| builder.on_unavailable(configured);
        let agent = Agent::with(RULES, Options::default(), settings).await;
        let admin = agent.other.admin();
        let _ = admin.store_on_unavailable(Some(stored)).send().await.unwrap();
        agent.call(ask()).await.unwrap();
        agent.dynamo.stall_when(|_, _| true);
        let hangs = agent.call_within(ask(), Duration::from_millis(20)).await;
        assert_eq!(hangs.unwrap().overall_code(), code, "{configured:?}");
        agent.dynamo.stall_when(|_, _| false);
        agent.dynamo.fail_reads(|_, _| Some(weirgate_testkit::Fault::ServerError));
        let peek = request([hits(&[("tenant", "b")], 0)]);
        let answer = agent.call(peek).await.unwrap();
        assert_eq!(answer.overall_code(), code, "{configured:?}");
    }
}

#[tokio::test]
async fn a_local_bucket_decides_also_after_reports_and_peeks_without_an_answer() {
    let local = OnUnavailable::Local { percent: 50 };
    let agent = without_answers(local).await;
    let ask = || {
        request([
            hits(&[("used", "a"), ("model", "x")], 10),
            hits(&[("tenant", "b")], 0),
            hits(&[("tenant", "a")], 3),
        ])
    };
    let mut answers = vec![];
    for _ in 0..2 {
        let answer = agent.call_within(ask(), Duration::from_millis(900)).await;
        answers.push(answer.unwrap().overall_code());
    }
    assert_eq!(answers, [Code::Ok, Code::OverLimit], "5 of 10 locally");
}

#[tokio::test]
async fn a_rule_that_blocks_every_request_denies_without_dynamodb() {
    let agent = without_answers(OnUnavailable::Allow).await;
    let blocked = RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 0,
            unit: envoy_types::pb::envoy::r#type::v3::RateLimitUnit::Hour.into(),
        }),
        ..descriptor(&[("tenant", "a")])
    };
    let call = request([blocked, hits(&[("tenant", "b")], 0)]);
    let answer = agent.call_within(call, Duration::from_millis(100)).await;
    assert_eq!(codes(&answer.unwrap()), [Code::OverLimit, Code::Ok]);
}

#[tokio::test]
async fn tokens_of_a_call_that_was_not_answered_in_time_return() {
    let agent = Agent::new(RULES).await;
    agent.call(ask()).await.unwrap();
    // The first write is refused, and the caller does not wait for the second.
    agent.dynamo.fail_next((0..4).map(|_| Some(weirgate_testkit::Fault::ServerError)));
    let answer = agent.call_within(ask(), Duration::from_millis(4)).await;
    let taken = i64::from(answer.is_ok());
    agent.dynamo.forget_faults();
    let refilled = async |agent: &Agent| agent.left("a", "api", "rpd").await;
    let mut left = refilled(&agent).await;
    for _ in 0..10_000 {
        if left == 9 - taken {
            break;
        }
        tokio::task::yield_now().await;
        left = refilled(&agent).await;
    }
    assert_eq!(left, 9 - taken);
}

#[tokio::test]
async fn the_health_is_serving_once_the_limits_were_reached_and_until_the_end() {
    let mut agent = Agent::new(RULES).await;
    let mut health = HealthClient::new(agent.channel.clone());
    let services = [
        "",
        "envoy.service.ratelimit.v3.RateLimitService",
        "kuadrant.service.ratelimit.v1.RateLimitService",
    ];
    let watched = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let mut streams = vec![];
    for service in services {
        let mut stream = health.watch(watched(service)).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::NotServing, "{service:?}");
        streams.push(stream);
    }
    agent.ready();
    for stream in &mut streams {
        let next = stream.message().await.unwrap().unwrap();
        assert_eq!(next.status(), ServingStatus::Serving);
    }
    drop((streams, health));
    agent.stop().await;
}

//! Kuadrant's calls: check, report, reserve, commit.

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use weirgate_agent::rls::messages;

use crate::fixture::*;

const TPD: [(&str, &str); 2] = [("tenant", "a"), ("model", "x")];

async fn call<M, R>(agent: &Agent, method: &str, message: M) -> Result<R, Status>
where
    M: prost::Message + Default + 'static,
    R: prost::Message + Default + 'static,
{
    let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}");
    let mut grpc = Grpc::new(agent.channel.clone());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::try_from(path).unwrap();
    let codec = ProstCodec::<M, R>::default();
    let response = grpc.unary(Request::new(message), path, codec).await?;
    Ok(response.into_inner())
}

fn own(entries: &[(&str, &str)]) -> Vec<messages::RateLimitDescriptor> {
    let entry = |(key, value): &(&str, &str)| messages::Entry {
        key: (*key).to_owned(),
        value: value.as_bytes().to_vec(),
    };
    vec![messages::RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..Default::default()
    }]
}

async fn reserve(agent: &Agent, amount: u64, seconds: i64) -> messages::ReserveResponse {
    let request = messages::ReserveRequest {
        domain: "edge".to_owned(),
        descriptors: own(&TPD),
        amount,
        ttl: Some(messages::Duration { seconds, nanos: 0 }),
    };
    call(agent, "Reserve", request).await.unwrap()
}

async fn commit(agent: &Agent, id: &str, actual: u64) -> bool {
    let request = messages::CommitRequest {
        domain: "edge".to_owned(),
        descriptors: own(&TPD),
        reservation_id: id.to_owned(),
        actual_amount: actual,
    };
    let response: messages::CommitResponse = call(agent, "Commit", request).await.unwrap();
    response.reservation_released
}

#[tokio::test]
async fn a_check_takes_nothing_and_a_report_is_never_denied() {
    let agent = Agent::new(RULES).await;
    let asked = |tokens| RateLimitRequest {
        hits_addend: tokens,
        ..request([descriptor(&TPD)])
    };
    for (tokens, code) in [(1_000, Code::Ok), (1_001, Code::OverLimit)] {
        let answer: RateLimitResponse =
            call(&agent, "CheckRateLimit", asked(tokens)).await.unwrap();
        assert_eq!(codes(&answer), [code]);
    }
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 1_000);
    for _ in 0..2 {
        let answer: RateLimitResponse = call(&agent, "Report", asked(800)).await.unwrap();
        assert_eq!(codes(&answer), [Code::Ok]);
    }
    let answer: RateLimitResponse = call(&agent, "CheckRateLimit", asked(1)).await.unwrap();
    assert_eq!(codes(&answer), [Code::OverLimit]);
    assert_eq!(agent.counted("a", "llm/x", "tpd"), (1_600, 0));
}

#[tokio::test]
async fn a_reservation_holds_its_amount_and_a_commit_leaves_what_was_used() {
    let agent = Agent::new(RULES).await;
    let held = reserve(&agent, 800, 60).await;
    assert_eq!(held.code(), messages::Code::Ok);
    let denied = reserve(&agent, 300, 60).await;
    assert_eq!(denied.code(), messages::Code::OverLimit);
    assert_eq!(denied.reservation_id, "");
    assert!(commit(&agent, &held.reservation_id, 150).await);
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 850);
    let more = reserve(&agent, 100, 60).await;
    assert!(
        commit(&agent, &more.reservation_id, 900).await,
        "more than was reserved"
    );
    assert_eq!(agent.counted("a", "llm/x", "tpd").0, 1_050);
}

#[tokio::test]
async fn a_commit_of_nothing_gives_the_reservation_back() {
    let agent = Agent::new(RULES).await;
    let held = reserve(&agent, 800, 60).await;
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 200);
    assert!(commit(&agent, &held.reservation_id, 0).await);
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 1_000);
}

#[tokio::test]
async fn a_commit_of_an_unknown_reservation_is_a_report_and_a_repeated_one_changes_nothing() {
    let agent = Agent::new(RULES).await;
    let held = reserve(&agent, 800, 60).await;
    assert!(commit(&agent, &held.reservation_id, 700).await);
    assert!(!commit(&agent, &held.reservation_id, 700).await);
    assert_eq!(agent.counted("a", "llm/x", "tpd").0, 700);
    assert!(!commit(&agent, "no token", 50).await);
    assert!(!commit(&agent, "", 25).await);
    assert_eq!(agent.counted("a", "llm/x", "tpd").0, 775);
}

#[tokio::test]
async fn a_commit_of_a_reservation_that_has_expired_is_a_report() {
    let agent = Agent::new(RULES).await;
    let held = reserve(&agent, 800, 1).await;
    agent.clock.skew(60_000);
    // This take ends the lease and returns what it held.
    let limits = [weirgate::Limit::per_day("tpd", 1_000).unwrap()];
    let acquire = agent.other.acquire("a", "llm/x").limits(&limits);
    let taken = acquire.take("tpd", 900).send().await.unwrap();
    assert!(taken.is_granted());
    assert!(!commit(&agent, &held.reservation_id, 150).await);
    assert_eq!(agent.counted("a", "llm/x", "tpd").0, 1_050);
}

#[tokio::test]
async fn an_absurd_commit_is_refused_and_its_reservation_stays() {
    let agent = Agent::new(RULES).await;
    let held = reserve(&agent, 800, 60).await;
    for actual in [30_001, 1_000_000_000_001, u64::MAX] {
        for id in [&*held.reservation_id, "no token"] {
            let request = messages::CommitRequest {
                domain: "edge".to_owned(),
                descriptors: own(&TPD),
                reservation_id: id.to_owned(),
                actual_amount: actual,
            };
            let answer: Result<messages::CommitResponse, _> = call(&agent, "Commit", request).await;
            let status = answer.unwrap_err();
            assert!(status.message().contains(&actual.to_string()), "{status}");
            assert!(
                status.message().contains("report what was used"),
                "{status}"
            );
            assert_eq!(agent.left("a", "llm/x", "tpd").await, 200);
        }
        let mut asked = request([hits(&TPD, actual)]);
        asked.hits_addend = u32::MAX;
        let answer: Result<RateLimitResponse, _> = call(&agent, "Report", asked).await;
        assert!(answer.unwrap_err().message().contains(&actual.to_string()));
    }
    assert!(commit(&agent, &held.reservation_id, 150).await);
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 850);
}

/// The first write takes longer than the answer may.
#[tokio::test]
async fn a_commit_is_finished_although_its_time_is_over() {
    let short = weirgate_agent::rls::Options {
        timeout: std::time::Duration::from_millis(300),
        ..weirgate_agent::rls::Options::default()
    };
    let agent = Agent::with(RULES, short, |builder| builder).await;
    let held = reserve(&agent, 800, 60).await;
    agent
        .dynamo
        .fail_when(|_| Some(weirgate_testkit::Fault::ServerError));
    let request = messages::CommitRequest {
        domain: "edge".to_owned(),
        descriptors: own(&TPD),
        reservation_id: held.reservation_id,
        actual_amount: 150,
    };
    let answer: Result<messages::CommitResponse, _> = call(&agent, "Commit", request).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Aborted, "{status}");
    agent.dynamo.fail_when(|_| None);
    // The gate counts it until it is finished.
    agent.decider.settling.close_and_drain().await;
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 850);
}

fn both(names: [&str; 2], amount: u64) -> (messages::ReserveRequest, messages::CommitRequest) {
    let descriptors = names.map(|name| own(&[("tenant", name), ("model", "x")]).remove(0));
    let mut turned = descriptors.to_vec();
    turned.reverse();
    let reserve = messages::ReserveRequest {
        domain: "edge".to_owned(),
        descriptors: descriptors.to_vec(),
        amount: 800,
        ttl: None,
    };
    let commit = messages::CommitRequest {
        domain: "edge".to_owned(),
        // Another order than that of the reservation.
        descriptors: turned,
        reservation_id: String::new(),
        actual_amount: amount,
    };
    (reserve, commit)
}

#[tokio::test]
async fn a_commit_that_failed_for_one_of_two_buckets_is_repeated_and_counts_once() {
    let patient = weirgate_agent::rls::Options {
        timeout: std::time::Duration::from_secs(60),
        ..weirgate_agent::rls::Options::default()
    };
    let settings = |builder: weirgate::Builder| {
        let never = weirgate::CircuitBreakerConfig {
            failure_threshold: 0,
            ..weirgate::CircuitBreakerConfig::default()
        };
        let timeout = std::time::Duration::from_millis(300);
        builder.timeout(timeout).circuit_breaker(never)
    };
    for failing in ["a", "b"] {
        let agent = Agent::with(RULES, patient, settings).await;
        let (reserve, commit) = both(["a", "b"], 150);
        let held: messages::ReserveResponse = call(&agent, "Reserve", reserve).await.unwrap();
        let commit = messages::CommitRequest {
            reservation_id: held.reservation_id,
            ..commit
        };
        let key = format!("#{failing}#");
        agent.dynamo.fail_when(move |write| {
            let fault = weirgate_testkit::Fault::ServerError;
            write.to_string().contains(&key).then_some(fault)
        });
        let first: Result<messages::CommitResponse, _> =
            call(&agent, "Commit", commit.clone()).await;
        let status = first.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        agent.dynamo.fail_when(|_| None);
        let again: messages::CommitResponse = call(&agent, "Commit", commit).await.unwrap();
        assert!(again.reservation_released);
        for name in ["a", "b"] {
            assert_eq!(
                agent.left(name, "llm/x", "tpd").await,
                850,
                "{failing}: {name}"
            );
            assert_eq!(
                agent.counted(name, "llm/x", "tpd").0,
                150,
                "{failing}: {name}"
            );
        }
    }
}

#[tokio::test]
async fn a_reservation_must_last_a_millisecond_to_a_day() {
    let agent = Agent::new(RULES).await;
    for seconds in [-1, 0, 86_401] {
        let request = messages::ReserveRequest {
            domain: "edge".to_owned(),
            descriptors: own(&TPD),
            amount: 1,
            ttl: Some(messages::Duration { seconds, nanos: 0 }),
        };
        let answer: Result<messages::ReserveResponse, _> = call(&agent, "Reserve", request).await;
        let status = answer.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    }
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 1_000);
}

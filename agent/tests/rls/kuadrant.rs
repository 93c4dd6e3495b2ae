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
async fn a_commit_of_a_reservation_that_has_ended_or_is_unknown_is_a_report() {
    let agent = Agent::new(RULES).await;
    let held = reserve(&agent, 800, 60).await;
    assert!(commit(&agent, &held.reservation_id, 800).await);
    assert!(!commit(&agent, &held.reservation_id, 100).await);
    assert!(!commit(&agent, "no token", 50).await);
    assert!(!commit(&agent, "", 25).await);
    assert_eq!(agent.counted("a", "llm/x", "tpd").0, 975);
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

//! Calls that a caller must change, and calls that are too big.

use std::time::Duration;

use bytes::Bytes;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use weirgate_agent::rls::Options;

use super::fixture::*;

async fn refused(agent: &Agent, request: RateLimitRequest) -> String {
    let status = agent.call(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    status.message().to_owned()
}

#[tokio::test]
async fn a_call_that_asks_nothing_is_invalid_and_says_what_to_change() {
    let agent = Agent::new(RULES).await;
    let nameless =
        RateLimitRequest { domain: String::new(), ..request([descriptor(&[("tenant", "a")])]) };
    assert!(refused(&agent, nameless).await.contains("domain"));
    assert!(refused(&agent, request([])).await.contains("1 to 100 descriptors, got 0"));
    assert!(refused(&agent, request([descriptor(&[])])).await.contains("no entries"));
    let many = (0..101).map(|_| descriptor(&[("tenant", "a")]));
    assert!(refused(&agent, request(many)).await.contains("got 101"));
}

#[tokio::test]
async fn an_unknown_domain_passes() {
    let agent = Agent::new(RULES).await;
    let other = RateLimitRequest {
        domain: "other".to_owned(),
        ..request([descriptor(&[("tenant", "a")])])
    };
    let answer = agent.call(other).await.unwrap();
    assert_eq!(codes(&answer), [Code::Ok]);
}

#[tokio::test]
async fn a_hundred_descriptors_are_one_decision() {
    let patient = Options { timeout: Duration::from_secs(30) };
    let agent = Agent::with(RULES, patient, |builder| builder).await;
    let names: Vec<_> = (0..100).map(|at| format!("t-{at}")).collect();
    let all = || names.iter().map(|name| descriptor(&[("tenant", name)]));
    let answer = agent.call(request(all())).await.unwrap();
    assert!(answer.statuses.iter().all(|status| status.limit_remaining == 9));
    agent.call(request([hits(&[("tenant", "t-99")], 9)])).await.unwrap();
    let answer = agent.call(request(all())).await.unwrap();
    let over: Vec<_> = codes(&answer).iter().map(|code| *code == Code::OverLimit).collect();
    assert_eq!(over.iter().filter(|is_over| **is_over).count(), 1);
    assert!(over[99]);
}

/// Every value is a name, so no request passes because its header is odd.
#[tokio::test]
async fn any_value_of_a_header_is_limited() {
    let agent = Agent::new(RULES).await;
    let long = "x".repeat(10_000);
    for value in ["", "a b", "../../x", "#", "@", "é", "\0", &long] {
        let ask = || agent.call(request([hits(&[("tenant", value)], 6)]));
        assert_eq!(ask().await.unwrap().overall_code(), Code::Ok, "{value:?}");
        assert_eq!(ask().await.unwrap().overall_code(), Code::OverLimit, "{value:?}");
    }
}

/// Sends bytes as they are.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(buffer, item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        let all = bytes::Buf::remaining(buffer);
        bytes::Buf::advance(buffer, all);
        Ok(Some(()))
    }
}

async fn raw(agent: &Agent, method: &'static str, message: Bytes) -> Result<(), Status> {
    let mut grpc = Grpc::new(agent.channel.clone());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static(method);
    grpc.unary(Request::new(message), path, Raw).await.map(drop)
}

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[tokio::test]
async fn malformed_and_big_messages_are_refused_and_others_are_served() {
    let agent = Agent::new(RULES).await;
    let malformed = raw(&agent, METHOD, Bytes::from_static(b"\x0a\xff\xff\xff\xff\x0f")).await;
    let status = malformed.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Internal, "{status}");
    assert!(status.message().contains("decode"), "{status}");
    let big = raw(&agent, METHOD, Bytes::from(vec![0; 10_000_000])).await.unwrap_err();
    assert_eq!(big.code(), tonic::Code::OutOfRange, "{big}");
    assert!(big.message().contains("limit"), "{big}");
    let unknown = "/envoy.service.ratelimit.v3.RateLimitService/Other";
    let status = raw(&agent, unknown, Bytes::new()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented, "{status}");
    let answer = agent.call(request([descriptor(&[("tenant", "a")])])).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
}

/// Bytes that are no text are a value like others: Envoy sends what a header has.
#[tokio::test]
async fn a_value_that_is_no_text_is_limited_too() {
    let agent = Agent::new(RULES).await;
    // RateLimitRequest { domain: "edge", descriptors: [{ entries: [{ "tenant", [0xff] }] }] }
    let message: &[u8] = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x06tenant\x12\x01\xff";
    for _ in 0..3 {
        raw(&agent, METHOD, Bytes::from_static(message)).await.unwrap();
    }
    assert_eq!(agent.left("0@@@ff", "api", "rpd").await, 7);
}

#[tokio::test]
async fn more_calls_than_may_be_in_flight_are_refused_at_once() {
    let agent = Agent::new(RULES).await;
    let held: Vec<_> = (0..100).map(|_| agent.gated.gate.enter(0).unwrap()).collect();
    let status = agent.call(request([descriptor(&[("tenant", "a")])])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(status.message().contains("--max-in-flight"), "{status}");
    drop(held);
    agent.call(request([descriptor(&[("tenant", "a")])])).await.unwrap();
}

/// What frees tokens never waits for the requests that wait for them.
#[tokio::test]
async fn reports_find_room_while_all_places_are_of_requests_that_wait() {
    let agent = Agent::new(RULES).await;
    let taken = request([hits(&[("tenant", "a")], 6)]);
    agent.call(taken).await.unwrap();
    let _held: Vec<_> = (0..100).map(|_| agent.gated.gate.enter(0).unwrap()).collect();
    // All but the one of the report.
    let _settling: Vec<_> = (0..99).map(|_| agent.gated.settling.enter(0).unwrap()).collect();
    for report in [refund(&[("tenant", "a")], 2), hits(&[("used", "a"), ("model", "m")], 5)] {
        let answer = agent.call(request([report])).await.unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
    }
    assert_eq!(agent.left("a", "api", "rpd").await, 6);
    assert_eq!(agent.left("a", "llm/m", "tpd").await, 995);
}

#[tokio::test]
async fn calls_of_all_methods_show_the_secret_and_health_does_not() {
    let agent = Agent::with_secret("0123456789abcdef").await;
    let call = async |path: &str, secret: Option<&str>| {
        let mut grpc = Grpc::new(agent.channel.clone());
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        let mut call = Request::new(request([descriptor(&[("tenant", "a")])]));
        if let Some(secret) = secret {
            let secret = secret.parse().unwrap();
            call.metadata_mut().insert("x-weirgate-token", secret);
        }
        let path = PathAndQuery::try_from(path).unwrap();
        grpc.unary(call, path, codec).await
    };
    for wrong in [None, Some(""), Some("0"), Some("0123456789abcdeF"), Some("0123456789abcdef0")] {
        for path in [
            METHOD,
            "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit",
            "/kuadrant.service.ratelimit.v1.RateLimitService/Report",
            "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve",
            "/kuadrant.service.ratelimit.v1.RateLimitService/Commit",
            "/envoy.service.ratelimit.v3.RateLimitService/Other",
        ] {
            let refused = call(path, wrong).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{path}");
            assert!(refused.message().contains("X-Weirgate-Token"), "{refused}");
        }
    }
    let answer = call(METHOD, Some("0123456789abcdef")).await.unwrap();
    assert_eq!(answer.into_inner().overall_code(), Code::Ok);
    let mut health = HealthClient::new(agent.channel.clone());
    let health = health.check(HealthCheckRequest::default()).await;
    assert!(health.is_ok(), "{health:?}");
}

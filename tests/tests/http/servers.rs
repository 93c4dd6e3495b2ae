//! The layer in real servers on real sockets: hyper and tonic.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use crate::fixtures::fleet::{Fleet, secs};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, service_fn};
use weirgate::tower::RateLimitLayer;
use weirgate::{Acquire, CircuitBreakerConfig, Limit, RateLimiter};
use weirgate_testkit::Fault;

type Parts = http::request::Parts;
type Client = hyper::client::conn::http1::SendRequest<Empty<Bytes>>;

/// Two requests an hour, and one at a time.
fn charge<'a>(limiter: &'a RateLimiter, _: &Parts) -> Option<Acquire<'a>> {
    let limits = [Limit::per_hour("rph", 2).unwrap(), Limit::concurrent("slots", 1).unwrap()];
    Some(limiter.acquire("e-1", "gpt-4").limits(&limits).take("rph", 1).take("slots", 1))
}

/// Waits until the slot is back, which happens after the answer.
async fn slot_is_back(fleet: &Fleet) {
    let is_back = async {
        while fleet.tk_tc("slots").await.0 != 1_000 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(secs(30), is_back).await.expect("the slot comes back");
}

/// A server whose answers never end.
async fn endless(fleet: &Fleet) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = async |_: Request<Incoming>| {
        let begin = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"begun")))]);
        let body = StreamBody::new(futures_util::StreamExt::chain(begin, stream::pending()));
        Ok::<_, Infallible>(Response::new(body))
    };
    let service = RateLimitLayer::new(fleet.limiter().await, charge).layer(service_fn(answer));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let serve = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move { drop(serve.await) });
        }
    });
    address
}

async fn connect(address: SocketAddr) -> Client {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

fn get() -> Request<Empty<Bytes>> {
    Request::get("/").header("host", "localhost").body(Empty::new()).unwrap()
}

#[tokio::test]
async fn hyper_a_slot_is_held_until_the_body_is_sent_or_the_client_hangs_up() {
    let fleet = Fleet::new().await;
    let address = endless(&fleet).await;
    let mut client = connect(address).await;
    let mut response = client.send_request(get()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["ratelimit"], r#""rph";r=1;t=1800, "slots";r=0"#);
    assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "begun");

    let mut other = connect(address).await;
    let denied = other.send_request(get()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let after: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "when the lease of 60 s expires: {after}");
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["violated-policies"][0].as_str(), Some("slots"));
    assert_eq!(problem["retry_after"].as_u64(), Some(after));

    drop((response, client));
    slot_is_back(&fleet).await;
    let again = other.send_request(get()).await.unwrap();
    assert_eq!(again.status(), StatusCode::OK);
}

/// A server of health checks, and its client.
async fn health(limiter: RateLimiter) -> HealthClient<Channel> {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(RateLimitLayer::new(limiter, charge)).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(channel.connect().await.unwrap())
}

#[tokio::test]
async fn tonic_a_denial_is_a_status_with_the_time_to_come_back() {
    let fleet = Fleet::new().await;
    let mut client = health(fleet.limiter().await).await;
    for left in [r#""rph";r=1;t=1800, "slots";r=0"#, r#""rph";r=0;t=1800, "slots";r=0"#] {
        let answer = client.check(HealthCheckRequest::default()).await.unwrap();
        // The clock goes on, so a token may be there a second sooner.
        let told = answer.metadata().get("ratelimit").unwrap().to_str().unwrap();
        assert_eq!(told.split("t=").next(), left.split("t=").next(), "{told}");
        drop(answer);
        slot_is_back(&fleet).await;
    }
    let denied = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let number =
        |name| denied.metadata().get(name).unwrap().to_str().unwrap().parse::<u64>().unwrap();
    let (after, after_ms) = (number("retry-after"), number("grpc-retry-pushback-ms"));
    assert!(
        (1..=1_800).contains(&after) && after == after_ms.div_ceil(1_000),
        "{after} s, {after_ms} ms"
    );
    let message = denied.message();
    assert_eq!(
        message,
        format!("limit \"rph\" has 0 of 2 left, 1 were requested: retry after {after} s")
    );
    assert!(denied.metadata().contains_key("ratelimit-policy"));
}

/// How a handler takes its upgraded stream.
#[derive(Debug, Clone, Copy)]
enum Handler {
    /// It keeps only the upgrade, as axum's `WebSocketUpgrade` does.
    KeepsTheUpgrade,
    /// It keeps the whole request.
    KeepsTheRequest,
    /// It answers 101, and takes no stream.
    TakesNoStream,
    /// It keeps only the upgrade, and answers late in the lease.
    AnswersLate,
    /// It answers 200, and the client wanted another protocol.
    Declines,
}

/// Serves connections in memory with the layer and this handler. An accepted stream echoes until it
/// ends.
async fn upgraded(limiter: RateLimiter, handler: Handler, lease: Duration) -> DuplexStream {
    let answer = move |mut request: Request<Incoming>| async move {
        let is_connect = request.method() == Method::CONNECT;
        match handler {
            Handler::KeepsTheUpgrade | Handler::AnswersLate => {
                let upgrade = hyper::upgrade::on(&mut request);
                drop(request);
                tokio::spawn(async move { echo(upgrade.await).await });
            }
            Handler::KeepsTheRequest => {
                tokio::spawn(async move { echo(hyper::upgrade::on(&mut request).await).await });
            }
            Handler::TakesNoStream | Handler::Declines => {}
        }
        if matches!(handler, Handler::AnswersLate) {
            tokio::time::sleep(lease * 5 / 6).await;
        }
        let mut response = Response::new(Empty::<Bytes>::new());
        if !is_connect && !matches!(handler, Handler::Declines) {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert("connection", HeaderValue::from_static("upgrade"));
            headers.insert("upgrade", HeaderValue::from_static("echo"));
        }
        Ok::<_, Infallible>(response)
    };
    let layer = RateLimitLayer::new(limiter, move |limiter, parts: &Parts| {
        charge(limiter, parts).map(|acquire| acquire.lease(lease))
    });
    let service = TowerToHyperService::new(layer.layer(service_fn(answer)));
    let (client, server) = tokio::io::duplex(1 << 20);
    let connection = hyper::server::conn::http1::Builder::new();
    let connection = connection.serve_connection(TokioIo::new(server), service);
    tokio::spawn(connection.with_upgrades());
    client
}

async fn echo(upgraded: Result<hyper::upgrade::Upgraded, hyper::Error>) {
    let mut stream = TokioIo::new(upgraded.unwrap());
    let (mut bytes, mut length) = (vec![0; 100_000], 1);
    while length > 0 {
        length = stream.read(&mut bytes).await.unwrap_or_default();
        stream.write_all(&bytes[..length]).await.unwrap();
    }
}

/// Reads the head of a response, and returns its status.
async fn status_of(client: &mut DuplexStream) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(client.read_u8().await.unwrap()));
    }
    head.split(' ').nth(1).unwrap().to_owned()
}

const UPGRADE: &str = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
const CONNECT: &str = "CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn an_upgraded_connection_keeps_its_slot_until_its_stream_ends() {
    for (request, handler) in [
        (UPGRADE, Handler::KeepsTheUpgrade),
        (UPGRADE, Handler::KeepsTheRequest),
        (CONNECT, Handler::KeepsTheUpgrade),
        (CONNECT, Handler::KeepsTheRequest),
    ] {
        let (fleet, [limiter, other]) = Fleet::of().await;
        let mut client = upgraded(limiter, handler, secs(6)).await;
        client.write_all(request.as_bytes()).await.unwrap();
        let status = status_of(&mut client).await;
        assert!(["101", "200"].contains(&&*status), "{status}");
        // Longer than many leases, with bytes in both directions.
        for turn in 0..20_u8 {
            let sent = vec![turn; 50_000];
            client.write_all(&sent).await.unwrap();
            let mut received = vec![0; sent.len()];
            client.read_exact(&mut received).await.unwrap();
            assert_eq!(received, sent);
            let held = charge(&other, &Request::new(()).into_parts().0).unwrap();
            assert!(held.send().await.unwrap().denied().is_some(), "{handler:?} {turn}");
            tokio::time::sleep(secs(5)).await;
        }
        drop(client);
        slot_is_back(&fleet).await;
    }
}

/// What begins no stream holds nothing.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_begun_gives_the_slot_back() {
    for (request, handler) in [
        (UPGRADE, Handler::Declines),
        (UPGRADE, Handler::TakesNoStream),
        (CONNECT, Handler::TakesNoStream),
    ] {
        let fleet = Fleet::new().await;
        let mut client = upgraded(fleet.limiter().await, handler, secs(600)).await;
        client.write_all(request.as_bytes()).await.unwrap();
        let _ = status_of(&mut client).await;
        if matches!(handler, Handler::TakesNoStream) {
            assert_eq!(client.read(&mut [0; 9]).await.unwrap(), 0, "the stream ends");
            drop(client);
        }
        slot_is_back(&fleet).await;
    }
}

/// Whether another process gets the one slot.
async fn is_free(other: &RateLimiter) -> bool {
    let ask = charge(other, &Request::new(()).into_parts().0).unwrap();
    ask.send().await.unwrap().is_granted()
}

#[tokio::test(start_paused = true)]
async fn the_time_until_a_late_upgrade_is_part_of_its_lease() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let mut client = upgraded(limiter, Handler::AnswersLate, secs(60)).await;
    client.write_all(UPGRADE.as_bytes()).await.unwrap();
    assert_eq!(status_of(&mut client).await, "101");
    for second in 50..150 {
        assert!(!is_free(&other).await, "{second}");
        tokio::time::sleep(secs(1)).await;
    }
    drop(client);
    slot_is_back(&fleet).await;
}

/// Writes fail from any time on for half a lease: a later attempt is within the lease.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_is_tried_again_within_the_lease() {
    for begin in (1..40).step_by(6) {
        let fleet = Fleet::new().await;
        let breaker =
            CircuitBreakerConfig { failure_threshold: 1_000, ..CircuitBreakerConfig::default() };
        let limiter = fleet.builder().await.circuit_breaker(breaker);
        let (limiter, other) = (limiter.build().await.unwrap(), fleet.limiter().await);
        let mut client = upgraded(limiter, Handler::KeepsTheUpgrade, secs(60)).await;
        client.write_all(UPGRADE.as_bytes()).await.unwrap();
        assert_eq!(status_of(&mut client).await, "101");
        tokio::time::sleep(secs(begin)).await;
        fleet.fail_writes(Fault::ServerError);
        tokio::time::sleep(secs(35)).await;
        fleet.fail_writes(None);
        for second in begin..100 {
            tokio::time::sleep(secs(1)).await;
            assert!(!is_free(&other).await, "{begin} {second}");
        }
        drop(client);
        slot_is_back(&fleet).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_is_renewed_no_more_and_its_stream_goes_on() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let mut client = upgraded(limiter, Handler::KeepsTheUpgrade, secs(60)).await;
    client.write_all(UPGRADE.as_bytes()).await.unwrap();
    assert_eq!(status_of(&mut client).await, "101");
    tokio::time::sleep(secs(1)).await;
    let leases = other.admin().leases("e-1", "gpt-4").await.unwrap().items;
    assert_eq!(leases.len(), 1);
    for lease in leases {
        let released = other.admin().release_lease("e-1", "gpt-4", &lease.id).await;
        assert!(released.unwrap());
    }
    // The attempt that finds it out.
    tokio::time::sleep(secs(60)).await;
    let _ = fleet.dynamo.take_operations();
    tokio::time::sleep(secs(600)).await;
    let operations = fleet.dynamo.take_operations();
    assert_eq!(operations.get("UpdateItem"), None, "{operations:?}");
    client.write_all(b"on").await.unwrap();
    let mut received = [0; 2];
    client.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"on");
}

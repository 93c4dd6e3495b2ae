//! The layer under axum: what clients are told, and what becomes of what a request took.

use crate::fixtures::fleet;
use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::fixtures::fleet::{Fleet, millis, pass, secs, settle};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Extension;
use axum::routing::{MethodRouter, get, post};
use futures_util::{FutureExt, StreamExt, stream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};
use weirgate::tower::{GrantHandle, OnError, RateLimitLayer};
use weirgate::{Acquire, CircuitBreakerConfig, Limit, OnUnavailable, RateLimiter, Settlement};
use weirgate_testkit::Fault;

type Parts = http::request::Parts;

fn limits() -> [Limit; 2] {
    [Limit::per_hour("rph", 100).unwrap(), Limit::concurrent("slots", 2).unwrap()]
}

/// Charges each request with a key ten tokens and a slot.
fn charge<'a>(limiter: &'a RateLimiter, request: &Parts) -> Option<Acquire<'a>> {
    let key = request.headers.get("x-api-key")?.to_str().ok()?;
    Some(limiter.acquire(key, "gpt-4").limits(&limits()).take("rph", 10).take("slots", 1))
}

/// A server that answers each request with `done`.
fn done() -> Router {
    Router::new().route("/", get(async || "done"))
}

/// A server whose requests are charged.
async fn charged(fleet: &Fleet, handler: MethodRouter) -> Router {
    let layer = RateLimitLayer::new(fleet.limiter().await, charge);
    Router::new().route("/", handler).layer(layer)
}

/// The answer to a request of the fleet's own entity.
async fn sent(app: &Router, path: &str) -> Response<Body> {
    app.clone().oneshot(request(path)).await.unwrap()
}

/// A request of the fleet's own entity.
fn request(path: &str) -> Request<Body> {
    Request::get(path).header("x-api-key", "e-1").body(Body::empty()).unwrap()
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
}

async fn text(response: Response<Body>) -> String {
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

fn throttle(fleet: &Fleet) {
    fleet.fail_writes(Fault::Throttle { key_range: false });
}

/// Tokens and slots that are left, and tokens that are consumed, in millitokens.
async fn books(fleet: &Fleet) -> (i64, i64, i64) {
    let ((left, used), slots) = (fleet.tk_tc("rph").await, fleet.tk_tc("slots").await);
    (left, slots.0, used)
}

#[tokio::test(start_paused = true)]
async fn i5_granted_then_denied_then_granted_when_retry_after_is_over() {
    let fleet = Fleet::new().await;
    let layer = RateLimitLayer::new(fleet.limiter().await, charge).with_x_rate_limit(true);
    let app = done().layer(layer);
    let first = sent(&app, "/").await;
    assert_eq!(first.status(), StatusCode::OK);
    let policy = r#""rph";q=100;w=3600, "slots";q=2;qu="concurrent-requests""#;
    assert_eq!(field(first.headers(), "ratelimit-policy"), policy);
    assert_eq!(field(first.headers(), "ratelimit"), r#""rph";r=90;t=3240, "slots";r=1"#);
    assert_eq!(field(first.headers(), "x-ratelimit-remaining"), "1");
    assert!(!first.headers().contains_key("retry-after"));
    assert_eq!(text(first).await, "done");
    for _ in 1..10 {
        let granted = sent(&app, "/").await;
        assert_eq!(granted.status(), StatusCode::OK);
        drop(granted);
        settle().await;
    }
    let denied = sent(&app, "/").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(field(denied.headers(), "content-type"), "application/problem+json");
    assert_eq!(field(denied.headers(), "ratelimit-policy"), policy);
    // 90 s of settling have brought two and a half tokens.
    let wait = 10 * 36 - 90;
    assert_eq!(field(denied.headers(), "ratelimit"), format!(r#""rph";r=2;t={wait}, "slots";r=2"#));
    assert_eq!(field(denied.headers(), "retry-after"), wait.to_string());
    assert_eq!(field(denied.headers(), "x-ratelimit-reset"), wait.to_string());
    let problem: Value = serde_json::from_str(&text(denied).await).unwrap();
    assert_eq!(&problem["status"], &json!(429));
    assert_eq!(&problem["violated-policies"], &json!(["rph"]));
    assert_eq!(problem["retry_after"], json!(wait));
    pass(secs(wait)).await;
    assert_eq!(sent(&app, "/").await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_charged_passes_as_it_is() {
    let fleet = Fleet::new().await;
    let echo = post(async |handle: Option<Extension<GrantHandle>>, body: String| {
        assert!(handle.is_none());
        body
    });
    let app = charged(&fleet, echo).await;
    let _ = fleet.dynamo.take_requests();
    let response =
        app.oneshot(Request::post("/").body(Body::from("as it is")).unwrap()).await.unwrap();
    assert!(!response.headers().contains_key("ratelimit"));
    assert_eq!(text(response).await.as_str(), "as it is");
    assert_eq!(fleet.dynamo.take_requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_held_while_a_task_has_a_handle_and_its_correction_counts() {
    let fleet = Fleet::new().await;
    let end = Arc::new(Notify::new());
    let ends = Arc::clone(&end);
    let handler = move |Extension(handle): Extension<GrantHandle>| {
        let ends = Arc::clone(&ends);
        tokio::spawn(async move {
            ends.notified().await;
            assert_eq!(handle.adjust("rph", 3).await.unwrap(), Settlement::Applied);
        });
        ready("done")
    };
    let app = charged(&fleet, get(handler)).await;
    assert_eq!(text(sent(&app, "/").await).await, "done");
    settle().await;
    assert_eq!(fleet.tk_tc("slots").await.0, 1_000);
    end.notify_one();
    settle().await;
    assert_eq!(fleet.tk_tc("slots").await.0, 2_000);
    assert_eq!(fleet.tk_tc("rph").await.1, 3_000);
}

#[tokio::test(start_paused = true)]
async fn a_body_read_to_its_end_gives_its_slot_back_though_it_is_kept() {
    let fleet = Fleet::new().await;
    let app = charged(&fleet, get(async || "done")).await;
    let mut body = Body::new(sent(&app, "/").await.into_body()).into_data_stream();
    while let Some(chunk) = body.next().await {
        assert_eq!(chunk.unwrap(), "done");
    }
    settle().await;
    assert_eq!(fleet.tk_tc("slots").await.0, 2_000);
    drop(body);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_gives_its_slot_back() {
    let fleet = Fleet::new().await;
    let endless = get(async || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()));
    let app = Router::new()
        .route("/stuck", get(async || pending::<()>().await))
        .route("/endless", endless)
        .layer(RateLimitLayer::new(fleet.limiter().await, charge));
    let stuck = app.clone().oneshot(request("/stuck"));
    assert!(tokio::time::timeout(millis(50), stuck).await.is_err(), "while it is worked on");
    let response = sent(&app, "/endless").await;
    settle().await;
    assert_eq!(fleet.tk_tc("slots").await.0, 1_000, "the first has gone");
    drop(response);
    settle().await;
    let bucket = fleet.bucket().await;
    assert_eq!(fleet.tk_tc("slots").await.0, 2_000, "while it is streamed");
    assert_eq!(bucket.leases.unwrap().len(), 0, "while it is streamed");
    assert_eq!(fleet.tk_tc("rph").await.1, 20_000, "what was worked on counts");
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_request_took_goes_back() {
    let fleet = Fleet::new().await;
    let layer = RateLimitLayer::new(fleet.limiter().await, charge);
    let fails = layer.layer(service_fn(|_: Request<Body>| {
        ready(Err::<Response<Body>, _>("the backend is down"))
    }));
    assert_eq!(fails.oneshot(request("/")).await.unwrap_err(), "the backend is down");
    assert_eq!(books(&fleet).await, (100_000, 2_000, 0));

    let panics =
        layer.layer(service_fn(async |_: Request<Body>| -> Result<Response<Body>, Infallible> {
            pass(millis(5)).await;
            std::panic::panic_any(17_u8)
        }));
    let panic = AssertUnwindSafe(panics.oneshot(request("/")))
        .catch_unwind()
        .await
        .expect_err("the panic goes on");
    assert_eq!(panic.downcast_ref::<u8>(), Some(&17), "with its own payload");
    assert_eq!(books(&fleet).await, (100_000, 2_000, 0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_a_status_to_be_refunded_costs_nothing_and_others_count() {
    let fleet = Fleet::new().await;
    let layer = RateLimitLayer::new(fleet.limiter().await, charge);
    let refunds = layer.clone().refund_if(|status| status.is_server_error());
    let app = Router::new()
        .route("/502", get(async || StatusCode::BAD_GATEWAY))
        .route("/404", get(async || StatusCode::NOT_FOUND));
    for (layer, path, used) in
        [(&layer, "/502", 10_000), (&refunds, "/404", 10_000), (&refunds, "/502", 0)]
    {
        let before = fleet.dynamo.item(fleet::PK, "#STATE")["b_rph_tc"]["N"]
            .as_str()
            .map_or(0, |n| n.parse().unwrap());
        let response = sent(&app.clone().layer(layer.clone()), path).await;
        assert!(response.headers().contains_key("ratelimit"), "{path} tells the limits too");
        drop(response);
        settle().await;
        let (slots, after) = (fleet.tk_tc("slots").await.0, fleet.tk_tc("rph").await.1);
        assert_eq!((after - before, slots), (used, 2_000), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_fits_is_another_answer_than_a_denial() {
    let fleet = Fleet::new().await;
    let layer = RateLimitLayer::new(fleet.limiter().await, |limiter: &RateLimiter, _: &Parts| {
        let acquire = limiter.acquire("e-1", "gpt-4").limits(&limits());
        Some(acquire.take("rph", 101))
    });
    let handler = get(async || -> StatusCode { unreachable!("it is not passed on") });
    let app = Router::new().route("/", handler).layer(layer);
    let response = sent(&app, "/").await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(!response.headers().contains_key("retry-after"));
    assert!(
        text(response)
            .await
            .contains(r#"limit \"rph\" has a capacity of 100, 101 were requested: request fewer"#)
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_decision_requests_are_refused_or_pass_as_is_said() {
    let fleet = Fleet::new().await;
    let refuses = RateLimitLayer::new(fleet.limiter().await, charge);
    let passes = refuses
        .clone()
        .on_error(|error| if error.is_transient() { OnError::Pass } else { OnError::Refuse });
    let handler = get(async |Extension(handle): Extension<GrantHandle>| {
        assert_eq!(handle.adjust("rph", 4).await.unwrap(), Settlement::LeaseGone);
        "uncounted"
    });
    let app = Router::new().route("/", handler);
    throttle(&fleet);
    let response = sent(&app.clone().layer(refuses), "/").await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(!text(response).await.contains("weirgate"), "the table is not revealed");
    let response = sent(&app.layer(passes), "/").await;
    assert_eq!(field(response.headers(), "x-ratelimit-degraded"), "true");
    assert_eq!(text(response).await, "uncounted");
}

/// Every kind of key that is no name: none, empty, too long, of other bytes, not UTF-8. It is the
/// client's fault, and no way around the limit, whatever the layer does with errors.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_no_name_is_the_clients_fault() {
    let fleet = Fleet::new().await;
    let charge = |limiter: &'static RateLimiter, request: &Parts| {
        let key = request.headers.get("x-api-key");
        let key = key.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
        let acquire = limiter.acquire(&key.unwrap_or_default(), "gpt-4");
        Some(acquire.limits(&limits()).take("rph", 10))
    };
    let limiter: &'static RateLimiter = Box::leak(Box::new(fleet.limiter().await));
    let layer =
        RateLimitLayer::new(limiter.clone(), move |_, request: &Parts| charge(limiter, request));
    let app =
        Router::new().route("/", get(async || "served")).layer(layer.on_error(|_| OnError::Pass));
    let mut keys = vec![None, Some(vec![]), Some(vec![b'a'; 257])];
    // All bytes that a header can have, at the beginning and later.
    let bytes = (b' '..=255).filter(|byte| *byte != 0x7f).chain([b'\t']);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric();
    keys.extend(bytes.filter(|byte| !is_name(byte)).flat_map(|byte| {
        let inner = b"_.-:@".contains(&byte);
        [Some(vec![byte, b'a']), (!inner).then(|| vec![b'a', byte, b'b'])]
    }));
    let mut refused = 0;
    for key in keys {
        for content_type in ["text/plain", "application/grpc"] {
            let mut request = Request::get("/").header("content-type", content_type);
            if let Some(key) = &key {
                request = request.header("x-api-key", HeaderValue::from_bytes(key).unwrap());
            }
            let request = request.body(Body::empty()).unwrap();
            let response = app.clone().oneshot(request).await.unwrap();
            match content_type {
                "text/plain" => assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{key:?}"),
                _ => assert_eq!(field(response.headers(), "grpc-status"), "3", "{key:?}"),
            }
            let text = text(response).await;
            assert_ne!(text, "served");
            assert!(text.is_empty() || text.contains("1 to 256"), "{text}");
            refused += 1;
        }
    }
    assert!(refused > 300, "{refused}");
    assert_eq!(sent(&app, "/").await.status(), StatusCode::OK);
    assert!(fleet.dynamo.items().len() < 5, "no bucket of a wrong key");
}

/// Whatever is only reported changes nothing of the answer.
#[tokio::test(start_paused = true)]
async fn in_shadow_mode_no_field_status_or_error_is_of_the_limiter() {
    let policies = [
        OnUnavailable::Error,
        OnUnavailable::Deny,
        OnUnavailable::Allow,
        OnUnavailable::Local { percent: 10 },
    ];
    // Of the whole limiter, or of the request.
    for (is_limiters, policy) in
        [true, false].into_iter().flat_map(|kind| policies.map(|policy| (kind, policy)))
    {
        let fleet = Fleet::new().await;
        let builder = fleet.builder().await.on_unavailable(policy);
        let builder = builder.shadow(is_limiters).timeout(millis(200));
        let limiter = builder.build().await.unwrap();
        let layer = RateLimitLayer::new(limiter, move |limiter, request: &Parts| {
            let acquire = charge(limiter, request);
            acquire.map(|acquire| if is_limiters { acquire } else { acquire.shadow() })
        });
        let app = Router::new().route("/", get(async || "done"));
        let expected = sent(&app, "/").await;
        let app = app.layer(layer.with_x_rate_limit(true));
        let broken = || Request::get("/").header("x-api-key", "a#b").body(Body::empty()).unwrap();
        for turn in 0..30 {
            if turn == 20 {
                throttle(&fleet);
            }
            for request in [request("/"), broken()] {
                let response = app.clone().oneshot(request).await.unwrap();
                assert_eq!(response.status(), expected.status(), "{policy:?} {turn}");
                assert_eq!(response.headers(), expected.headers(), "{policy:?} {turn}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_without_dynamodb_is_told_by_a_field_until_the_outage_ends() {
    let fleet = Fleet::new().await;
    let breaker = CircuitBreakerConfig { failure_threshold: 2, ..CircuitBreakerConfig::default() };
    let limiter =
        fleet.limiter_with(|builder| builder.circuit_breaker(breaker).timeout(millis(200))).await;
    let with = |on_unavailable: OnUnavailable| {
        let layer = RateLimitLayer::new(limiter.clone(), move |limiter, request| {
            charge(limiter, request).map(|acquire| acquire.on_unavailable(on_unavailable))
        });
        let app = done().layer(layer);
        async move |request: Request<Body>| {
            let response = app.clone().oneshot(request).await.unwrap();
            let degraded = field(response.headers(), "x-ratelimit-degraded").to_owned();
            (response.status(), degraded)
        }
    };
    let local = with(OnUnavailable::Local { percent: 10 });
    let (allow, deny) = (with(OnUnavailable::Allow), with(OnUnavailable::Deny));
    let granted = StatusCode::OK;
    let is_told = |status: StatusCode| (status, "true".to_owned());
    assert_eq!(local(request("/")).await, (granted, String::new()));

    throttle(&fleet);
    assert_eq!(allow(request("/")).await, is_told(granted));
    let denied = StatusCode::TOO_MANY_REQUESTS;
    assert_eq!(deny(request("/")).await, is_told(denied));
    // A tenth of the limits are ten tokens, and no slot.
    let refused = local(request("/")).await;
    assert_eq!(refused.1, "true", "{refused:?}");
    let mut grpc = request("/");
    let kind = "application/grpc".parse().unwrap();
    grpc.headers_mut().insert("content-type", kind);
    assert_eq!(deny(grpc).await, is_told(granted), "as metadata");

    fleet.fail_writes(None);
    pass(secs(60)).await;
    assert_eq!(deny(request("/")).await, (granted, String::new()));
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_breaker_is_answered_with_the_time_until_it_tries_again() {
    let fleet = Fleet::new().await;
    let breaker = CircuitBreakerConfig {
        failure_threshold: 2,
        open_for: millis(3_400),
        ..CircuitBreakerConfig::default()
    };
    let limiter =
        fleet.limiter_with(|builder| builder.circuit_breaker(breaker).timeout(millis(200))).await;
    let app = done().layer(RateLimitLayer::new(limiter.clone(), charge));
    throttle(&fleet);
    let refused = sent(&app, "/").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        !refused.headers().contains_key("retry-after"),
        "a failed request does not know the time"
    );
    while limiter.stats().breaker_opened == 0 {
        drop(sent(&app, "/").await);
    }

    let refused = sent(&app, "/").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(field(refused.headers(), "retry-after"), "4", "rounded up");
    let mut grpc = request("/");
    let kind = "application/grpc".parse().unwrap();
    grpc.headers_mut().insert("content-type", kind);
    let refused = app.clone().oneshot(grpc).await.unwrap();
    assert_eq!(field(refused.headers(), "grpc-status"), "14");
    assert_eq!(field(refused.headers(), "retry-after"), "4");
    // The request that opened it went on for less than its timeout.
    let pushback = field(refused.headers(), "grpc-retry-pushback-ms");
    let pushback: u64 = pushback.parse().unwrap();
    assert!((3_200..=3_400).contains(&pushback), "{pushback} ms");

    fleet.fail_writes(None);
    pass(secs(4)).await;
    let granted = sent(&app, "/").await;
    assert_eq!(granted.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn two_layers_tell_both_their_limits() {
    let (_fleet, [limiter]) = Fleet::of().await;
    fn whole_service<'a>(limiter: &'a RateLimiter, _: &Parts) -> Option<Acquire<'a>> {
        let limits = [Limit::per_second("all", 50).unwrap()];
        Some(limiter.acquire("all", "api").limits(&limits).take("all", 1))
    }
    let app = done().layer(RateLimitLayer::new(limiter.clone(), charge)).layer(
        RateLimitLayer::new(limiter, whole_service).names(|_, _, limit| format!("service-{limit}")),
    );
    let response = sent(&app, "/").await;
    let told: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(told, [r#""rph";r=90;t=3240, "slots";r=1"#, r#""service-all";r=49;t=1"#]);
}

/// A service that may only be called where it was asked whether it is ready, as those that hold a
/// permit.
#[derive(Debug, Default)]
struct Strict {
    is_ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<Body>> for Strict {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being ready");
        ready(Ok(Response::new(Body::empty())))
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_that_is_called_is_the_one_that_was_ready() {
    let fleet = Fleet::new().await;
    let mut service = RateLimitLayer::new(fleet.limiter().await, charge).layer(Strict::default());
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(request("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}

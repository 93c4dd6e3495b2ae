//! An API whose callers may each send five requests a minute, two at a time, with its metrics for
//! Prometheus at `/metrics`.
//!
//! ```sh
//! cargo run -p weirgate --features tower --example metrics_prometheus -- my-stack-table
//! cargo run -p weirgate --features tower --example metrics_prometheus -- weirgate --local http://127.0.0.1:8000
//! curl -H 'x-api-key: key-of-alice' http://127.0.0.1:3000/hello
//! curl http://127.0.0.1:3000/metrics
//! ```
//!
//! `--listen 127.0.0.1:8080` listens there.

use std::error::Error;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use weirgate::tower::RateLimitLayer;
use weirgate::{ConnectOptions, Limit, RateLimiter};

/// Upper bounds of the histogram's buckets, in seconds.
///
/// - up to 250 µs: decisions from memory, by prefetched tokens or a cached denial
/// - 1 ms to 50 ms: decisions by one request to DynamoDB, or two
/// - 100 ms to 5 s: requests that are repeated, up to the default timeout, and waits for tokens
const DECISION_SECONDS: [f64; 14] = [
    0.000_01, 0.000_05, 0.000_25, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];
/// The callers by their keys. A real service keeps them in a table.
const CALLERS: [(&str, &str); 2] = [("key-of-alice", "alice"), ("key-of-bob", "bob")];
/// How often recorded values go into the buckets. Without a scrape they would pile up until then.
const UPKEEP: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The recorder comes first: a limiter describes its metrics when it is built.
    let metrics = recorder()?;
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: metrics_prometheus TABLE [--local URL] [--listen ADDRESS]";
    let table = arguments.next().ok_or(usage)?;
    let mut connection = ConnectOptions::default();
    let mut address = "127.0.0.1:3000".to_owned();
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or(usage)?;
        match flag.as_str() {
            "--local" => connection.local_endpoint = Some(value),
            "--listen" => address = value,
            _ => return Err(usage.into()),
        }
    }
    let limiter = RateLimiter::builder(table).connection(connection).build().await?;

    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app(limiter, metrics)?).await?)
}

/// Installs the process's recorder, and returns what renders it.
fn recorder() -> Result<PrometheusHandle, Box<dyn Error>> {
    let name = Matcher::Full("weirgate_decision_seconds".to_owned());
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(name, &DECISION_SECONDS)?
        .install_recorder()?;
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(metrics)
}

/// The API, limited, and its metrics, unlimited.
fn app(limiter: RateLimiter, metrics: PrometheusHandle) -> Result<Router, Box<dyn Error>> {
    let limits = [Limit::per_hour("requests", 5)?];
    let layer = RateLimitLayer::new(limiter, move |limiter, request| {
        let caller = request.extensions.get::<Caller>();
        let caller = caller.map_or("", |Caller(name)| name); // none: 400, instead of no limit
        let acquire = limiter.acquire(caller, "hello").limits(&limits);
        Some(acquire.take("requests", 1))
    });
    let text = async move || {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        ([(CONTENT_TYPE, kind)], metrics.render())
    };
    Ok(Router::new()
        .route("/hello", get(async || "Hello!\n"))
        .layer(layer)
        .layer(middleware::from_fn(authenticate))
        // Added after the layers, so it is not limited.
        .route("/metrics", get(text)))
}

/// A caller, as authentication found it.
#[derive(Debug, Clone)]
struct Caller(&'static str);

async fn authenticate(headers: HeaderMap, mut request: Request, next: Next) -> Response {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    let Some((_, caller)) = CALLERS.iter().find(|(of, _)| key == Some(of)) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(Caller(caller));
    next.run(request).await
}

//! An API in axum whose clients have plans. The layer of the feature `tower` limits requests; the
//! requests here need no network.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example tower_api
//! ```

mod place;

use std::process::ExitCode;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router, body::Body};
use place::{Outcome, Place, run};
use tower::ServiceExt;
use weirgate::tower::{GrantHandle, OnError, RateLimitLayer};
use weirgate::{Config, ConfigLevel, Limit, RateLimiter};

/// Longer than a slot takes to return after a response.
const WAIT: Duration = Duration::from_millis(500);
/// Most rows of a report.
const MAX_ROWS: i64 = 1_000;

fn main() -> ExitCode {
    run(async |place: Place| {
        let limiter = place.builder().owner("api").build().await?;
        plans(&limiter).await?;
        let app = app(limiter);
        for path in ["/report", "/report?rows=5", "/report?rows=7", "/report"] {
            show(&app, "key-of-alice", path).await?;
        }
        show(&app, "key-of-bob", "/report?rows=500").await?;
        show(&app, "key-of-bob", "/report?rows=broken").await?;
        show(&app, "key-of-bob", "/report").await?;
        show(&app, "made-up", "/report").await
    })
}

/// Every customer has the limits of the resource; Bob has bought more.
async fn plans(limiter: &RateLimiter) -> Outcome {
    let plan = |rows, slots| -> Outcome<Config> {
        Ok(Config::of([Limit::per_hour("rows", rows)?, Limit::concurrent("slots", slots)?]))
    };
    let free = ConfigLevel::Resource("report".try_into()?);
    limiter.admin().set_config(&free, &plan(10, 3)?).await?;
    let bought = ConfigLevel::EntityResource("bob".try_into()?, "report".try_into()?);
    limiter.admin().set_config(&bought, &plan(1_000, 5)?).await?;
    Ok(())
}

/// A customer, as authentication found it.
#[derive(Debug, Clone)]
struct Customer(&'static str);

fn app(limiter: RateLimiter) -> Router {
    let limits = RateLimitLayer::new(limiter, |limiter, request| {
        let customer = request.extensions.get::<Customer>();
        let name = customer.map_or("", |Customer(name)| name); // none: 400, instead of no limit
        let acquire = limiter.acquire(name, "report").wait_up_to(WAIT);
        Some(acquire.take("rows", 1).take("slots", 1)) // the rows are corrected by the handler
    })
    .refund_if(|status| status.is_server_error())
    .on_error(|error| match error.is_transient() {
        true => OnError::Pass, // rather no limit than no service
        false => OnError::Refuse,
    });
    let report = get(report).layer(limits);
    // The layer that is added last runs first, so the limits see a customer that was verified.
    Router::new().route("/report", report.layer(middleware::from_fn(authenticate)))
}

async fn authenticate(headers: HeaderMap, mut request: Request, next: Next) -> Response {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    let customer = match key {
        Some("key-of-alice") => Customer("alice"),
        Some("key-of-bob") => Customer("bob"),
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    request.extensions_mut().insert(customer);
    next.run(request).await
}

async fn report(Extension(grant): Extension<GrantHandle>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or("rows=1");
    let rows = query.strip_prefix("rows=").map(str::parse::<i64>);
    let Some(Ok(rows @ 1..=MAX_ROWS)) = rows else {
        return StatusCode::BAD_REQUEST.into_response(); // which costs a row
    };
    match grant.adjust("rows", rows).await {
        Ok(_) => {}
        Err(error) if error.is_transient() => {
            eprintln!("{rows} rows could not be counted: {error}"); // the client gets them anyway
        }
        Err(error) => {
            eprintln!("{rows} rows cannot be counted: {error}"); // no request would be
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    }
    format!("{rows} rows").into_response()
}

/// Sends a request, and prints the status and the fields of the limits.
async fn show(app: &Router, key: &str, path: &str) -> Outcome {
    let request = Request::get(path).header("x-api-key", key);
    let response = app.clone().oneshot(request.body(Body::empty())?).await?;
    println!("{key} GET {path}: {}", response.status());
    for name in ["ratelimit", "retry-after"] {
        if let Some(value) = response.headers().get(name) {
            println!("    {name}: {}", value.to_str()?);
        }
    }
    drop(axum::body::to_bytes(response.into_body(), usize::MAX).await?);
    Ok(())
}

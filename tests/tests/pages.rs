//! The guides state the numbers of the code, and show its answers. `scripts/pages.py` checks the
//! links of all pages.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::routing::get;
use http::Request;
use tower::ServiceExt;
use weirgate::Limit;
use weirgate::tower::RateLimitLayer;
use weirgate_tools::number::Grouped;
use weirgate_tools::scaling::{Scenario, facts, snapshot_units};

/// The lines of a page as one, so that a sentence is found wherever it is wrapped.
fn unwrapped(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_of_costs_states_the_computed_shards_and_units() {
    let costs = unwrapped(include_str!("../../docs/guide/costs.md"));
    let shared = Scenario {
        acquires: 10_000,
        acquires_per_write: facts::ACQUIRES_PER_SHARED_WRITE,
    };
    assert_eq!(shared.numbers().shards, 1);
    let shards = format!(
        "10,000 acquires a second on one key take {} shards if each caller is alone, and one shard if {} acquires \
         share a write.",
        Scenario::alone(10_000).numbers().shards,
        facts::ACQUIRES_PER_SHARED_WRITE
    );
    assert!(costs.contains(&shards), "{shards}");

    // Of the hour at its end, of the day at its begin and end, and of both in between.
    let row = format!(
        "usage of an acquire, hour and day: {0} an hour and {1} a day for each bucket, and {1} in {2} acquires",
        snapshot_units(1),
        facts::WINDOWS * snapshot_units(1),
        Grouped(facts::INTERIM_WRITES),
    );
    assert!(costs.contains(&row), "{row}");
}

/// The layer of the guide, on a table in memory.
#[tokio::test(start_paused = true)]
async fn the_guide_shows_what_a_denied_request_is_answered() {
    let (limiter, _) = weirgate::testing::limiter().await;
    let limits = [
        Limit::per_minute("requests", 5).unwrap(),
        Limit::concurrent("slots", 2).unwrap(),
    ];
    let layer = RateLimitLayer::new(limiter, move |limiter, request| {
        let key = request.headers.get("x-api-key")?.to_str().ok()?;
        let acquire = limiter.acquire(key, "hello").limits(&limits);
        Some(acquire.take("requests", 1).take("slots", 1))
    });
    let app = Router::new()
        .route("/hello", get(async || "hello"))
        .layer(layer);
    let ask = async || {
        let request = Request::get("/hello").header("x-api-key", "alice");
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap());
        let (head, body) = response.await.unwrap().into_parts();
        (head, to_bytes(body, 10_000).await.unwrap())
    };
    for _ in 0..5 {
        assert_eq!(ask().await.0.status, 200);
        // The slot returns in the background.
        tokio::task::yield_now().await;
    }
    let (head, body) = ask().await;
    let guide = include_str!("../../docs/guide/http.md");
    let (_, shown) = guide.split_once("```text\nHTTP/1.1 ").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    let (fields, problem) = shown.split_once("\n\n").unwrap();
    let mut fields = fields.lines();
    assert_eq!(fields.next(), Some(&*head.status.to_string()));
    for field in fields {
        let (name, value) = field.split_once(": ").unwrap();
        assert_eq!(head.headers[name], value, "{name}");
    }
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    assert_eq!(json(problem.as_bytes()), json(&body));
}

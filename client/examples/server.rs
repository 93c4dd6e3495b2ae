//! An API whose callers may each send five requests a minute, two at a time.
//!
//! ```sh
//! cargo run -p weirgate --features tower --example server -- my-stack-table
//! cargo run -p weirgate --features tower --example server -- weirgate --local http://127.0.0.1:8000
//! curl -i -H 'x-api-key: key-of-alice' http://127.0.0.1:3000/hello
//! ```
//!
//! With `--local` the table is that of a local DynamoDB, and made there if it is missing.

use std::error::Error;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use weirgate::tower::RateLimitLayer;
use weirgate::{ConnectOptions, Limit, LimitError, RateLimiter};

/// The callers by their keys. A real service keeps them in a table.
const CALLERS: [(&str, &str); 2] = [("key-of-alice", "alice"), ("key-of-bob", "bob")];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (table, connection) = match &arguments[..] {
        [table] => (table, ConnectOptions::default()),
        [table, flag, url] if flag == "--local" => (table, local(table, url).await?),
        _ => return Err("usage: server TABLE [--local URL]".into()),
    };
    let limiter = RateLimiter::builder(table)
        .connection(connection)
        .build()
        .await?;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}/hello", listener.local_addr()?);
    Ok(axum::serve(listener, app(limiter)?).await?)
}

/// A caller, as authentication found it.
#[derive(Debug, Clone)]
struct Caller(&'static str);

fn app(limiter: RateLimiter) -> Result<Router, LimitError> {
    let limits = [
        Limit::per_minute("requests", 5)?,
        Limit::concurrent("slots", 2)?,
    ];
    let layer = RateLimitLayer::new(limiter, move |limiter, request| {
        let caller = request.extensions.get::<Caller>();
        let caller = caller.map_or("", |Caller(name)| name); // none: 400, instead of no limit
        Some(
            limiter
                .acquire(caller, "hello")
                .limits(&limits)
                .take("requests", 1)
                .take("slots", 1),
        )
    });
    // The layer that is added last runs first, so the limits see a caller that was verified.
    Ok(Router::new()
        .route("/hello", get(async || "Hello!\n"))
        .layer(layer)
        .layer(middleware::from_fn(authenticate)))
}

async fn authenticate(headers: HeaderMap, mut request: Request, next: Next) -> Response {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    let Some((_, caller)) = CALLERS.iter().find(|(of, _)| key == Some(of)) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(Caller(caller));
    next.run(request).await
}

/// A local DynamoDB, with the table.
async fn local(table: &str, url: &str) -> Result<ConnectOptions, Box<dyn Error>> {
    let connection = ConnectOptions {
        local_endpoint: Some(url.to_owned()),
        ..ConnectOptions::default()
    };
    let weirgate_store::Connection { client, .. } =
        weirgate_store::connect(connection.clone()).await;
    if client
        .describe_table()
        .table_name(table)
        .send()
        .await
        .is_err()
    {
        weirgate_store::create_table(&client, table).await?;
    }
    Ok(connection)
}

#[cfg(all(test, feature = "testing"))]
mod attack {
    use axum::body::Body;
    use tower_service::Service;
    use weirgate::testing::TestTable;

    use super::*;

    async fn ask(app: &Router, keys: &[&[u8]]) -> StatusCode {
        let mut request = Request::get("/hello");
        for key in keys {
            request = request.header("x-api-key", *key);
        }
        let request = request.body(Body::empty()).expect("a request");
        let response = app.clone().call(request).await.expect("an answer");
        response.status()
    }

    /// A key that is made up has no bucket, and takes nothing of the bucket of a caller.
    #[tokio::test(start_paused = true)]
    async fn only_a_known_key_reaches_the_limits() {
        let app = app(TestTable::new().limiter().await).expect("valid limits");
        let unknown: [&[&[u8]]; 9] = [
            &[],
            &[b""],
            &[b"alice"],
            &[b"anonymous"],
            &[b"made-up"],
            &[b"KEY-OF-ALICE"],
            &[b"key-of-alice,key-of-bob"],
            &[b"\xff"],
            &[b"made-up", b"key-of-alice"],
        ];
        for keys in unknown {
            for _ in 0..6 {
                assert_eq!(ask(&app, keys).await, StatusCode::UNAUTHORIZED, "{keys:?}");
            }
        }
        for key in [b"key-of-alice".as_slice(), b"key-of-bob"] {
            for _ in 0..5 {
                assert_eq!(ask(&app, &[key]).await, StatusCode::OK);
            }
            assert_eq!(ask(&app, &[key]).await, StatusCode::TOO_MANY_REQUESTS);
        }
    }
}

//! An API whose callers may each send five requests a minute, two at a time.
//!
//! ```sh
//! cargo run -p weirgate --features tower --example server -- my-stack-table
//! cargo run -p weirgate --features tower --example server -- weirgate --local http://127.0.0.1:8000
//! curl -i -H 'x-api-key: alice' http://127.0.0.1:3000/hello
//! ```
//!
//! With `--local` the table is that of a local DynamoDB, and made there if it is missing.

use std::error::Error;

use axum::{Router, routing::get};
use weirgate::tower::RateLimitLayer;
use weirgate::{ConnectOptions, Limit, RateLimiter};

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

    let limits = [
        Limit::per_minute("requests", 5)?,
        Limit::concurrent("slots", 2)?,
    ];
    let layer = RateLimitLayer::new(limiter, move |limiter, request| {
        // This example trusts the header. A real service looks a key up, and limits its owner.
        let caller = request
            .headers
            .get("x-api-key")
            .and_then(|key| key.to_str().ok())
            .unwrap_or("anonymous");
        Some(
            limiter
                .acquire(caller, "hello")
                .limits(&limits)
                .take("requests", 1)
                .take("slots", 1),
        )
    });
    let app = Router::new()
        .route("/hello", get(async || "Hello!\n"))
        .layer(layer);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}/hello", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
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

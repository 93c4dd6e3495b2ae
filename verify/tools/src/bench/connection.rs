//! How the benchmarks reach a table.

use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use weirgate::{Limit, RateLimiter};
use weirgate_store::{ConnectOptions, Table, connect};

/// Returns the SDK's client of an endpoint, and the table there.
pub async fn connected(endpoint: &str) -> (Client, Table) {
    let options = ConnectOptions {
        local_endpoint: Some(endpoint.to_owned()),
        ..ConnectOptions::default()
    };
    let connected = connect(options).await;
    (connected.client.clone(), Table::new(connected, "weirgate"))
}

/// Returns a limiter on a table, as it is by default.
///
/// # Panics
/// If the default settings are refused.
pub async fn limiter(table: Table) -> RateLimiter {
    let built = RateLimiter::builder("weirgate").table(table).build().await;
    built.expect("the default settings are good")
}

/// Returns limits that nothing here uses up.
///
/// # Panics
/// If they are refused.
#[must_use]
pub fn far_limits() -> Arc<[Limit]> {
    let far = |name| Limit::per_second(name, 1_000_000_000).expect("a limit");
    Arc::new([far("rpm"), far("tpm")])
}

//! The connection to the deployed stack, and the time.

use std::time::{SystemTime, UNIX_EPOCH};

use weirgate::EpochMillis;
use weirgate_store::{ConnectOptions, Connection, connect};

pub(crate) async fn connected(endpoint: &str) -> Connection {
    connect(ConnectOptions {
        local_endpoint: Some(endpoint.to_owned()),
        ..ConnectOptions::default()
    })
    .await
}

pub(crate) fn now() -> EpochMillis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    EpochMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

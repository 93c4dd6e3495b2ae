//! HTTP client that reuses connections on the runtime that made them, and not after a long idle time,
//! measured by the larger of two clocks.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::config::{ConfigBag, RuntimeComponents, SharedHttpClient};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponentsBuilder;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;
use weirgate_shared::EpochMillis;

use crate::Clock;
use crate::proxy::https_connector;

/// Maximum idle time of a connection. Services close idle connections after 20 s or more, and a
/// request on a closed one may be lost.
const IDLE: Duration = Duration::from_secs(10);

/// An HTTP client that opens new connections on each runtime, because a connection stands still with
/// its runtime, and after its process was frozen.
pub(crate) struct Https {
    wall: Arc<dyn Clock>,
    pools: Mutex<HashMap<Option<Id>, Pool>>,
}

/// The connections of one runtime. They are dropped once idle for [`IDLE`] by the monotonic clock,
/// which stands still in a frozen process.
struct Pool {
    client: SharedHttpClient,
    /// Start of the last request, by both clocks.
    used: (Instant, EpochMillis),
}

impl Https {
    pub(crate) fn new(wall: Arc<dyn Clock>) -> Self {
        Self { wall, pools: Mutex::default() }
    }
}

/// Returns a client with connections of its own.
fn pool() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new().build_with_connector_fn(|settings, components| {
        https_connector(Some(IDLE), settings, components)
    })
}

impl HttpClient for Https {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let now = (Instant::now(), self.wall.now());
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |pool: &Pool| now.0.saturating_duration_since(pool.used.0) >= IDLE;
        pools.retain(|of, pool| *of == runtime || !is_idle(pool));
        let pool = pools.entry(runtime).or_insert_with(|| Pool { client: pool(), used: now });
        // The pool itself drops connections that were idle for long by the monotonic clock.
        if Duration::from(now.1.since(pool.used.1)) >= IDLE && !is_idle(pool) {
            tracing::debug!("process was frozen: reopening connections");
            pool.client = self::pool();
        }
        pool.used = now;
        pool.client.http_connector(settings, components)
    }

    fn validate_base_client_config(
        &self,
        components: &RuntimeComponentsBuilder,
        config: &ConfigBag,
    ) -> Result<(), BoxError> {
        pool().validate_base_client_config(components, config)
    }
}

impl fmt::Debug for Https {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Https")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::{ConnectOptions, Table, connect};

    #[derive(Debug, Default)]
    struct Wall(AtomicI64);

    impl Clock for Wall {
        fn now(&self) -> EpochMillis {
            EpochMillis(1_795_197_600_000 + self.0.load(Ordering::Relaxed))
        }
    }

    /// Answers every request on a connection with an empty item.
    async fn answer(mut stream: TcpStream) {
        let mut request = vec![];
        while let Ok(1..) = stream.read_buf(&mut request).await {
            let text = String::from_utf8_lossy(&request);
            let Some(head) = text.find("\r\n\r\n") else {
                continue;
            };
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if request.len() >= head + 4 + length.unwrap_or_default() {
                let answer =
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: 2\r\n\r\n{}";
                stream.write_all(answer).await.unwrap();
                request.clear();
            }
        }
    }

    /// A table behind a server on the current runtime, and the number of connections to it.
    async fn served(clock: Arc<dyn Clock>) -> (Table, Arc<AtomicU32>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let made = Arc::<AtomicU32>::default();
        let count = Arc::clone(&made);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(answer(stream));
            }
        });
        let options =
            ConnectOptions { local_endpoint: Some(endpoint), clock, ..ConnectOptions::default() };
        (Table::new(connect(options).await, "limits"), made)
    }

    /// A runtime that is not driven answers nothing on its connections.
    #[test]
    fn each_runtime_has_connections_of_its_own() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap()
        };
        let (server, [one, other]) = (runtime(), [runtime(), runtime()]);
        let (table, made) = server.block_on(served(Arc::<Wall>::default()));
        std::thread::spawn(move || server.block_on(std::future::pending::<()>()));
        for (runtime, connections) in [(&one, 1), (&other, 2), (&one, 2), (&other, 2)] {
            runtime.block_on(table.warm()).unwrap();
            assert_eq!(made.load(Ordering::Relaxed), connections);
        }
    }

    #[tokio::test]
    async fn a_process_that_was_frozen_makes_its_connections_again() {
        let wall = Arc::<Wall>::default();
        let (table, made) = served(wall.clone()).await;
        for (frozen_ms, connections) in
            [(0, 1), (0, 1), (9_000, 1), (10_000, 2), (0, 2), (-3_600_000, 2), (86_400_000, 3)]
        {
            wall.0.fetch_add(frozen_ms, Ordering::Relaxed);
            table.warm().await.unwrap();
            assert_eq!(made.load(Ordering::Relaxed), connections, "{frozen_ms}");
        }
    }
}

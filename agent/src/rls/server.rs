//! Listens for calls.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::routes::{Envoy, Kuadrant, Methods};
use super::service::RateLimitService;

/// Most calls at the same time on one connection, 1,000.
const MAX_STREAMS: u32 = 1_000;
/// Longest list of headers, 16 KiB.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Time after which a silent connection is asked whether it is alive, and must answer.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Listens on an address.
///
/// # Errors
/// A sentence that names the address and the remedy.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| {
        format!("--grpc {address}: {error}; stop the process that uses it, or give another --grpc")
    })
}

/// Serves both services and `grpc.health.v1` until `shutdown`, and then ends the calls that have
/// begun. The health is serving between `ready` and `shutdown`.
///
/// # Errors
/// [`io::Error`] if the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    service: RateLimitService,
    ready: impl Future<Output = ()> + Send + 'static,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let service = Arc::new(service);
    let (reporter, health) = tonic_health::server::health_reporter();
    // The name without a service is that of the whole server.
    reporter
        .set_service_status("", tonic_health::ServingStatus::NotServing)
        .await;
    reporter.set_not_serving::<Methods<Envoy>>().await;
    reporter.set_not_serving::<Methods<Kuadrant>>().await;
    let becoming = {
        let reporter = reporter.clone();
        tokio::spawn(async move {
            ready.await;
            reporter
                .set_service_status("", tonic_health::ServingStatus::Serving)
                .await;
            reporter.set_serving::<Methods<Envoy>>().await;
            reporter.set_serving::<Methods<Kuadrant>>().await;
        })
    };
    let ended = async move {
        shutdown.await;
        becoming.abort();
        reporter
            .set_service_status("", tonic_health::ServingStatus::NotServing)
            .await;
        reporter.set_not_serving::<Methods<Envoy>>().await;
        reporter.set_not_serving::<Methods<Kuadrant>>().await;
    };
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .add_service(Methods::<Envoy>::new(Arc::clone(&service)))
        .add_service(Methods::<Kuadrant>::new(service))
        .add_service(health)
        .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), ended)
        .await
        .map_err(io::Error::other)
}

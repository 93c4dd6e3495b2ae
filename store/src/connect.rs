//! The one place that builds an SDK client: TLS provider, timeouts and retry policy are explicit.

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, SharedHttpClient, StalledStreamProtectionConfig};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

/// How to reach DynamoDB. Region, credentials and endpoint come from the environment, also `AWS_ENDPOINT_URL`.
#[derive(Debug, Clone)]
pub struct Connection {
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long one request may take, connecting included. Its outcome is unknown then.
    pub request_timeout: Duration,
    /// A local DynamoDB at this URL, with made-up region and credentials.
    pub local_endpoint: Option<String>,
    /// Another transport than HTTP, for tests.
    pub http_client: Option<SharedHttpClient>,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(3),
            local_endpoint: None,
            http_client: None,
        }
    }
}

/// An SDK client.
///
/// The SDK's own retries are off: they repeat a write whose answer was lost, and a write that adds would then count
/// more than once. [`crate::Table`] retries what was certainly not applied.
pub async fn connect(connection: Connection) -> Client {
    let http = connection.http_client.unwrap_or_else(|| {
        // Ring needs no C toolchain beyond cc for either architecture, and its first handshake is fast on the small
        // CPU share of a small function.
        aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
    });
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(connection.connect_timeout)
        .operation_attempt_timeout(connection.request_timeout)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(http)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    if let Some(endpoint) = connection.local_endpoint {
        loader = loader
            .endpoint_url(endpoint)
            .region(Region::from_static("us-east-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "local"));
    }
    Client::new(&loader.load().await)
}

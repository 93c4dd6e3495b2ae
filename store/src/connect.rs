//! The only place that builds an SDK client, with explicit TLS provider, timeouts and retry policy.

use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::provider::{ProvideCredentials, error::CredentialsError, future};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{
    BehaviorVersion, Config, Credentials, Region, SharedHttpClient, StalledStreamProtectionConfig,
};

use crate::date::DateInterceptor;
use crate::idle::Https;
use crate::{Clock, CorrectedClock, SystemClock};

/// How to reach DynamoDB. Region, credentials and endpoint (also `AWS_ENDPOINT_URL`) come from the
/// environment, unless they are given here.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Timeout of a new connection.
    pub connect_timeout: Duration,
    /// Timeout of one request, connecting included. The outcome is then unknown.
    pub request_timeout: Duration,
    /// URL of a local DynamoDB, which gets made-up region and credentials.
    pub local_endpoint: Option<String>,
    /// Profile of the AWS configuration instead of the one of the environment. This field and the
    /// next two need the feature `chain`.
    pub profile: Option<String>,
    /// Region instead of the one of the environment.
    pub region: Option<String>,
    /// URL of DynamoDB instead of the one of the environment.
    pub endpoint_url: Option<String>,
    /// Transport instead of HTTP, for tests.
    pub http_client: Option<SharedHttpClient>,
    /// Machine's clock, or another one for tests.
    pub clock: Arc<dyn Clock>,
}

/// An SDK client, and the clock that it corrects.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The client.
    pub client: Client,
    /// The connection's clock, corrected by every response.
    pub skew: CorrectedClock,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(3),
            local_endpoint: None,
            profile: None,
            region: None,
            endpoint_url: None,
            http_client: None,
            clock: Arc::new(SystemClock),
        }
    }
}

impl ConnectOptions {
    /// Sets the URL of DynamoDB. One of this machine needs no credentials, unless the environment or
    /// a profile has some: then it may be a proxy.
    #[must_use]
    pub fn with_endpoint(self, url: Option<String>) -> Self {
        let url = url.filter(|url| !url.is_empty());
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let has_credentials =
            self.profile.is_some() || is_set("AWS_PROFILE") || is_set("AWS_ACCESS_KEY_ID");
        let is_local = url.as_deref().is_some_and(Self::is_loopback) && !has_credentials;
        let (local_endpoint, endpoint_url) = match is_local {
            true => (url, None),
            false => (None, url),
        };
        Self {
            local_endpoint,
            endpoint_url,
            ..self
        }
    }
}

/// Returns an SDK client whose responses correct the connection's clock.
///
/// Turns off the SDK's retries: they repeat unconfirmed writes, so a write that adds could be
/// applied twice. [`crate::Table`] retries only writes that were certainly not applied.
pub async fn connect(connection: ConnectOptions) -> Connection {
    let http = http(&connection);
    let config = match local(&connection) {
        Some(local) => local,
        None => environment(&http, &connection).await,
    };
    build(connection, http, config)
}

/// Returns an SDK client configured by `lookup` instead of the environment. It reads only the
/// variables that Lambda sets, unless the connection has a local endpoint.
#[must_use]
pub fn connect_with(
    connection: ConnectOptions,
    lookup: impl Fn(&str) -> Option<String>,
) -> Connection {
    let http = http(&connection);
    let config = local(&connection).unwrap_or_else(|| variables(lookup));
    build(connection, http, config)
}

fn local(connection: &ConnectOptions) -> Option<aws_sdk_dynamodb::config::Builder> {
    let local = Config::builder()
        .endpoint_url(connection.local_endpoint.as_ref()?)
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "local"));
    Some(local)
}

fn http(connection: &ConnectOptions) -> SharedHttpClient {
    let https = || SharedHttpClient::new(Https::new(Arc::clone(&connection.clock)));
    connection.http_client.clone().unwrap_or_else(https)
}

fn build(
    connection: ConnectOptions,
    http: SharedHttpClient,
    config: aws_sdk_dynamodb::config::Builder,
) -> Connection {
    let skew = CorrectedClock::of(connection.clock);
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(connection.connect_timeout)
        .operation_attempt_timeout(connection.request_timeout)
        .build();
    let config = config
        .behavior_version(BehaviorVersion::v2026_01_12())
        .http_client(http)
        .retry_config(RetryConfig::disabled())
        // Two corrections of one clock would interfere. This one also dates credentials and
        // buckets.
        .disable_clock_skew_correction(true)
        .time_source(skew.clone())
        .interceptor(DateInterceptor(skew.clone()))
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    Connection {
        client: Client::from_conf(config.build()),
        skew,
    }
}

#[cfg(feature = "chain")]
async fn environment(
    http: &SharedHttpClient,
    connection: &ConnectOptions,
) -> aws_sdk_dynamodb::config::Builder {
    (&chain(http, connection).await).into()
}

/// Returns the configuration of clients of other services, with the same transport, region and
/// credentials. The connection's local endpoint is not used.
#[cfg(feature = "chain")]
pub async fn sdk_config(connection: &ConnectOptions) -> aws_config::SdkConfig {
    chain(&http(connection), connection).await
}

/// Reads region, credentials and endpoint from the SDK's default chain.
#[cfg(feature = "chain")]
async fn chain(http: &SharedHttpClient, connection: &ConnectOptions) -> aws_config::SdkConfig {
    let mut chain = aws_config::defaults(BehaviorVersion::v2026_01_12()).http_client(http.clone());
    if let Some(profile) = &connection.profile {
        chain = chain.profile_name(profile);
    }
    if let Some(region) = &connection.region {
        chain = chain.region(Region::new(region.clone()));
    }
    if let Some(url) = &connection.endpoint_url {
        chain = chain.endpoint_url(url);
    }
    chain.load().await
}

/// Reads region, credentials and endpoint from the variables that Lambda sets. A function needs no
/// other source, and is a sixth smaller without them.
#[cfg(not(feature = "chain"))]
async fn environment(
    _: &SharedHttpClient,
    _: &ConnectOptions,
) -> aws_sdk_dynamodb::config::Builder {
    variables(|name| std::env::var(name).ok())
}

/// A missing variable fails the first request with an error that names it.
fn variables(lookup: impl Fn(&str) -> Option<String>) -> aws_sdk_dynamodb::config::Builder {
    let variable = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let endpoint = variable("AWS_ENDPOINT_URL_DYNAMODB").or_else(|| variable("AWS_ENDPOINT_URL"));
    let mut config = Config::builder();
    config
        .set_region(variable("AWS_REGION").map(Region::new))
        .set_endpoint_url(endpoint);
    // These are sent in headers; the SDK panics on characters that a header cannot contain.
    let is_text = |name: &&str| {
        variable(name).is_none_or(|value| value.bytes().all(|byte| matches!(byte, b' '..=b'~')))
    };
    let names = ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"];
    if let Some(name) = names.into_iter().find(|name| !is_text(name)) {
        return config.credentials_provider(UnusableCredentials(format!(
            "{name} holds a character that is no printable ASCII"
        )));
    }
    match (
        variable("AWS_ACCESS_KEY_ID"),
        variable("AWS_SECRET_ACCESS_KEY"),
    ) {
        (Some(id), Some(secret)) => {
            let credentials = Credentials::new(
                id,
                secret,
                variable("AWS_SESSION_TOKEN"),
                None,
                "environment",
            );
            config.credentials_provider(credentials)
        }
        _ => config.credentials_provider(UnusableCredentials(
            "AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY is not set".to_owned(),
        )),
    }
}

/// Credentials that are missing from the environment or cannot be sent, and the reason.
#[derive(Debug)]
struct UnusableCredentials(String);

impl ProvideCredentials for UnusableCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(Err(CredentialsError::not_loaded(self.0.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Table};

    /// A function whose variables are not set says so, and does not take it for a lost connection.
    #[tokio::test]
    async fn without_the_variables_of_credentials_nothing_is_sent() {
        let set = |name: &str| match name {
            "AWS_REGION" => Some("eu-west-1".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some(String::new()),
            _ => None,
        };
        let connected = connect_with(ConnectOptions::default(), set);
        let error = Table::new(connected, "limits").warm().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::MissingCredentials, "{error}");
        assert!(!error.kind.is_transient() && error.kind.was_not_applied());
        assert!(
            error.reason.contains("AWS_SECRET_ACCESS_KEY is not set"),
            "{error}"
        );
        for broken in ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"] {
            let set = |name: &str| {
                let value = if name == "AWS_REGION" {
                    "eu-west-1"
                } else {
                    "text"
                };
                let value = if name == broken {
                    format!("{value}\n")
                } else {
                    value.to_owned()
                };
                (!name.contains("ENDPOINT")).then_some(value)
            };
            let error = Table::new(connect_with(ConnectOptions::default(), set), "limits")
                .warm()
                .await
                .unwrap_err();
            assert!(
                error.kind == ErrorKind::MissingCredentials && error.reason.contains(broken),
                "{error}"
            );
        }
        let local = ConnectOptions {
            local_endpoint: Some("http://127.0.0.1:9".to_owned()),
            ..ConnectOptions::default()
        };
        let error = Table::new(connect_with(local, set), "limits")
            .warm()
            .await
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
    }
}

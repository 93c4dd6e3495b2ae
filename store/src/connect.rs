//! The only place that builds an SDK client, with explicit TLS provider, timeouts and retry policy.

#[cfg(feature = "chain")]
use std::collections::HashMap;
#[cfg(feature = "chain")]
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::provider::{ProvideCredentials, error::CredentialsError, future};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{
    BehaviorVersion, Config, Credentials, Region, SharedHttpClient, StalledStreamProtectionConfig,
};

#[cfg(feature = "chain")]
use aws_types::os_shim_internal::Fs;

#[cfg(feature = "chain")]
use crate::credentials::CredentialsLoader;
use crate::date::DateInterceptor;
use crate::idle::Https;
use crate::proxy;
use crate::request_endpoint::RequestEndpoint;
use crate::{Clock, CorrectedClock, SystemClock};

/// How to reach DynamoDB. Region, credentials and endpoint (also `AWS_ENDPOINT_URL`) come from the
/// environment, unless they are given here. Empty variables and texts count as not given.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Timeout of a new connection.
    pub connect_timeout: Duration,
    /// Timeout of one request, connecting included. The outcome is then unknown.
    pub request_timeout: Duration,
    /// URL of a local DynamoDB, which gets made-up region and credentials.
    pub local_endpoint: Option<String>,
    /// Profile of the AWS configuration instead of the one of the environment, and of its keys. This
    /// field and the next two need the feature `chain`.
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
    pub(crate) endpoint: RequestEndpoint,
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
        let has_profile = self.profile.as_ref().is_some_and(|name| !name.is_empty());
        let has_credentials = has_profile || is_set("AWS_PROFILE") || is_set("AWS_ACCESS_KEY_ID");
        let is_local = url.as_deref().is_some_and(Self::is_loopback) && !has_credentials;
        let (local_endpoint, endpoint_url) = match is_local {
            true => (url, None),
            false => (None, url),
        };
        Self { local_endpoint, endpoint_url, ..self }
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
    let endpoint = connection.local_endpoint.as_ref();
    let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty())?;
    if let Some(reason) = endpoint_fault("the local endpoint", endpoint) {
        return Some(unusable(reason));
    }
    let local = Config::builder()
        .endpoint_url(endpoint)
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
    let endpoint = RequestEndpoint::default();
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
        .interceptor(endpoint.clone())
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    Connection { client: Client::from_conf(config.build()), skew, endpoint }
}

#[cfg(feature = "chain")]
async fn environment(
    http: &SharedHttpClient,
    connection: &ConnectOptions,
) -> aws_sdk_dynamodb::config::Builder {
    with_chain(http, connection, set_variables()).await
}

#[cfg(feature = "chain")]
async fn with_chain(
    http: &SharedHttpClient,
    connection: &ConnectOptions,
    variables: HashMap<String, String>,
) -> aws_sdk_dynamodb::config::Builder {
    let variables = of_profile(connection, variables);
    let given = connection.endpoint_url.as_deref().unwrap_or_default();
    let lookup = |name: &str| variables.get(name).cloned();
    let fault = credentials_fault(lookup).or_else(proxy::fault);
    let fault = fault.or_else(|| match given {
        "" => environment_fault(lookup),
        given => endpoint_fault("the endpoint's URL", given),
    });
    if let Some(reason) = fault {
        return unusable(reason);
    }
    if let Some(reason) = profile_fault(connection, &variables).await {
        return unusable(reason);
    }
    let config = chain(http, connection, variables).await;
    match config.region() {
        Some(_) => {
            let given = aws_sdk_dynamodb::config::Builder::from(&config);
            match config.credentials_provider() {
                Some(source) => {
                    let timeout = connection.request_timeout;
                    given.credentials_provider(CredentialsLoader::new(source, timeout))
                }
                None => given,
            }
        }
        None => {
            unusable("no region is set: set AWS_REGION, or the region of the profile".to_owned())
        }
    }
}

/// Returns the variables without keys, if the connection names a profile: the keys are that profile's then,
/// where the SDK would take those of the environment first.
#[cfg(feature = "chain")]
fn of_profile(
    connection: &ConnectOptions,
    mut variables: HashMap<String, String>,
) -> HashMap<String, String> {
    if connection.profile.as_ref().is_some_and(|name| !name.is_empty()) {
        variables.retain(|name, _| !KEYS.contains(&name.as_str()));
    }
    variables
}

/// Variables with the keys.
#[cfg(feature = "chain")]
const KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// Returns why there is no profile of the name that is given, if so. Keys in the environment come
/// before its profile, so that one may be missing.
#[cfg(feature = "chain")]
async fn profile_fault(
    connection: &ConnectOptions,
    variables: &HashMap<String, String>,
) -> Option<String> {
    let given = connection.profile.as_ref().filter(|name| !name.is_empty());
    let set = || {
        let name = variables.get("AWS_PROFILE")?;
        (!variables.contains_key("AWS_ACCESS_KEY_ID")).then_some(name)
    };
    let name = given.or_else(set).filter(|name| *name != "default")?;
    let (disk, variables) = (Fs::real(), variables.clone().into());
    // Files that cannot be read are an error of the credentials, which names them.
    let known =
        aws_config::profile::load(&disk, &variables, &Default::default(), None).await.ok()?;
    if known.get_profile(name).is_some() {
        return None;
    }
    let mut names: Vec<_> = known.profiles().map(|name| format!("{name:?}")).collect();
    names.sort();
    let names = match names.is_empty() {
        true => "there is none".to_owned(),
        false => format!("there are {}", names.join(", ")),
    };
    Some(format!(
        "no profile is named {name:?} in the files of the AWS configuration: {names}; correct the \
         name, or add it by 'aws configure --profile {name}'"
    ))
}

/// Returns the configuration of clients of other services, with the same transport, region and
/// credentials. The connection's local endpoint is not used.
#[cfg(feature = "chain")]
pub async fn sdk_config(connection: &ConnectOptions) -> aws_config::SdkConfig {
    let variables = of_profile(connection, set_variables());
    chain(&http(connection), connection, variables).await
}

/// Returns the variables of the environment that are not empty. The SDK takes an empty one for a
/// value: a region, a URL or a file without a name.
#[cfg(feature = "chain")]
fn set_variables() -> HashMap<String, String> {
    not_empty(std::env::vars_os())
}

#[cfg(feature = "chain")]
fn not_empty(all: impl Iterator<Item = (OsString, OsString)>) -> HashMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let texts = all.filter_map(text);
    texts.filter(|(_, value)| !value.is_empty()).collect()
}

/// Reads region, credentials and endpoint from the SDK's default chain.
#[cfg(feature = "chain")]
async fn chain(
    http: &SharedHttpClient,
    connection: &ConnectOptions,
    variables: HashMap<String, String>,
) -> aws_config::SdkConfig {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let mut chain = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .env(variables.into())
        .http_client(http.clone());
    if let Some(profile) = given(&connection.profile) {
        chain = chain.profile_name(profile);
    }
    if let Some(region) = given(&connection.region) {
        chain = chain.region(Region::new(region));
    }
    if let Some(url) = given(&connection.endpoint_url) {
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
    let fault = credentials_fault(variable).or_else(proxy::fault);
    if let Some(reason) = fault.or_else(|| environment_fault(variable)) {
        return unusable(reason);
    }
    let Some(region) = variable("AWS_REGION") else {
        return unusable("AWS_REGION is not set: set it to the table's region".to_owned());
    };
    let mut config = Config::builder().region(Region::new(region));
    config.set_endpoint_url(ENDPOINTS.into_iter().find_map(variable));
    let is_on = |name| variable(name).map(|value| value.eq_ignore_ascii_case("true"));
    config.set_use_fips(is_on("AWS_USE_FIPS_ENDPOINT"));
    config.set_use_dual_stack(is_on("AWS_USE_DUALSTACK_ENDPOINT"));
    match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => {
            let credentials =
                Credentials::new(id, secret, variable("AWS_SESSION_TOKEN"), None, "environment");
            config.credentials_provider(credentials)
        }
        _ => config.credentials_provider(Unusable(
            "AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY is not set: set both".to_owned(),
        )),
    }
}

/// Variables with the endpoint, the first one first.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL"];

/// Returns why the credentials of the environment cannot be sent, if so: they are sent in headers,
/// and the SDK panics on characters that a header cannot contain.
fn credentials_fault(lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_text = |value: &String| value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let names = ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"];
    let broken = names.into_iter().find(|name| lookup(name).is_some_and(|value| !is_text(&value)));
    if let Some(name) = broken {
        return Some(format!("{name} holds a character that is no printable ASCII: set it again"));
    }
    // The SDK would take others, or none, without a word about these.
    let pair = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let (set, missing) = match pair.map(|name| lookup(name).is_some_and(|value| !value.is_empty()))
    {
        [true, false] => (pair[0], pair[1]),
        [false, true] => (pair[1], pair[0]),
        [true, true] | [false, false] => return None,
    };
    Some(format!("{missing} is not set, but {set} is: set both, or neither"))
}

/// Returns why no request can reach the endpoint of the environment, if so.
fn environment_fault(lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (name, url) = ENDPOINTS.into_iter().find_map(|name| Some((name, lookup(name)?)))?;
    endpoint_fault(name, &url)
}

/// Returns why no request can reach an endpoint, if so: the SDK panics on some.
fn endpoint_fault(name: &str, url: &str) -> Option<String> {
    let rule = ConnectOptions::parse_endpoint(url).err()?;
    Some(format!("{name} {rule}, got {url:?}; correct it"))
}

/// Returns a configuration whose requests fail with `reason`.
fn unusable(reason: String) -> aws_sdk_dynamodb::config::Builder {
    Config::builder()
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Unusable(reason))
}

/// Credentials, a region or an endpoint that the settings lack or that cannot be used: which, and
/// what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unusable(String);

impl ProvideCredentials for Unusable {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(Err(CredentialsError::not_loaded(self.clone())))
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
        assert!(error.reason.contains("AWS_SECRET_ACCESS_KEY is not set"), "{error}");
        for broken in ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"] {
            let set = |name: &str| {
                let value = if name == "AWS_REGION" { "eu-west-1" } else { "text" };
                let value = if name == broken { format!("{value}\n") } else { value.to_owned() };
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
        let error = Table::new(connect_with(local, set), "limits").warm().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
    }

    /// Compose's `${VARIABLE:-}` sets empty ones. The SDK panicked on some, and took others for a
    /// profile or a file without a name.
    #[cfg(feature = "chain")]
    #[tokio::test]
    async fn empty_variables_are_not_set_and_no_endpoint_panics() {
        const ALL: [&str; 21] = [
            "AWS_ACCOUNT_ID",
            "AWS_CA_BUNDLE",
            "AWS_CONFIG_FILE",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_DEFAULT_REGION",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            "AWS_ENDPOINT_URL_DYNAMODB",
            "AWS_ENDPOINT_URL_STS",
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
            "AWS_MAX_ATTEMPTS",
            "AWS_PROFILE",
            "AWS_RETRY_MODE",
            "AWS_ROLE_ARN",
            "AWS_SDK_UA_APP_ID",
            "AWS_SESSION_TOKEN",
            "AWS_SHARED_CREDENTIALS_FILE",
            "AWS_USE_DUALSTACK_ENDPOINT",
            "AWS_USE_FIPS_ENDPOINT",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
        ];
        let set = [
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
            ("AWS_REGION", "eu-west-1"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let empty = ALL.into_iter().map(|name| (name, ""));
        let pairs = |more: Vec<(&'static str, &'static str)>| {
            let all = set.into_iter().chain(empty.clone()).chain(more);
            not_empty(all.map(|(name, value)| (name.into(), value.into())))
        };
        let ask = async |connection: ConnectOptions, variables| {
            let http = http(&connection);
            let config = with_chain(&http, &connection, variables).await;
            let connected = build(connection, http, config);
            Table::new(connected, "limits").warm().await.unwrap_err()
        };
        let error = ask(ConnectOptions::default(), pairs(vec![])).await;
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
        let without = |name: &str| {
            let mut all = pairs(vec![]);
            all.remove(name);
            all
        };
        // No request panics without a region either.
        let error = ask(ConnectOptions::default(), without("AWS_REGION")).await;
        assert_eq!(error.kind, ErrorKind::MissingCredentials, "{error}");
        assert!(error.reason.contains("AWS_REGION"), "{error}");
        let given = ConnectOptions {
            profile: Some(String::new()),
            region: Some(String::new()),
            endpoint_url: Some(String::new()),
            local_endpoint: Some(String::new()),
            ..ConnectOptions::default()
        };
        let error = ask(given, pairs(vec![])).await;
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
        for wrong in [" ", "nonsense", "127.0.0.1:9", "http://", "http://a b"] {
            for name in ENDPOINTS {
                let error = ask(ConnectOptions::default(), pairs(vec![(name, wrong)])).await;
                assert!(error.reason.contains(&format!("{name} must be")), "{error}");
            }
            let options = ConnectOptions {
                endpoint_url: Some(wrong.to_owned()),
                ..ConnectOptions::default()
            };
            let error = ask(options, pairs(vec![])).await;
            assert!(error.reason.contains("URL must be"), "{error}");
        }
    }
}

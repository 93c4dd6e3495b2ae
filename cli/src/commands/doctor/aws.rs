//! Signed requests to the services of which the doctor reads an operation or two. Their SDKs would
//! be half of the command line's build, and the one of CloudWatch brings an `http` of its own.

use std::time::{Duration, SystemTime};

use aws_config::SdkConfig;
use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use aws_smithy_http_client::Connector;
use aws_smithy_runtime_api::client::http::HttpConnector;
use aws_smithy_runtime_api::client::identity::Identity;
use aws_smithy_runtime_api::http::{Request, Response};
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use weirgate_shared::exact_span;
use weirgate_store::{chain, https_connector};

/// Longest time of one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Service that the doctor asks.
#[derive(Debug, Clone, Copy)]
pub enum Service {
    /// Functions and mappings.
    Lambda,
    /// Schedules.
    Scheduler,
    /// Alarms.
    CloudWatch,
}

impl Service {
    /// Name in the signature, and in the host.
    const fn name(self) -> &'static str {
        match self {
            Self::Lambda => "lambda",
            Self::Scheduler => "scheduler",
            Self::CloudWatch => "monitoring",
        }
    }

    /// Variable that has another endpoint, as for every SDK.
    const fn variable(self) -> &'static str {
        match self {
            Self::Lambda => "AWS_ENDPOINT_URL_LAMBDA",
            Self::Scheduler => "AWS_ENDPOINT_URL_SCHEDULER",
            Self::CloudWatch => "AWS_ENDPOINT_URL_CLOUDWATCH",
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestError {
    /// Code of the service; empty if the request did not reach it.
    pub code: String,
    /// The service's message, or what failed before it.
    pub message: String,
}

impl RequestError {
    fn local(error: impl std::fmt::Display) -> Self {
        Self { code: String::new(), message: error.to_string() }
    }

    /// Returns whether the service does not know what the request names.
    pub fn is_not_found(&self) -> bool {
        self.code == "ResourceNotFoundException"
    }
}

/// Region, credentials and a connector.
#[derive(Debug)]
pub struct Aws {
    config: SdkConfig,
    connector: Connector,
}

impl Aws {
    /// Returns what sends requests with the credentials of `config`.
    pub fn new(config: SdkConfig) -> Self {
        Self { config, connector: https_connector(None, None, None) }
    }

    /// Reads `path`, which may have a query, from a service with a REST interface.
    pub async fn get<T: DeserializeOwned>(
        &self,
        service: Service,
        path: &str,
    ) -> Result<T, RequestError> {
        self.send(service, "GET", path, &[], String::new()).await
    }

    /// Calls an operation of a service with the JSON protocol.
    pub async fn call<T: DeserializeOwned>(
        &self,
        service: Service,
        operation: &str,
        body: &serde_json::Value,
    ) -> Result<T, RequestError> {
        let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", operation)];
        self.send(service, "POST", "/", &headers, body.to_string()).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        service: Service,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<T, RequestError> {
        let uri = format!("{}{path}", self.endpoint(service)?);
        let signature = self.signature(service, method, &uri, headers, &body).await?;
        let mut request = Request::new(SdkBody::from(body));
        request.set_method(method).map_err(RequestError::local)?;
        request.set_uri(uri).map_err(RequestError::local)?;
        for (name, value) in headers {
            request.headers_mut().insert((*name).to_owned(), (*value).to_owned());
        }
        for (name, value) in signature {
            request.headers_mut().insert(name, value);
        }
        let (response, body) = exchange(&self.connector, request).await?;
        let code = response.headers().get("x-amzn-errortype");
        match response.status().is_success() {
            true => serde_json::from_slice(&body)
                .map_err(|error| RequestError::local(format!("the answer is no JSON: {error}"))),
            false => Err(refusal(response.status().as_u16(), code, &body)),
        }
    }

    fn region(&self) -> Result<&str, RequestError> {
        let region = self.config.region().map(AsRef::as_ref);
        region.ok_or_else(|| RequestError::local("no region is set: --region"))
    }

    /// Returns the URL of a service, without a slash at its end.
    fn endpoint(&self, service: Service) -> Result<String, RequestError> {
        let variable = std::env::var(service.variable()).ok();
        let set = variable.as_deref().filter(|url| !url.is_empty());
        if let Some(url) = set.or(self.config.endpoint_url()) {
            return Ok(url.trim_end_matches('/').to_owned());
        }
        let is_on = |set: Option<bool>| set.unwrap_or_default();
        let (fips, dual_stack) = (self.config.use_fips(), self.config.use_dual_stack());
        Ok(host(service.name(), self.region()?, is_on(fips), is_on(dual_stack)))
    }

    /// Returns the headers that sign a request.
    async fn signature(
        &self,
        service: Service,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Vec<(String, String)>, RequestError> {
        let provider = self.config.credentials_provider();
        let provider = provider.ok_or_else(|| RequestError::local("no credentials"))?;
        let credentials = provider.provide_credentials().await;
        let identity =
            Identity::from(credentials.map_err(|error| {
                RequestError::local(format!("no credentials: {}", chain(&error)))
            })?);
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(self.region()?)
            .name(service.name())
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()
            .map_err(RequestError::local)?;
        let body = SignableBody::Bytes(body.as_bytes());
        let request = SignableRequest::new(method, uri, headers.iter().copied(), body)
            .map_err(RequestError::local)?;
        let signed = sign(request, &parameters.into()).map_err(RequestError::local)?;
        let headers = signed.output().headers();
        Ok(headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

/// Sends a request, and returns the response with its body.
async fn exchange(
    connector: &Connector,
    request: Request,
) -> Result<(Response, Vec<u8>), RequestError> {
    let answer = tokio::time::timeout(TIMEOUT, async {
        let response = connector.call(request).await;
        let mut response = response.map_err(|error| RequestError::local(chain(&error)))?;
        let body = std::mem::replace(response.body_mut(), SdkBody::taken());
        let body = ByteStream::new(body).collect().await;
        let body = body.map_err(RequestError::local)?.to_vec();
        Ok((response, body))
    });
    answer
        .await
        .map_err(|_| RequestError::local(format!("no answer within {}", exact_span(TIMEOUT))))?
}

/// Reads the text at a URL, without a signature.
pub async fn read(url: String) -> Result<String, RequestError> {
    let mut request = Request::new(SdkBody::empty());
    request.set_uri(url).map_err(RequestError::local)?;
    let (response, body) = exchange(&https_connector(None, None, None), request).await?;
    match response.status().is_success() {
        true => String::from_utf8(body)
            .map_err(|error| RequestError::local(format!("the answer is no text: {error}"))),
        false => Err(refusal(response.status().as_u16(), None, &body)),
    }
}

/// How names of Regions begin, with the domains of their services: the usual one, and that of
/// dual-stack. The last is of all others.
const DOMAINS: [(&str, [&str; 2]); 3] = [
    ("cn-", ["amazonaws.com.cn", "api.amazonwebservices.com.cn"]),
    ("eusc-", ["amazonaws.eu", "api.amazonwebservices.eu"]),
    ("", ["amazonaws.com", "api.aws"]),
];

/// Returns whether a URL is an endpoint of AWS, in whatever network.
pub fn is_of_aws(url: &str) -> bool {
    let host = url.split("//").last().and_then(|rest| rest.split(['/', ':']).next());
    let mut domains = DOMAINS.iter().flat_map(|(_, domains)| domains);
    host.is_some_and(|host| domains.any(|domain| host.ends_with(&format!(".{domain}"))))
}

/// Returns the URL that the rules of the SDKs have for a service.
fn host(service: &str, region: &str, is_fips: bool, is_dual_stack: bool) -> String {
    let of_region = DOMAINS.iter().find(|(begin, _)| region.starts_with(begin));
    let (_, domains) = of_region.expect("the last is of all");
    let suffix = domains[usize::from(is_dual_stack)];
    // The usual endpoint of CloudWatch in these Regions is the validated one.
    let is_usual = service == "monitoring" && region.starts_with("us-gov-");
    let fips = match is_fips && !is_usual {
        true => "-fips",
        false => "",
    };
    format!("https://{service}{fips}.{region}.{suffix}")
}

/// Code and message of a refusal. The code is in a header or in the body, and may have a namespace
/// before it or a URL behind it.
fn refusal(status: u16, header: Option<&str>, body: &[u8]) -> RequestError {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Body {
        #[serde(rename = "__type")]
        code: String,
        #[serde(alias = "Message")]
        message: String,
    }
    let body: Body = serde_json::from_slice(body).unwrap_or_default();
    let code = header.unwrap_or(&body.code);
    let code = code.split(':').next().unwrap_or_default();
    let code = code.rsplit('#').next().unwrap_or_default();
    RequestError {
        code: match code {
            "" => format!("HTTP status {status}"),
            code => code.to_owned(),
        },
        message: body.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_follow_the_rules_of_the_sdks() {
        for (host_of, url) in [
            (("lambda", "eu-west-1", false, false), "https://lambda.eu-west-1.amazonaws.com"),
            (("lambda", "us-east-1", true, false), "https://lambda-fips.us-east-1.amazonaws.com"),
            (("scheduler", "us-east-1", false, true), "https://scheduler.us-east-1.api.aws"),
            (("scheduler", "us-east-1", true, true), "https://scheduler-fips.us-east-1.api.aws"),
            (
                ("monitoring", "us-gov-west-1", true, false),
                "https://monitoring.us-gov-west-1.amazonaws.com",
            ),
            (
                ("lambda", "cn-north-1", false, true),
                "https://lambda.cn-north-1.api.amazonwebservices.com.cn",
            ),
            (
                ("lambda", "eusc-de-east-1", false, false),
                "https://lambda.eusc-de-east-1.amazonaws.eu",
            ),
        ] {
            let (service, region, is_fips, is_dual_stack) = host_of;
            assert_eq!(host(service, region, is_fips, is_dual_stack), url);
        }
    }

    #[test]
    fn endpoints_of_aws_are_known_by_their_hosts() {
        for region in ["eu-west-1", "us-gov-west-1", "cn-north-1", "eusc-de-east-1"] {
            for (is_fips, is_dual_stack) in [(false, false), (false, true), (true, true)] {
                let url = host("dynamodb", region, is_fips, is_dual_stack);
                let (scheme, host) = url.split_once("//").expect("a URL");
                for url in [
                    url.clone(),
                    format!("{url}:443"),
                    format!("{scheme}//123456789012.ddb.{host}"),
                    format!(
                        "{scheme}//vpce-1.{}/",
                        host.replacen(region, &format!("{region}.vpce"), 1)
                    ),
                ] {
                    assert!(is_of_aws(&url), "{url}");
                }
            }
        }
        for url in ["", "http://127.0.0.1:8000", "http://amazonaws.com.example:4566"] {
            assert!(!is_of_aws(url), "{url}");
        }
    }

    #[test]
    fn a_refusal_has_its_code_wherever_the_service_puts_it() {
        let not_found = RequestError {
            code: "ResourceNotFoundException".to_owned(),
            message: "no function".to_owned(),
        };
        let header = "ResourceNotFoundException:http://internal/";
        let body = br#"{"Type":"User","Message":"no function"}"#;
        assert_eq!(refusal(404, Some(header), body), not_found);
        assert!(not_found.is_not_found());
        let body = br#"{"__type":"com.amazon#ResourceNotFoundException","message":"no function"}"#;
        assert_eq!(refusal(400, None, body), not_found);
        assert_eq!(refusal(502, None, b"<html>").code, "HTTP status 502");
    }
}

//! The archive bucket: one signed request that writes an object, unless there is one of its name.
//!
//! Without the SDK of S3, whose operations would make the function several times as large. The
//! request has a fixed form, and the signature is the SDK's own.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use aws_smithy_http_client::Connector;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::http::HttpConnector;
use aws_smithy_runtime_api::client::identity::Identity;
use aws_smithy_runtime_api::http::Request;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use weirgate_store::chain;

use crate::Config;
use crate::plan::Object;

/// Timeout of one request, connecting included.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a refusal in an error.
const SHOWN: usize = 300;
/// Headers of every request. `if-none-match` keeps an object that exists, so an event that comes
/// again changes nothing.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html>
const HEADERS: [(&str, &str); 2] = [("content-type", "application/json"), ("if-none-match", "*")];

/// What a request has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The object was written.
    Now,
    /// An object of this name existed, and was left as it was.
    Before,
}

/// Why an object was not written, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// S3 refused the request.
    #[error("S3 refused it with the status {status}: {body}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Beginning of the response, in one line.
        body: String,
    },
    /// There is no response.
    #[error("S3 did not answer: {0}")]
    NoResponse(String),
    /// The request could not be made of the settings.
    #[error("the request cannot be made: {0}")]
    Request(String),
    /// The invocation had no time left.
    #[error("no time left before the deadline")]
    OutOfTime,
}

/// The archive bucket, with a connection of its own.
#[derive(Debug)]
pub struct Bucket {
    /// URL of the bucket, without a slash at its end.
    url: String,
    region: String,
    credentials: Credentials,
    connector: Connector,
}

impl Bucket {
    /// Returns the bucket of `config`. Connects with the first request.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let (bucket, region) = (&config.bucket, &config.region);
        let suffix = match region.as_str() {
            region if region.starts_with("cn-") => "amazonaws.com.cn",
            region if region.starts_with("eusc-") => "amazonaws.eu",
            _ => "amazonaws.com",
        };
        let url = match &config.endpoint {
            Some(endpoint) => format!("{}/{bucket}", endpoint.trim_end_matches('/')),
            None => format!("https://{bucket}.s3.{region}.{suffix}"),
        };
        let connector = Connector::builder().tls_provider(Provider::Rustls(CryptoMode::Ring));
        Self {
            url,
            region: region.clone(),
            credentials: config.credentials.clone(),
            connector: connector.build(),
        }
    }

    /// Writes `object`, unless there is one of its name. `time` dates the signature.
    ///
    /// # Errors
    /// [`PutError`] if it is not known to be there. The same request may be sent again.
    pub async fn put(&self, object: &Object, time: SystemTime) -> Result<Written, PutError> {
        let url = format!("{}/{}", self.url, object.path());
        let signature = self.signature("PUT", &url, &HEADERS, &object.body, time)?;
        let mut request = Request::new(SdkBody::from(object.body.as_str()));
        let wrong = |error: &dyn std::fmt::Display| PutError::Request(error.to_string());
        request.set_method("PUT").map_err(|error| wrong(&error))?;
        request.set_uri(url).map_err(|error| wrong(&error))?;
        let own = HEADERS.map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (name, value) in own.into_iter().chain(signature) {
            request.headers_mut().insert(name, value);
        }
        let lost = |error: &dyn std::error::Error| PutError::NoResponse(chain(error));
        let answer = tokio::time::timeout(TIMEOUT, async {
            let response = self.connector.call(request).await;
            let mut response = response.map_err(|error| lost(&error))?;
            let body = std::mem::replace(response.body_mut(), SdkBody::taken());
            // Read to its end, so that the connection serves the next request.
            let body = ByteStream::new(body).collect().await;
            let body = body.map_err(|error| lost(&error))?.into_bytes();
            Ok((response.status().as_u16(), body))
        });
        let (status, body) = answer
            .await
            .map_err(|_| PutError::NoResponse(format!("nothing within {TIMEOUT:?}")))??;
        match status {
            200..=299 => Ok(Written::Now),
            // The condition failed: there is an object. Two writes at a time are a 409 instead.
            412 => Ok(Written::Before),
            status => Err(PutError::Refused {
                status,
                body: beginning(&body),
            }),
        }
    }

    /// Returns the headers that sign a request, as S3 wants it: with the body's checksum, and the
    /// path as it is sent.
    fn signature(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
        time: SystemTime,
    ) -> Result<Vec<(String, String)>, PutError> {
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let identity = Identity::from(self.credentials.clone());
        let wrong = |error: &dyn std::fmt::Display| PutError::Request(error.to_string());
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("s3")
            .time(time)
            .settings(settings)
            .build()
            .map_err(|error| wrong(&error))?;
        let body = SignableBody::Bytes(body.as_bytes());
        let request = SignableRequest::new(method, url, headers.iter().copied(), body)
            .map_err(|error| wrong(&error))?;
        let signed = sign(request, &parameters.into()).map_err(|error| wrong(&error))?;
        let headers = signed.output().headers();
        Ok(headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }
}

/// Returns the beginning of a response, in one line.
fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(region: &str, endpoint: Option<&str>) -> Bucket {
        Bucket::new(&Config {
            bucket: "examplebucket".to_owned(),
            region: region.to_owned(),
            endpoint: endpoint.map(str::to_owned),
            credentials: Credentials::new(
                "AKIAIOSFODNN7EXAMPLE",
                "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                None,
                None,
                "example",
            ),
        })
    }

    #[test]
    fn a_bucket_is_a_host_of_aws_and_a_path_of_another_endpoint() {
        let url = |region, endpoint| bucket(region, endpoint).url;
        assert_eq!(
            url("us-east-1", None),
            "https://examplebucket.s3.us-east-1.amazonaws.com"
        );
        assert_eq!(
            url("cn-north-1", None),
            "https://examplebucket.s3.cn-north-1.amazonaws.com.cn"
        );
        assert_eq!(
            url("us-east-1", Some("http://h:1/")),
            "http://h:1/examplebucket"
        );
    }

    /// The example "PUT Object" of AWS, which has other headers than ours.
    /// <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>
    #[test]
    fn a_request_is_signed_as_in_the_example_of_aws() {
        let headers = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        // 2013-05-24T00:00:00Z.
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let url = "https://examplebucket.s3.amazonaws.com/test%24file.text";
        let signed = bucket("us-east-1", None)
            .signature("PUT", url, &headers, "Welcome to Amazon S3.", time)
            .unwrap();
        let header = |wanted: &str| {
            let found = signed.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        assert_eq!(
            header("x-amz-content-sha256"),
            "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
        );
        assert_eq!(
            header("authorization"),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class, \
             Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
    }

    #[test]
    fn a_refusal_is_one_line_of_bounded_length() {
        let long = format!("<Error>\n  <Code>{}", "é".repeat(1_000));
        let line = beginning(long.as_bytes());
        assert!(
            line.starts_with("<Error> <Code>é") && line.chars().count() == SHOWN,
            "{line}"
        );
    }
}

//! Lambda's endpoints for extensions. Each call has a connection of its own: one that was open
//! across a freeze may be dead.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

const VERSION: &str = "2020-01-01";
const IDENTIFIER: &str = "lambda-extension-identifier";
const NAME: &str = "lambda-extension-name";
const ERROR_TYPE: &str = "lambda-extension-function-error-type";
/// Largest answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// There was no connection, or it ended before the answer.
    #[error("{0}")]
    Lost(String),
    /// Lambda refused the call, or its answer cannot be read.
    #[error("{0}")]
    Refused(String),
}

/// Lambda's endpoints, at the address that it gives each extension.
#[derive(Debug, Clone)]
pub struct ExtensionsApi {
    /// Host and port.
    address: String,
}

impl ExtensionsApi {
    /// Takes the value of `AWS_LAMBDA_RUNTIME_API`.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
        }
    }

    /// Registers for `events`. Returns the extension's identifier.
    pub(super) async fn register(&self, name: &str, events: &[&str]) -> Result<String, CallError> {
        let body = serde_json::json!({ "events": events }).to_string();
        let fields = [(NAME, name)];
        let response = self.send(Method::POST, "register", &fields, body).await?;
        let identifier = response.headers().get(IDENTIFIER);
        let identifier = identifier.and_then(|value| value.to_str().ok());
        let identifier = identifier.map(str::to_owned);
        identifier.ok_or_else(|| {
            CallError::Refused("Lambda's answer to register has no identifier".to_owned())
        })
    }

    /// Waits for the next event. It has no timeout: the process is frozen in it.
    pub(super) async fn next(&self, identifier: &str) -> Result<Value, CallError> {
        let fields = [(IDENTIFIER, identifier)];
        let response = self
            .send(Method::GET, "event/next", &fields, String::new())
            .await?;
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await;
        let failed = |error: &dyn std::fmt::Display| format!("Lambda's next event: {error}");
        let body = body.map_err(|error| CallError::Lost(failed(&error)))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| CallError::Refused(failed(&error)))
    }

    /// Reports why the extension cannot start (`init`), or ends early (`exit`).
    pub(super) async fn error(&self, phase: &str, identifier: &str, kind: &str, message: &str) {
        let fields = [(IDENTIFIER, identifier), (ERROR_TYPE, kind)];
        let body =
            serde_json::json!({"errorMessage": message, "errorType": kind, "stackTrace": []});
        let path = format!("{phase}/error");
        let sent = self.send(Method::POST, &path, &fields, body.to_string());
        if let Err(error) = sent.await {
            tracing::error!(%error, "the error was not reported to Lambda");
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        body: String,
    ) -> Result<Response<Incoming>, CallError> {
        let text = |error: &dyn std::fmt::Display| {
            format!("Lambda's endpoint {path} at {}: {error}", self.address)
        };
        let failed = |error: &dyn std::fmt::Display| CallError::Lost(text(error));
        let stream = TcpStream::connect(&self.address).await;
        let stream = stream.map_err(|error| failed(&error))?;
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(&error))?;
        let uri = format!("/{VERSION}/extension/{path}");
        let mut request = Request::builder().method(method).uri(uri);
        request = request.header(header::HOST, &self.address);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| failed(&error))?;
        // It ends with the answer's body.
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| failed(&error))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => Err(CallError::Refused(text(&status))),
        }
    }
}

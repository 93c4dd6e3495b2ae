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
    pub(super) async fn register(&self, name: &str, events: &[&str]) -> Result<String, String> {
        let body = serde_json::json!({ "events": events }).to_string();
        let fields = [(NAME, name)];
        let response = self.send(Method::POST, "register", &fields, body).await?;
        let identifier = response.headers().get(IDENTIFIER);
        let identifier = identifier.and_then(|value| value.to_str().ok());
        let identifier = identifier.map(str::to_owned);
        identifier.ok_or_else(|| "Lambda's answer to register has no identifier".to_owned())
    }

    /// Waits for the next event. It has no timeout: the process is frozen in it.
    pub(super) async fn next(&self, identifier: &str) -> Result<Value, String> {
        let fields = [(IDENTIFIER, identifier)];
        let response = self
            .send(Method::GET, "event/next", &fields, String::new())
            .await?;
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await;
        let body = body.map_err(|error| format!("Lambda's next event: {error}"))?;
        serde_json::from_slice(&body.to_bytes())
            .map_err(|error| format!("Lambda's next event: {error}"))
    }

    /// Reports why the extension cannot start.
    pub(super) async fn init_error(&self, identifier: &str, kind: &str, message: &str) {
        let fields = [(IDENTIFIER, identifier), (ERROR_TYPE, kind)];
        let body =
            serde_json::json!({"errorMessage": message, "errorType": kind, "stackTrace": []});
        let sent = self.send(Method::POST, "init/error", &fields, body.to_string());
        if let Err(error) = sent.await {
            tracing::error!(error, "the error was not reported to Lambda");
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        body: String,
    ) -> Result<Response<Incoming>, String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("Lambda's endpoint {path} at {}: {error}", self.address)
        };
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
            status => Err(failed(&status)),
        }
    }
}

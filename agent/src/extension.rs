//! The life of a Lambda extension: register, wait for the end, shut down.
//!
//! The agent registers for `SHUTDOWN` alone. So it never prolongs an invocation, and Managed
//! Instances take it, which refuse `INVOKE`. It listens before it registers, so the function can
//! ask already while it is initialised.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use weirgate_shared::exact_span;

use crate::token::Token;

/// Time for requests in flight once Lambda shuts down.
pub const SHUTDOWN_GRACE: Duration = Duration::from_millis(200);
/// Time for everything once Lambda shuts down, of the two seconds that it gives.
pub const SHUTDOWN_TIME: Duration = Duration::from_millis(1_200);

/// Variables of the agent that an extension does not take: it listens on one port, with the
/// function's secret, on one thread, runs with its function alone, and ends in the time that Lambda gives.
pub const REFUSED: [&str; 10] = [
    "WEIRGATE_AGENT_LISTEN",
    "WEIRGATE_AGENT_UNIX_SOCKET",
    "WEIRGATE_AGENT_GRPC",
    "WEIRGATE_AGENT_RULES",
    "WEIRGATE_AGENT_START_WITHOUT_RULES",
    "WEIRGATE_AGENT_WITHOUT_SECRET",
    "WEIRGATE_AGENT_TOKEN_FILE",
    "WEIRGATE_AGENT_GRACE",
    "WEIRGATE_AGENT_THREADS",
    "WEIRGATE_AGENT_FUNCTIONS",
];
/// How often a lost connection is replaced while the extension waits for an event.
const RETRIES: u32 = 3;
/// Pause before that.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for the report of a failure.
const REPORT: Duration = Duration::from_millis(300);

/// A registered extension.
#[derive(Debug)]
pub struct Extension {
    api: ExtensionsApi,
    identifier: String,
}

impl Extension {
    /// Registers for `SHUTDOWN`, under the name of the executable.
    ///
    /// # Errors
    /// A sentence, if Lambda refuses.
    pub async fn register(api: ExtensionsApi, name: &str) -> Result<Self, String> {
        let registered = api.register(name, &["SHUTDOWN"]).await;
        let identifier = registered.map_err(|error| error.to_string())?;
        Ok(Self { api, identifier })
    }

    /// Waits for the end. Returns its reason: `SPINDOWN`, `TIMEOUT` or `FAILURE`.
    ///
    /// # Errors
    /// A sentence, if Lambda refuses, or the connection is lost several times in a row.
    pub async fn shut_down(&self) -> Result<String, String> {
        let mut lost = 0;
        loop {
            let event = match self.api.next(&self.identifier).await {
                Ok(event) => event,
                Err(CallError::Lost(error)) if lost < RETRIES => {
                    tracing::warn!(error, "waiting for an event again");
                    lost += 1;
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            };
            lost = 0;
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            match text("eventType").as_str() {
                "SHUTDOWN" => return Ok(text("shutdownReason")),
                // Not registered for.
                other => tracing::warn!(event = other, "an event is not handled"),
            }
        }
    }

    /// Reports to Lambda why the extension cannot start, so that the log of the function has it.
    pub async fn fail(&self, message: &str) {
        let kind = "Extension.WeirgateConfiguration";
        self.api.error("init", &self.identifier, kind, message).await;
    }

    /// Reports to Lambda why the extension ends before the function does.
    pub async fn exit(&self, message: &str) {
        let kind = "Extension.WeirgateExit";
        self.api.error("exit", &self.identifier, kind, message).await;
    }
}

/// Checks that no variable is set that an extension does not take.
///
/// # Errors
/// A sentence that names the first one.
pub fn check_variables(variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let set = REFUSED.iter().find_map(|name| Some((name, variable(name)?)));
    match set {
        None => Ok(()),
        Some((name, value)) => Err(format!(
            "{name} must not be set in a Lambda extension, got {value:?}: remove it from the function"
        )),
    }
}

/// Returns the secret that requests of the function must show: what `variable` has of
/// `WEIRGATE_AGENT_TOKEN`, or else of the credentials' own secrets, which a request from outside
/// cannot know. With SnapStart there is no `AWS_SESSION_TOKEN`.
///
/// # Errors
/// A sentence, if there is none.
pub fn token(variable: impl Fn(&str) -> Option<String>) -> Result<Token, String> {
    const VARIABLES: [&str; 3] =
        ["WEIRGATE_AGENT_TOKEN", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"];
    for name in VARIABLES {
        if let Some(secret) = variable(name).filter(|secret| !secret.is_empty()) {
            return Token::new(&secret).map_err(|rule| format!("{name} {rule}; set another one"));
        }
    }
    Err("there is no AWS_SESSION_TOKEN, which requests must show: set WEIRGATE_AGENT_TOKEN on the function".to_owned())
}

const VERSION: &str = "2020-01-01";
const IDENTIFIER: &str = "lambda-extension-identifier";
const NAME: &str = "lambda-extension-name";
const ERROR_TYPE: &str = "lambda-extension-function-error-type";
/// Largest answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
enum CallError {
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
        Self { address: address.into() }
    }

    /// Registers for `events`. Returns the extension's identifier.
    async fn register(&self, name: &str, events: &[&str]) -> Result<String, CallError> {
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
    async fn next(&self, identifier: &str) -> Result<Value, CallError> {
        let fields = [(IDENTIFIER, identifier)];
        let response = self.send(Method::GET, "event/next", &fields, String::new()).await?;
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let failed = |error: &dyn std::fmt::Display| format!("Lambda's next event: {error}");
        let body = body.map_err(|error| CallError::Lost(failed(&error)))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| CallError::Refused(failed(&error)))
    }

    /// Reports why the extension cannot start (`init`), or ends early (`exit`). A Lambda that does not
    /// answer delays neither.
    async fn error(&self, phase: &str, identifier: &str, kind: &str, message: &str) {
        let fields = [(IDENTIFIER, identifier), (ERROR_TYPE, kind)];
        let body =
            serde_json::json!({"errorMessage": message, "errorType": kind, "stackTrace": []});
        let path = format!("{phase}/error");
        let sent = self.send(Method::POST, &path, &fields, body.to_string());
        let sent = tokio::time::timeout(REPORT, sent).await;
        let late = |_| Err(CallError::Lost(format!("no answer within {}", exact_span(REPORT))));
        if let Err(error) = sent.unwrap_or_else(late) {
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
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_secret_that_is_set_counts() {
        let of =
            |set: &'static [&str]| token(move |name| set.contains(&name).then(|| name.to_owned()));
        for set in [
            &["WEIRGATE_AGENT_TOKEN", "AWS_SESSION_TOKEN"][..],
            &["AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"],
            &["AWS_CONTAINER_AUTHORIZATION_TOKEN"],
        ] {
            let mut headers = hyper::HeaderMap::new();
            headers.insert("x-weirgate-token", set[0].parse().unwrap());
            assert_eq!(of(set).unwrap().check(&headers), Ok(()));
        }
        let error = of(&[]).unwrap_err();
        assert!(error.contains("set WEIRGATE_AGENT_TOKEN"), "{error}");
    }
}

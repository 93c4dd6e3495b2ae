//! From the head of a request to its response.

use std::sync::Arc;
use std::time::Instant;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use tokio::sync::Semaphore;

use super::acquire::Answer;
use super::body::{LARGE_BODIES, MAX_BODY, MAX_SETTLEMENT, read};
use super::fields::Invalid;
use super::health::Health;
use super::refusal::Refusal;
use super::response::{JSON, response};
use super::token::Token;
use super::{acquire, metrics, peek, settle, usage};
use crate::decide::{Call, Decider, Outcome};

/// Answers requests.
#[derive(Debug)]
pub struct Api {
    decider: Arc<Decider>,
    token: Option<Token>,
    health: Arc<Health>,
    /// Permits of larger bodies that are arriving.
    large: Semaphore,
}

impl Api {
    /// Creates the API of a decider. With a token, requests need it.
    #[must_use]
    pub fn new(decider: Arc<Decider>, token: Option<Token>, health: Arc<Health>) -> Self {
        Self {
            decider,
            token,
            health,
            large: Semaphore::new(LARGE_BODIES),
        }
    }

    /// Answers a request. `connections` are open.
    pub(super) async fn respond(
        &self,
        request: Request<Incoming>,
        connections: u64,
    ) -> Response<Full<Bytes>> {
        let answered = match request.uri().path() {
            "/v1/acquire" => self.measured(Call::Acquire, request).await,
            "/v1/settle" => self.measured(Call::Settle, request).await,
            "/v1/peek" => self.measured(Call::Peek, request).await,
            "/v1/usage" => self.measured(Call::Usage, request).await,
            "/healthz" => self.health(&request).await,
            "/metrics" => self.metrics(&request, connections),
            path => Err(Refusal::unknown_path(path)),
        };
        answered.unwrap_or_else(Refusal::into_response)
    }

    async fn health(&self, request: &Request<Incoming>) -> Result<Response<Full<Bytes>>, Refusal> {
        check_method(request, &Method::GET)?;
        let body = self.health.check(&self.decider.limiter).await?;
        Ok(response(StatusCode::OK, JSON, vec![], body))
    }

    fn metrics(
        &self,
        request: &Request<Incoming>,
        connections: u64,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        check_method(request, &Method::GET)?;
        let text = metrics::text(&self.decider, connections);
        Ok(response(StatusCode::OK, metrics::TEXT, vec![], text))
    }

    /// Answers a call, and counts its outcome and its time.
    async fn measured(
        &self,
        call: Call,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let started = Instant::now();
        let answered = self.call(call, request).await;
        let outcome = answered
            .as_ref()
            .map_or_else(|refusal| refusal.outcome, |_| Outcome::Granted);
        self.decider
            .measures
            .record(call, outcome, started.elapsed());
        let (fields, body) = answered?;
        Ok(response(StatusCode::OK, JSON, fields, body))
    }

    async fn call(&self, call: Call, request: Request<Incoming>) -> Result<Answer, Refusal> {
        check_method(&request, &Method::POST)?;
        if let Some(token) = &self.token {
            token
                .check(request.headers())
                .map_err(Refusal::wrong_token)?;
        }
        // A browser sends it with each request of a page to another site.
        if request.headers().contains_key(header::ORIGIN) {
            return Err(Refusal::web_page());
        }
        let most = match call {
            Call::Settle => MAX_SETTLEMENT,
            _ => MAX_BODY,
        };
        let body = read(request.into_body(), most, &self.large).await?;
        let permit = self.decider.gate.enter().ok_or_else(|| {
            let max = self.decider.gate.max();
            Refusal::overloaded(format!("{max} requests are in flight, the maximum"))
        })?;
        let decider = &self.decider;
        match call {
            Call::Acquire => {
                let request = acquire::read(&body).map_err(invalid)?;
                drop(body);
                acquire::answer(decider, &request).await
            }
            Call::Settle => {
                let change = settle::read(&body).map_err(invalid)?;
                settle::answer(decider, change, permit).await
            }
            Call::Peek => peek::answer(decider, &peek::read(&body).map_err(invalid)?).await,
            Call::Usage => usage::answer(decider, usage::read(&body).map_err(invalid)?).await,
            Call::ShouldRateLimit | Call::Kuadrant => Err(Refusal::unknown_path("")),
        }
    }
}

fn invalid(error: Invalid) -> Refusal {
    Refusal::invalid(error.to_string())
}

fn check_method(request: &Request<Incoming>, allowed: &Method) -> Result<(), Refusal> {
    if request.method() == allowed {
        return Ok(());
    }
    let allowed = if *allowed == Method::GET {
        "GET"
    } else {
        "POST"
    };
    let path = request.uri().path();
    Err(Refusal::wrong_method(
        allowed,
        path,
        request.method().as_str(),
    ))
}

/// Reads a body as the request of each operation: for fuzzing.
///
/// # Errors
/// The refusals of the operations that cannot read it, in the order of the routes.
pub fn decode(body: &[u8]) -> [Result<String, Invalid>; 4] {
    [
        acquire::read(body).map(|read| format!("{read:?}")),
        settle::read(body).map(|read| format!("{read:?}")),
        peek::read(body).map(|read| format!("{read:?}")),
        usage::read(body).map(|read| format!("{read:?}")),
    ]
}

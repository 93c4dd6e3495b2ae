//! HTTP and JSON.
//!
//! # Layout
//!
//! - [`Api`]: from the head of a request to its response
//! - `connection`: [`Server`]: listens; one connection, which has no buffers while it is idle
//! - `request_body`: what each field must be
//! - `operations`: acquire, settle, report, peek, usage and health
//! - `limits`: reads and changes the limits of the table
//! - `responses`: bodies, problems, and what a client may do next
//! - `metrics`: Prometheus' text format

mod connection;
mod limits;
mod metrics;
mod operations;
mod request_body;
mod responses;

use std::net::IpAddr;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};

use crate::gated::{Call, GatedLimiter, Outcome};
use crate::net::stream::read;
use crate::net::{Client, Place};
use crate::token::Token;
use limits::{change_limits, limits, read_delete_limits, read_limits, read_set_limits};
use operations::{
    Answer, acquire, peek, read_acquire, read_peek, read_report, read_settle, read_usage, report,
    settle, usage,
};
use request_body::Invalid;
use responses::{JSON, Refusal, response};

pub use crate::net::{Address, Bounds};
pub use connection::{Server, serve_in_memory};
pub use operations::Health;

/// Largest body of a request, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// Largest body of a settlement, in bytes, because it has a grant. A limit is at most 350 bytes of
/// that, so 100 buckets of 20 limits are 700 KB. What is taken more adds 200 bytes each time.
const MAX_SETTLEMENT: usize = 2 * 1024 * 1024;

/// Returns the call of a path.
fn call_at(path: &str) -> Option<Call> {
    Some(match path {
        "/v1/acquire" => Call::Acquire,
        "/v1/settle" => Call::Settle,
        "/v1/report" => Call::Report,
        "/v1/peek" => Call::Peek,
        "/v1/usage" => Call::Usage,
        "/v1/limits" => Call::Limits,
        "/v1/limits/set" => Call::SetLimits,
        "/v1/limits/delete" => Call::DeleteLimits,
        _ => return None,
    })
}

/// Answers requests.
#[derive(Debug)]
pub struct Api {
    gated: Arc<GatedLimiter>,
    token: Option<Token>,
    health: Arc<Health>,
    allows_limit_changes: bool,
}

impl Api {
    /// Creates the API of a limiter. With a token, requests need it.
    #[must_use]
    pub fn new(gated: Arc<GatedLimiter>, token: Option<Token>, health: Arc<Health>) -> Self {
        Self { gated, token, health, allows_limit_changes: false }
    }

    /// Sets whether requests may change limits. Default: they may not.
    #[must_use]
    pub fn with_limit_changes(self, allows_limit_changes: bool) -> Self {
        Self { allows_limit_changes, ..self }
    }

    /// Returns whether a request that has arrived whole runs to its end, even if its client leaves.
    pub(super) fn runs_to_its_end(request: &Request<Incoming>) -> bool {
        matches!(request.uri().path(), "/v1/settle" | "/v1/report")
    }

    /// Answers a request of a client, whose body arrives in `room`.
    pub(super) async fn respond(
        &self,
        request: Request<Incoming>,
        client: &Client,
        room: Option<Place>,
    ) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let answered = match (call_at(path), path) {
            // In a box, so that a connection does not keep the room for the largest call.
            (Some(call), _) => Box::pin(self.measured(call, request, client, room)).await,
            (None, "/healthz") => self.health(&request, client).await,
            (None, "/metrics") => self.metrics(&request, client),
            (None, path) => Err(Refusal::unknown_path(path)),
        };
        answered.unwrap_or_else(Refusal::into_response)
    }

    async fn health(
        &self,
        request: &Request<Incoming>,
        client: &Client,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        self.check_probe(request)?;
        let _busy = client.busy().ok_or_else(Refusal::gave_way)?;
        let body = self.health.check(&self.gated.limiter).await?;
        Ok(response(StatusCode::OK, JSON, vec![], body))
    }

    fn metrics(
        &self,
        request: &Request<Incoming>,
        client: &Client,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        self.check_probe(request)?;
        let text = metrics::text(&self.gated, client.open());
        Ok(response(StatusCode::OK, metrics::TEXT, vec![], text))
    }

    /// Checks a request for health or metrics. A probe or a scraper cannot always send a token.
    fn check_probe(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        check_method(request, &Method::GET)?;
        if !is_for_this_host(request.headers()) {
            return Err(Refusal::web_page());
        }
        let token = self.token.as_ref().filter(|token| token.guards_all());
        check_token(token, request)
    }

    /// Answers a call, and counts its outcome and its time.
    async fn measured(
        &self,
        call: Call,
        request: Request<Incoming>,
        client: &Client,
        room: Option<Place>,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let measuring = self.gated.measures.begin(call);
        let answered = self.answer(call, request, client, room).await;
        let outcome =
            answered.as_ref().map_or_else(|refusal| refusal.outcome, |_| Outcome::Granted);
        measuring.end(outcome);
        let (fields, body) = answered?;
        Ok(response(StatusCode::OK, JSON, fields, body))
    }

    async fn answer(
        &self,
        call: Call,
        request: Request<Incoming>,
        client: &Client,
        room: Option<Place>,
    ) -> Result<Answer, Refusal> {
        check_method(&request, &Method::POST)?;
        check_token(self.token.as_ref(), &request)?;
        // A browser sends it with each request of a page to another site.
        if request.headers().contains_key(header::ORIGIN) {
            return Err(Refusal::web_page());
        }
        let changes_limits = matches!(call, Call::SetLimits | Call::DeleteLimits);
        if changes_limits && !self.allows_limit_changes {
            return Err(Refusal::limit_changes_not_allowed());
        }
        check_encoding(request.headers())?;
        let room = room.ok_or_else(Refusal::gave_way)?;
        let most = match call {
            Call::Settle => MAX_SETTLEMENT,
            _ => MAX_BODY,
        };
        let body = read(request.into_body(), most, room).await;
        let body = body.map_err(|unread| Refusal::unread(unread, most))?;
        let _busy = client.busy().ok_or_else(Refusal::gave_way)?;
        let gated = &self.gated;
        // What frees tokens, stops takes or changes limits never waits for those that wait for tokens.
        let gate = match call {
            Call::Settle | Call::Report | Call::SetLimits | Call::DeleteLimits => &gated.settling,
            _ => &gated.gate,
        };
        let permit = gate.enter(body.len());
        let permit = permit.map_err(|full| Refusal::overloaded(full.to_string()))?;
        match call {
            Call::Acquire => {
                let request = read_acquire(&body).map_err(invalid)?;
                drop(body);
                acquire(gated, &request).await
            }
            Call::Settle => {
                let change = read_settle(&body).map_err(invalid)?;
                settle(gated, change, permit).await
            }
            Call::Report => report(gated, &read_report(&body).map_err(invalid)?).await,
            Call::Peek => peek(gated, &read_peek(&body).map_err(invalid)?).await,
            Call::Usage => usage(gated, read_usage(&body).map_err(invalid)?).await,
            Call::Limits => limits(gated, &read_limits(&body).map_err(invalid)?).await,
            Call::SetLimits => {
                change_limits(gated, &read_set_limits(&body).map_err(invalid)?).await
            }
            Call::DeleteLimits => {
                change_limits(gated, &read_delete_limits(&body).map_err(invalid)?).await
            }
            // No path leads to them.
            Call::ShouldRateLimit | Call::Kuadrant => Err(Refusal::unknown_path(call.names().1)),
        }
    }
}

fn invalid(error: Invalid) -> Refusal {
    Refusal::invalid(error.to_string())
}

fn check_token(token: Option<&Token>, request: &Request<Incoming>) -> Result<(), Refusal> {
    let Some(token) = token else { return Ok(()) };
    token.check(request.headers()).map_err(Refusal::wrong_token)
}

/// Returns whether no web page of another site can have sent a request: a browser sends one of these
/// fields, and the name of its page as the host. Probes and scrapers use any name.
fn is_for_this_host(headers: &HeaderMap) -> bool {
    let browsers = ["accept-language", "origin", "referer", "sec-fetch-site"];
    if !browsers.iter().any(|name| headers.contains_key(*name)) {
        return true;
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    host.is_some_and(|host| {
        let name = host.host();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
    })
}

/// Checks that a body is framed by its length or in chunks, and not encoded besides.
fn check_encoding(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match encodings.find(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        None => Ok(()),
        Some(other) => Err(Refusal::encoding(&String::from_utf8_lossy(other.as_bytes()))),
    }
}

fn check_method(request: &Request<Incoming>, allowed: &Method) -> Result<(), Refusal> {
    match request.method() {
        method if method == allowed => Ok(()),
        method => Err(Refusal::wrong_method(allowed, request.uri().path(), method)),
    }
}

/// Reads a body as the request of each operation: for fuzzing.
///
/// # Errors
/// The refusals of the operations that cannot read it, in the order of the routes.
pub fn decode(body: &[u8]) -> [Result<String, Invalid>; 8] {
    [
        read_acquire(body).map(|read| format!("{read:?}")),
        read_settle(body).map(|read| format!("{read:?}")),
        read_report(body).map(|read| format!("{read:?}")),
        read_peek(body).map(|read| format!("{read:?}")),
        read_usage(body).map(|read| format!("{read:?}")),
        read_limits(body).map(|read| format!("{read:?}")),
        read_set_limits(body).map(|read| format!("{read:?}")),
        read_delete_limits(body).map(|read| format!("{read:?}")),
    ]
}

//! The files and the events over HTTP, for this machine only.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, header};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use weirgate::Error;

use super::board::{Board, MAX_VIEWERS};
use super::details::{Ask, Asks, MAX_ASKS, What};
use super::events::events;
use super::files::FILES;
use super::shown::Shown;
use super::subject::{Subject, bucket_of};
use crate::listen::{Bounds, HostName, check};

/// How many connections there can be at once.
pub const MAX_CONNECTIONS: usize = 64;
const BOUNDS: Bounds = Bounds {
    connections: MAX_CONNECTIONS,
    head: Duration::from_secs(10),
    stall: Duration::from_secs(5),
    grace: Duration::ZERO,
};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// With each response. The page loads nothing from elsewhere, and is in no frame.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// What requests are answered from.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) board: Arc<Board>,
    pub(crate) shown: Arc<Shown>,
    pub(crate) asks: Asks,
    /// Names of the page in the header `Host`, beside its address.
    pub(crate) hosts: Arc<[HostName]>,
}

/// Serves the page until the task ends.
pub(crate) async fn serve(listener: TcpListener, site: Site) {
    let answer = move |request: Request<Incoming>, own| {
        let site = site.clone();
        async move { respond(&request, own, &site).await }
    };
    crate::listen::serve(listener, BOUNDS, std::future::pending(), answer).await;
}

/// Returns the response to a request.
async fn respond(request: &Request<Incoming>, own: SocketAddr, site: &Site) -> Response<Body> {
    let uri = request.uri();
    if let Err(refused) = check(uri, request.headers(), own, &site.hosts) {
        return text(StatusCode::FORBIDDEN, &refused.to_string());
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response =
            text(StatusCode::METHOD_NOT_ALLOWED, "the page only answers GET and HEAD");
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(header::ALLOW, allowed);
        return response;
    }
    let query = uri.query().unwrap_or_default();
    match uri.path() {
        // HTTP drops the body of an answer to HEAD, and with it the viewer.
        "/events" => event_stream(query, site),
        "/why" => bucket(query, What::Reasons, site).await,
        "/hour" => bucket(query, What::Hour, site).await,
        path => match FILES.iter().find(|file| file.path == path) {
            Some(file) => {
                let body = Full::new(Bytes::from_static(file.text.as_bytes()));
                response(StatusCode::OK, file.kind, body.boxed_unsync())
            }
            None => text(StatusCode::NOT_FOUND, "there is no such file"),
        },
    }
}

/// Returns JSON about one bucket.
async fn bucket(query: &str, what: What, site: &Site) -> Response<Body> {
    let bucket = match bucket_of(query) {
        Ok(bucket) => bucket,
        Err(error) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let (answer, answered) = oneshot::channel();
    let ask = Ask { what, bucket, answer };
    let busy = || {
        let reason = format!("{MAX_ASKS} requests for buckets wait already; ask again");
        text(StatusCode::SERVICE_UNAVAILABLE, &reason)
    };
    if site.asks.try_send(ask).is_err() {
        return busy();
    }
    match answered.await {
        Ok(Ok(json)) => {
            let body = Full::new(json).boxed_unsync();
            response(StatusCode::OK, "application/json", body)
        }
        Ok(Err(error @ Error::Invalid(_))) => text(StatusCode::BAD_REQUEST, &error.to_string()),
        Ok(Err(error)) => text(StatusCode::BAD_GATEWAY, &error.to_string()),
        Err(_) => busy(),
    }
}

fn event_stream(query: &str, site: &Site) -> Response<Body> {
    let subject = match Subject::from_query(query) {
        Ok(subject) => subject,
        Err(error) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let Some(viewer) = site.board.enter(subject) else {
        let reason = format!("{MAX_VIEWERS} viewers are connected; close another page");
        return text(StatusCode::SERVICE_UNAVAILABLE, &reason);
    };
    let events = events(viewer, Arc::clone(&site.shown));
    let frames = events.map(|bytes| Ok(Frame::data(bytes)));
    let body = StreamBody::new(frames).boxed_unsync();
    response(StatusCode::OK, "text/event-stream", body)
}

fn text(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(format!("{text}\n")));
    response(status, "text/plain; charset=utf-8", body.boxed_unsync())
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

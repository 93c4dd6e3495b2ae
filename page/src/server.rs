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
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::board::Board;
use crate::events::events;
use crate::files::FILES;
use crate::shown::Shown;
use crate::subject::Subject;

/// How many viewers there can be at once.
pub const MAX_VIEWERS: usize = 16;
/// How many connections there can be at once.
pub const MAX_CONNECTIONS: usize = 64;
/// Time for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

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
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// Serves the page until the task ends.
pub(crate) async fn serve(listener: TcpListener, board: Arc<Board>, shown: Arc<Shown>) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors: later there may be some again.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (board, shown) = (Arc::clone(&board), Arc::clone(&shown));
        connections.spawn(async move {
            connection(stream, &board, &shown).await;
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, board: &Arc<Board>, shown: &Arc<Shown>) {
    // Without it a small event waits for the acknowledgement of the last one.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let response = respond(&request, board, shown);
        async { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // A browser that goes away is no error.
    let _ = served.await;
}

/// Returns the response to a request.
fn respond(request: &Request<Incoming>, board: &Arc<Board>, shown: &Arc<Shown>) -> Response<Body> {
    if let Err(reason) = check_origin(request, shown.address) {
        return text(StatusCode::FORBIDDEN, &reason);
    }
    if request.method() != Method::GET {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "the page only answers GET");
        let allowed = HeaderValue::from_static("GET");
        response.headers_mut().insert(header::ALLOW, allowed);
        return response;
    }
    let path = request.uri().path();
    if path == "/events" {
        return event_stream(request.uri().query().unwrap_or_default(), board, shown);
    }
    match FILES.iter().find(|file| file.path == path) {
        Some(file) => {
            let body = Full::new(Bytes::from_static(file.text.as_bytes()));
            response(StatusCode::OK, file.kind, body.boxed_unsync())
        }
        None => text(StatusCode::NOT_FOUND, "there is no such file"),
    }
}

fn event_stream(query: &str, board: &Arc<Board>, shown: &Arc<Shown>) -> Response<Body> {
    let subject = match Subject::from_query(query) {
        Ok(subject) => subject,
        Err(error) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let Some(viewer) = board.enter(subject, MAX_VIEWERS) else {
        let reason = format!("{MAX_VIEWERS} viewers are connected; close another page");
        return text(StatusCode::SERVICE_UNAVAILABLE, &reason);
    };
    let events = events(viewer, Arc::clone(shown));
    let frames = events.map(|bytes| Ok(Frame::data(bytes)));
    let body = StreamBody::new(frames).boxed_unsync();
    response(StatusCode::OK, "text/event-stream", body)
}

/// Checks that a request is for this address, and from this page. Otherwise a page of another site
/// could read the table by a name that it points to this machine, or cause reads.
fn check_origin(request: &Request<Incoming>, address: SocketAddr) -> Result<(), String> {
    let field = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    let port = address.port();
    let own = [address.to_string(), format!("localhost:{port}")];
    let host = field(header::HOST).unwrap_or_default();
    if !own.iter().any(|own| own.as_bytes() == host) {
        let host = String::from_utf8_lossy(host).into_owned();
        return Err(format!(
            "the page is at {address}, got Host {host:?}: open http://{address}/"
        ));
    }
    if let Some(origin) = field(header::ORIGIN) {
        let is_own = own
            .iter()
            .any(|own| format!("http://{own}").as_bytes() == origin);
        if !is_own {
            return Err("the page answers no other site".to_owned());
        }
    }
    Ok(())
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

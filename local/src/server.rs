//! The embedded database behind HTTP, on a thread of its own.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use dynoxide::Database;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::json;
use tokio::sync::watch;
use weirgate_shared::reached;

use crate::body::Bodies;
use crate::listen::{Bounds, HostName, Refused, check, serve};
use crate::operation::{UNKNOWN_OPERATION, operation_of, run};

/// The SDKs of AWS open a connection for each request under way, and keep it. Each has 16 KB at
/// most beside its body.
const BOUNDS: Bounds = Bounds {
    connections: 512,
    head: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    grace: Duration::from_secs(2),
};
const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
const JSON: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");

/// A server of the embedded database, until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    endpoint: String,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Serves the database to what connects to `listener`, and addresses it or one of `hosts`.
    ///
    /// # Errors
    /// If no thread or runtime can be started.
    pub fn start(
        listener: TcpListener,
        database: &Database,
        hosts: Vec<HostName>,
    ) -> io::Result<Self> {
        let endpoint = format!("http://{}", reached(listener.local_addr()?));
        listener.set_nonblocking(true)?;
        let table =
            Arc::new(Table { database: database.clone(), hosts, bodies: Bodies::default() });
        let (stop, mut stopped) = watch::channel(false);
        // One thread: requests are handled one after the other anyway, behind the database's lock.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let stop = async {
                let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
            };
            let answer = move |request, own| {
                let table = Arc::clone(&table);
                async move { table.answer(request, own).await }
            };
            serve(listener, BOUNDS, stop, answer).await;
            Ok::<_, io::Error>(())
        };
        let thread = std::thread::Builder::new().name("table".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "the server of the table ended");
            }
        })?;
        Ok(Self { endpoint, stop, thread })
    }

    /// The address, as `http://127.0.0.1:8000`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Serves until the process ends. Returns the address.
    #[must_use]
    pub fn detach(self) -> String {
        std::mem::forget(self.stop);
        self.endpoint
    }

    /// Stops: no new connections; requests under way have two seconds. Blocks until then.
    pub fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.thread.join();
    }
}

/// What all requests need.
struct Table {
    database: Database,
    hosts: Vec<HostName>,
    bodies: Bodies,
}

impl Table {
    async fn answer(&self, request: Request<Incoming>, own: SocketAddr) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        if let Err(refused) = check(&head.uri, &head.headers, own, &self.hosts) {
            let remedy = match refused {
                Refused::Host { .. } => ", or start the table with --allow-host",
                Refused::Site { .. } => "",
            };
            let reason = format!("{refused}{remedy}");
            // The reason has the remedy; for a denied access, clients name permissions.
            return error(StatusCode::FORBIDDEN, "ValidationException", &reason);
        }
        let target = head.headers.get(TARGET);
        let target = target.and_then(|target| target.to_str().ok());
        let Some(operation) = target.and_then(operation_of) else {
            let error = Bytes::from_static(UNKNOWN_OPERATION);
            return response(StatusCode::BAD_REQUEST, error);
        };
        let held = match self.bodies.read(body).await {
            Ok(held) => held,
            Err(unread) => {
                let (status, kind) = unread.answer();
                return error(status, kind, &unread.to_string());
            }
        };
        let (status, body) = run(&self.database, operation, &held.bytes);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response(status, body)
    }
}

/// Returns an error in the form of AWS.
fn error(status: StatusCode, kind: &str, reason: &str) -> Response<Full<Bytes>> {
    let kind = format!("com.amazon.coral.service#{kind}");
    let body = json!({"__type": kind, "message": reason}).to_string();
    response(status, body.into())
}

/// Returns a response as the SDKs of AWS expect it. HTTP itself adds the date, which corrects the
/// clocks of callers.
fn response(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    static REQUESTS: AtomicU64 = AtomicU64::new(1);
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    let id = HeaderValue::from(REQUESTS.fetch_add(1, Ordering::Relaxed));
    headers.insert(REQUEST_ID, id);
    response
}

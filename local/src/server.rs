//! The embedded database behind HTTP, on a thread of its own.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use dynoxide::Database;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::operation::{UNKNOWN_OPERATION, operation_of, run};

/// How long requests under way may take once the server stops.
const LAST_REQUESTS: Duration = Duration::from_secs(2);
/// Time before the next connection after one that could not be accepted.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// Maximum length of a request's body: that of DynamoDB.
const MAX_BODY: usize = 16 * 1024 * 1024;
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
    /// Serves the database to what connects to `listener`.
    ///
    /// # Errors
    /// If no thread or runtime can be started.
    pub fn start(listener: TcpListener, database: &Database) -> io::Result<Self> {
        let endpoint = format!("http://{}", listener.local_addr()?);
        listener.set_nonblocking(true)?;
        let database = database.clone();
        let (stop, stopped) = watch::channel(false);
        // One thread: requests are handled one after the other anyway, behind the database's lock.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            serve(listener, &database, stopped).await;
            Ok::<_, io::Error>(())
        };
        let thread = std::thread::Builder::new().name("table".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "the server of the table ended");
            }
        })?;
        Ok(Self {
            endpoint,
            stop,
            thread,
        })
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

/// Accepts connections until the server stops, then waits for the last requests.
async fn serve(
    listener: tokio::net::TcpListener,
    database: &Database,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
            accepted = listener.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, database.clone(), stopped.clone()));
            }
            // Out of file descriptors: later there may be some again.
            Err(_) => tokio::time::sleep(AFTER_FAILURE).await,
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_REQUESTS, ended).await;
}

async fn connection(stream: TcpStream, database: Database, mut stopped: watch::Receiver<bool>) {
    // Without it a response in two parts waits for the acknowledgement of the first one.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| respond(request, &database));
    let mut served =
        std::pin::pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // A caller that goes away is no error.
        _ = &mut served => return,
        _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}

async fn respond(
    request: Request<Incoming>,
    database: &Database,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let target = request.headers().get(TARGET);
    let target = target.and_then(|target| target.to_str().ok());
    // A copy, as the request is consumed with its body.
    let Some(operation) = target.and_then(operation_of).map(str::to_owned) else {
        let error = Bytes::from_static(UNKNOWN_OPERATION);
        return Ok(response(StatusCode::BAD_REQUEST, error));
    };
    let Ok(body) = Limited::new(request.into_body(), MAX_BODY).collect().await else {
        let error = r#"{"__type":"com.amazon.coral.service#SerializationException"}"#;
        return Ok(response(StatusCode::PAYLOAD_TOO_LARGE, error.into()));
    };
    let (status, body) = run(database, &operation, &body.to_bytes());
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Ok(response(status, body))
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

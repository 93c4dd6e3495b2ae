//! One connection. While it is idle it has no buffers, so tens of thousands of them need little
//! memory.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::timeout;

use super::service::Api;

/// Time for the head of a request, from its first byte.
const HEAD: Duration = Duration::from_secs(10);
/// After this time without a request a connection gives its buffers back, 16 KiB. To get new ones
/// takes some microseconds, so this need not be long, and a burst of connections needs few.
const PARK_AFTER: Duration = Duration::from_millis(20);
/// The same, if a part of a head has arrived.
const PARK_PART_AFTER: Duration = Duration::from_secs(2);
/// After this time without a request a connection is closed.
const IDLE: Duration = Duration::from_secs(3_600);
/// How often a head may be incomplete when the connection would give its buffers back.
const HEAD_PARKS: u32 = 5;

/// A stream of bytes that tells when it has some.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static {
    /// Waits for bytes, or the end.
    fn wait_readable(&self) -> impl Future<Output = io::Result<()>> + Send;
    /// Writes what fits without waiting.
    fn write_now(&self, bytes: &[u8]);
}

impl Transport for tokio::net::TcpStream {
    async fn wait_readable(&self) -> io::Result<()> {
        self.readable().await
    }

    fn write_now(&self, bytes: &[u8]) {
        let _ = self.try_write(bytes);
    }
}

impl Transport for tokio::net::UnixStream {
    async fn wait_readable(&self) -> io::Result<()> {
        self.readable().await
    }

    fn write_now(&self, bytes: &[u8]) {
        let _ = self.try_write(bytes);
    }
}

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) api: Api,
    pub(super) open: AtomicU64,
}

/// Serves a connection until it ends, or `stop` says so: then it finishes its request.
pub(super) async fn serve<T: Transport>(
    mut transport: T,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) {
    let (mut read, mut parks) = (Bytes::new(), 0);
    loop {
        if read.is_empty() {
            parks = 0;
            let readable = timeout(IDLE, transport.wait_readable());
            tokio::select! {
                readable = readable => match readable {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return,
                },
                () = stopped(&mut stop) => return,
            }
        } else if parks == HEAD_PARKS {
            return;
        }
        let prefixed = Prefixed {
            prefix: read,
            inner: TokioIo::new(transport),
        };
        // In a box, so that an idle connection does not keep the room for it.
        match Box::pin(until_idle(prefixed, &shared, &mut stop)).await {
            Some(idle) => {
                (transport, read) = idle;
                parks += 1;
            }
            None => return,
        }
    }
}

/// Serves requests. Returns the stream, with bytes that were read of a next request, once there is
/// no request; `None` when the connection has ended.
async fn until_idle<T: Transport>(
    io: Prefixed<T>,
    shared: &Arc<Shared>,
    stop: &mut watch::Receiver<bool>,
) -> Option<(T, Bytes)> {
    let park_after = match io.prefix.is_empty() {
        true => PARK_AFTER,
        false => PARK_PART_AFTER,
    };
    let begun = Arc::new(AtomicU64::new(0));
    let service = Requests {
        shared: Arc::clone(shared),
        begun: Arc::clone(&begun),
        ended: Arc::new(AtomicU64::new(0)),
    };
    let ended = Arc::clone(&service.ended);
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(16 * 1024)
        .serve_connection(io, service);
    let mut seen = 0;
    loop {
        let served = timeout(
            park_after,
            poll_fn(|cx| connection.poll_without_shutdown(cx)),
        );
        tokio::select! {
            served = served => match served {
                // A client that goes away is no error.
                Ok(_) => return None,
                Err(_) => {
                    let now = begun.load(Ordering::Relaxed);
                    let is_idle = ended.load(Ordering::Relaxed) == now && seen == now;
                    seen = now;
                    if is_idle {
                        break;
                    }
                }
            },
            () = stopped(stop) => {
                Pin::new(&mut connection).graceful_shutdown();
                let _ = connection.await;
                return None;
            }
        }
    }
    // Ends an idle connection without a byte; its stream goes on.
    Pin::new(&mut connection).graceful_shutdown();
    poll_fn(|cx| connection.poll_without_shutdown(cx))
        .await
        .ok()?;
    if begun.load(Ordering::Relaxed) != seen {
        // A head was incomplete. Its request was answered after all, as the connection's last one.
        return None;
    }
    let parts = connection.into_parts();
    let Prefixed { prefix, inner } = parts.io;
    let read = match (parts.read_buf.is_empty(), prefix.is_empty()) {
        (true, _) => prefix,
        (false, true) => parts.read_buf,
        (false, false) => [parts.read_buf, prefix].concat().into(),
    };
    Some((inner.into_inner(), read))
}

/// Waits until the server stops.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
}

/// The requests of a connection.
struct Requests {
    shared: Arc<Shared>,
    begun: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let (shared, ended) = (Arc::clone(&self.shared), Arc::clone(&self.ended));
        Box::pin(async move {
            let open = shared.open.load(Ordering::Relaxed);
            let response = shared.api.respond(request, open).await;
            ended.fetch_add(1, Ordering::Relaxed);
            Ok(response)
        })
    }
}

/// A stream that begins with bytes which were read already.
struct Prefixed<T> {
    prefix: Bytes,
    inner: TokioIo<T>,
}

impl<T: Transport> Read for Prefixed<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { prefix, inner } = self.get_mut();
        if prefix.is_empty() {
            return Pin::new(inner).poll_read(cx, buf);
        }
        let part = prefix.split_to(prefix.len().min(buf.remaining()));
        buf.put_slice(&part);
        Poll::Ready(Ok(()))
    }
}

impl<T: Transport> Write for Prefixed<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }
}

//! Upgraded connections: a grant stays held until the stream that follows the response has ended.
//!
//! A server hands that stream to the handler past the layer, and the body that could hold the grant is
//! gone with the head of the response. So the layer takes the server's upgrade, gives the handler the
//! one of a connection in memory, and copies between the two.

use std::io;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy_bidirectional};
use tokio::sync::oneshot;

use crate::Settlement;
use crate::tower::{GrantHandle, LimitedBody};

/// Bytes that wait on their way in either direction.
const BUFFER: usize = 16 * 1024;
/// Attempts within the length of a lease, while it cannot be renewed.
const RETRIES: u32 = 20;
/// The request for an upgrade of the connection in memory.
const REQUEST: &[u8] =
    b"GET / HTTP/1.1\r\nhost: layer\r\nconnection: upgrade\r\nupgrade: stream\r\n\r\n";

/// The upgrade of a request's connection, if its handler wants one.
pub(super) struct Upgrade {
    server: OnUpgrade,
    /// The layer's end of the connection in memory.
    stream: DuplexStream,
    /// Begins the handler's stream.
    begin: oneshot::Sender<()>,
    is_connect: bool,
}

impl Upgrade {
    /// Takes the upgrade of a request, if there is one, and gives its handler another.
    pub(super) async fn intercept<B>(request: &mut Request<B>) -> Option<Self> {
        let server = request.extensions_mut().remove::<OnUpgrade>()?;
        let is_connect = request.method() == Method::CONNECT;
        let Some((handlers, stream, begin)) = connection().await else {
            request.extensions_mut().insert(server);
            return None;
        };
        request.extensions_mut().insert(handlers);
        Some(Self { server, stream, begin, is_connect })
    }

    /// Holds the grant until the stream has ended, if the response begins one. Its lease of this
    /// length is renewed.
    pub(super) fn hold(self, status: StatusCode, handle: GrantHandle, lease: Duration) {
        let is_tunnel = self.is_connect && status.is_success();
        if status != StatusCode::SWITCHING_PROTOCOLS && !is_tunnel {
            return;
        }
        tokio::spawn(async move {
            let mut copied = pin!(self.copy());
            tokio::select! {
                done = &mut copied => if let Err(error) = done {
                    tracing::debug!(%error, "an upgraded connection broke");
                },
                () = renew(&handle, lease) => {}
            }
            drop(handle);
        });
    }

    async fn copy(self) -> io::Result<()> {
        let Self { server, mut stream, begin, .. } = self;
        // The handler may have left its upgrade alone; then the stream ends at once.
        let _ = begin.send(());
        skip_head(&mut stream).await?;
        let mut client = TokioIo::new(server.await.map_err(io::Error::other)?);
        copy_bidirectional(&mut client, &mut stream).await?;
        Ok(())
    }
}

/// Renews a lease while its stream lasts: at once, because the handler's time is part of the lease,
/// and then whenever a third of it has passed. Never returns.
async fn renew(handle: &GrantHandle, lease: Duration) {
    loop {
        let pause = match handle.renew(lease).await {
            Ok(Settlement::LeaseGone) => {
                tracing::warn!(
                    "the lease of an upgraded connection is gone: its stream holds nothing any more"
                );
                return std::future::pending().await;
            }
            Ok(_) => lease / 3,
            Err(error) => {
                tracing::warn!(%error, "the lease of an upgraded connection could not be renewed");
                lease / RETRIES
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Opens a connection in memory. Returns its upgrade, its other end, and what begins the upgrade.
async fn connection() -> Option<(OnUpgrade, DuplexStream, oneshot::Sender<()>)> {
    let (mut near, far) = tokio::io::duplex(BUFFER);
    let (send, upgrade) = oneshot::channel();
    let (begin, begun) = oneshot::channel::<()>();
    let once = Mutex::new(Some((send, begun)));
    let service = service_fn(move |mut request: Request<Incoming>| {
        let once = once.lock().ok().and_then(|mut once| once.take());
        async move {
            let closed = || io::Error::other("the connection has no second request");
            let (send, begun) = once.ok_or_else(closed)?;
            let _ = send.send(hyper::upgrade::on(&mut request));
            begun.await.map_err(io::Error::other)?;
            let mut response = Response::new(LimitedBody::<Incoming>::own(String::new()));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("stream"));
            Ok::<_, io::Error>(response)
        }
    });
    let serving = http1::Builder::new().serve_connection(TokioIo::new(far), service);
    tokio::spawn(serving.with_upgrades());
    near.write_all(REQUEST).await.ok()?;
    Some((upgrade.await.ok()?, near, begin))
}

/// Reads the head of the response in memory, after which the stream begins.
async fn skip_head(stream: &mut DuplexStream) -> io::Result<()> {
    let mut last = [0; 4];
    while &last != b"\r\n\r\n" {
        last.rotate_left(1);
        last[3] = stream.read_u8().await?;
    }
    Ok(())
}

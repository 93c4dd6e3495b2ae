//! One connection. While it is idle it has no buffers, so tens of thousands of them need little
//! memory.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioTimer;
use tokio::sync::watch;
use tokio::time::timeout;

use super::service::Api;
use super::stream::{Prefixed, Transport};

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

/// How far a server has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    /// Not at all.
    No,
    /// Connections finish their requests.
    Finish,
    /// Connections are closed, and their requests dropped.
    Close,
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
    mut stop: watch::Receiver<Stop>,
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
                () = reached(&mut stop, Stop::Finish) => return,
            }
        } else if parks == HEAD_PARKS {
            return;
        }
        let prefixed = Prefixed::new(read, transport);
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
    stop: &mut watch::Receiver<Stop>,
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
            () = reached(stop, Stop::Finish) => {
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
    let (prefix, transport) = parts.io.into_parts();
    let read = match (parts.read_buf.is_empty(), prefix.is_empty()) {
        (true, _) => prefix,
        (false, true) => parts.read_buf,
        (false, false) => [parts.read_buf, prefix].concat().into(),
    };
    Some((transport, read))
}

/// Waits until the server has stopped so far.
pub(super) async fn reached(stop: &mut watch::Receiver<Stop>, how: Stop) {
    let _ = stop.wait_for(|stop| *stop >= how).await;
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::task::{Context, Poll};

    use tokio::io::{
        AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
        DuplexStream, ReadBuf, duplex,
    };
    use tokio::time::{Instant, sleep};
    use weirgate::{ConnectOptions, RateLimiter};

    use super::super::health::Health;
    use super::super::stream::TAKING;
    use super::*;
    use crate::decide::Decider;

    /// A pipe, which has room for 4 KiB.
    struct Pipe(DuplexStream);

    impl Transport for Pipe {
        async fn wait_readable(&self) -> io::Result<()> {
            Ok(())
        }

        fn write_now(&self, _: &[u8]) {}
    }

    impl AsyncRead for Pipe {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Pipe {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    async fn shared() -> Arc<Shared> {
        let nowhere = ConnectOptions {
            local_endpoint: Some("http://127.0.0.1:1".to_owned()),
            ..ConnectOptions::default()
        };
        let limiter = RateLimiter::builder("limits").connection(nowhere);
        let decider = Arc::new(Decider::new(limiter.build().await.unwrap(), 10));
        Arc::new(Shared {
            api: Api::new(decider, None, Arc::new(Health::default())),
            open: AtomicU64::new(1),
        })
    }

    /// A client that sends requests and takes their answers, of 10 KiB each, as `takes` does.
    async fn serve_slow_client<C: Future<Output = ()>>(
        takes: impl FnOnce(DuplexStream) -> C,
    ) -> Duration {
        let shared = shared().await;
        let (mut client, server) = duplex(4096);
        let (_stop, stopped) = watch::channel(Stop::No);
        let begun = Instant::now();
        let serving = serve(Pipe(server), shared, stopped);
        let asking = async {
            let request = b"GET /metrics HTTP/1.1\r\nhost: agent\r\n\r\n";
            client.write_all(request).await.unwrap();
            takes(client).await;
        };
        tokio::select! {
            () = serving => begun.elapsed(),
            () = asking => Duration::ZERO,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_take_its_answer_is_left() {
        let lasted = serve_slow_client(|client| async move {
            std::future::pending::<()>().await;
            drop(client);
        });
        assert_eq!(lasted.await.as_secs(), TAKING.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_byte_in_a_second_is_left() {
        let lasted = serve_slow_client(|mut client| async move {
            while client.read_u8().await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
            std::future::pending().await
        });
        assert_eq!(lasted.await.as_secs(), TAKING.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_its_answers_slowly_keeps_its_connection() {
        let lasted = serve_slow_client(|client| async move {
            let mut client = BufReader::new(client);
            for _ in 0..5 {
                // Half of the time for an answer, before each.
                sleep(TAKING / 2).await;
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    assert!(client.read_line(&mut line).await.unwrap() > 0, "the end");
                    match line.trim_end().split_once(": ") {
                        Some(("content-length", number)) => length = number.parse().unwrap(),
                        _ if line == "\r\n" => break,
                        _ => {}
                    }
                }
                assert!(length > 4096, "it has room for {length}");
                client.read_exact(&mut vec![0; length]).await.unwrap();
                let request = b"GET /metrics HTTP/1.1\r\nhost: agent\r\n\r\n";
                client.write_all(request).await.unwrap();
            }
        });
        assert_eq!(lasted.await, Duration::ZERO, "the client ended first");
    }
}

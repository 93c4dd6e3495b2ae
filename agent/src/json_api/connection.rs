//! A server, and its connections. While one is idle it has no buffers, so tens of thousands of them need little
//! memory.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{BufReader, DuplexStream};
use tokio::time::timeout;

use super::Api;
use super::responses::Refusal;
use crate::net::stream::{Holds, Prefixed, Transport};
use crate::net::{Address, Bounds, Client, Clients, Listener, Place, Protocol, Stop, accept};

/// What a connection beyond the bound is told.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
content-type: application/problem+json\r\ncontent-length: 202\r\n\r\n\
{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"the agent has its \
maximum of connections: close some, or start it with a larger --max-connections\",\"applied\":\"no\",\"retry\":true}";
/// Longest head of a request, 16 KiB, and the room that each request needs until its body is whole.
const HEAD_BYTES: usize = 16 * 1024;
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

/// HTTP/1.1 with an API.
#[derive(Debug, Clone)]
pub(super) struct Http(pub(super) Arc<Api>);

impl Protocol for Http {
    const FULL: &'static [u8] = FULL;
    const IS_MULTIPLEXED: bool = false;

    async fn serve<T: Transport>(self, transport: T, client: Arc<Client>) {
        serve(transport, self.0, client).await;
    }
}

/// Serves requests on one connection in memory: for tests and fuzzing.
pub async fn serve_in_memory(api: Arc<Api>, clients: &Clients, stream: BufReader<DuplexStream>) {
    clients.serve(stream, Http(api)).await;
}

/// Serves a connection until it ends, or the server stops: then it finishes its request.
async fn serve<T: Transport>(mut transport: T, api: Arc<Api>, client: Arc<Client>) {
    let requests = Requests(Arc::new(Connection {
        api,
        client: Arc::clone(&client),
        begun: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        arriving: Mutex::default(),
    }));
    let (mut read, mut parks) = (Bytes::new(), 0);
    loop {
        if read.is_empty() {
            parks = 0;
            requests.0.arrived();
            let readable = timeout(IDLE, poll_fn(|cx| transport.poll_readable(cx)));
            tokio::select! {
                readable = readable => match readable {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return,
                },
                () = client.stopped(Stop::Finish) => return,
            }
        } else if parks == HEAD_PARKS {
            return;
        }
        let prefixed = Prefixed::new(read, transport, requests.clone());
        // In a box, so that an idle connection does not keep the room for it.
        match Box::pin(until_idle(prefixed, &requests)).await {
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
    io: Prefixed<T, Requests>,
    requests: &Requests,
) -> Option<(T, Bytes)> {
    let park_after = match io.prefix.is_empty() {
        true => PARK_AFTER,
        false => PARK_PART_AFTER,
    };
    let Connection { client, begun, ended, .. } = &*requests.0;
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(io), requests.clone());
    let mut seen = begun.load(Ordering::Relaxed);
    loop {
        let served = timeout(park_after, poll_fn(|cx| connection.poll_without_shutdown(cx)));
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
            () = client.stopped(Stop::Finish) => {
                Pin::new(&mut connection).graceful_shutdown();
                let _ = connection.await;
                return None;
            }
        }
    }
    // Ends an idle connection without a byte; its stream goes on.
    Pin::new(&mut connection).graceful_shutdown();
    poll_fn(|cx| connection.poll_without_shutdown(cx)).await.ok()?;
    if begun.load(Ordering::Relaxed) != seen {
        // A head was incomplete. Its request was answered after all, as the connection's last one.
        return None;
    }
    let parts = connection.into_parts();
    let (prefix, transport) = parts.io.into_inner().into_parts();
    let read = match (parts.read_buf.is_empty(), prefix.is_empty()) {
        (true, _) => prefix,
        (false, true) => parts.read_buf,
        (false, false) => [parts.read_buf, prefix].concat().into(),
    };
    Some((transport, read))
}

/// The requests of a connection.
#[derive(Debug, Clone)]
struct Requests(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    api: Arc<Api>,
    client: Arc<Client>,
    begun: AtomicU64,
    ended: AtomicU64,
    /// Room for a request whose head has not arrived whole.
    arriving: Mutex<Option<Place>>,
}

impl Connection {
    /// Returns the room of the request that was arriving.
    fn arrived(&self) -> Option<Place> {
        let arriving = self.arriving.lock();
        arriving.unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Holds for Requests {
    fn arrive(&self) -> bool {
        let Connection { client, begun, ended, arriving, .. } = &*self.0;
        if begun.load(Ordering::Relaxed) != ended.load(Ordering::Relaxed) {
            // Bytes of a body, which takes room for itself.
            return true;
        }
        let mut arriving = arriving.lock().unwrap_or_else(PoisonError::into_inner);
        if arriving.is_none() {
            *arriving = client.hold(HEAD_BYTES);
        }
        arriving.is_some()
    }

    fn keep(&self, bytes: usize) -> Option<Place> {
        self.0.client.hold(bytes)
    }

    fn is_answering(&self) -> bool {
        self.0.client.is_busy()
    }
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let connection = Arc::clone(&self.0);
        connection.begun.fetch_add(1, Ordering::Relaxed);
        let ends_alone = Api::runs_to_its_end(&request);
        let answer = async move {
            let Connection { api, client, .. } = &*connection;
            // A head that came with the request before it has none yet.
            let room = connection.arrived().or_else(|| client.hold(HEAD_BYTES));
            let response = api.respond(request, client, room).await;
            connection.ended.fetch_add(1, Ordering::Relaxed);
            response
        };
        if !ends_alone {
            return Box::pin(async { Ok(answer.await) });
        }
        // In a task, because the end of a connection drops what it has not answered.
        let client = Arc::clone(&self.0.client);
        let task = tokio::spawn(async move {
            tokio::select! {
                answer = answer => Some(answer),
                () = client.stopped(Stop::Close) => None,
            }
        });
        Box::pin(async {
            let answer = task.await.ok().flatten();
            Ok(answer.unwrap_or_else(|| Refusal::stopping().into_response()))
        })
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    clients: Clients,
}

impl Server {
    /// Listens on all addresses, which the option or the variable `given` names.
    ///
    /// # Errors
    /// A sentence that names the address and the remedy.
    pub async fn bind(addresses: &[Address], given: &str, bounds: Bounds) -> Result<Self, String> {
        let mut listeners = vec![];
        for address in addresses {
            listeners.push(Listener::bind(address, given).await?);
        }
        let clients = Clients::new(bounds);
        Ok(Self { listeners, clients })
    }

    /// Returns where it listens: the ports, if the system chose them.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().filter_map(Listener::address).collect()
    }

    /// Returns the connections, which other listeners may share.
    #[must_use]
    pub const fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Serves until `stop` is done; then accepts no more, finishes the requests in flight, and drops
    /// those that are not finished after the time for it.
    pub async fn serve(self, api: Api, stop: impl Future<Output = ()>) {
        let http = Http(Arc::new(api));
        let accepting = self.listeners.into_iter();
        let accepting =
            accepting.map(|listener| accept(listener, self.clients.clone(), http.clone()));
        let accepting: Vec<_> = accepting.map(tokio::spawn).collect();
        stop.await;
        for task in accepting {
            task.abort();
            // With the task its listener ends, and the file of a Unix socket.
            let _ = task.await;
        }
        self.clients.end().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, sleep};
    use weirgate::{ConnectOptions, RateLimiter};

    use super::super::operations::Health;
    use super::*;
    use crate::gated::GatedLimiter;
    use crate::net::Bounds;
    use crate::net::stream::TAKING;

    async fn api() -> Arc<Api> {
        let nowhere = ConnectOptions {
            local_endpoint: Some("http://127.0.0.1:1".to_owned()),
            ..ConnectOptions::default()
        };
        let limiter = RateLimiter::builder("limits").connection(nowhere);
        let gated = Arc::new(GatedLimiter::new(limiter.build().await.unwrap(), 10));
        Arc::new(Api::new(gated, None, Arc::new(Health::default())))
    }

    /// A client that sends requests and takes their answers, of 10 KiB each, as `takes` does.
    async fn serve_slow_client<C: Future<Output = ()>>(
        takes: impl FnOnce(DuplexStream) -> C,
    ) -> Duration {
        let api = api().await;
        let (mut client, server) = duplex(4096);
        let clients = Clients::new(Bounds { max_connections: 1, grace: Duration::ZERO });
        let begun = Instant::now();
        let serving = serve_in_memory(api, &clients, BufReader::new(server));
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

    #[test]
    fn the_answer_beyond_the_bound_has_the_length_that_it_states() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = format!("content-length: {}", body.len());
        assert!(head.contains(&length), "{length}");
        serde_json::from_str::<serde_json::Value>(body).unwrap();
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

//! Listens for calls: HTTP/2, in the bounds of all listeners.

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, BufReader, DuplexStream};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};
use tonic::codegen::{Service as TowerService, StdError, http};
use tonic::server::{Grpc as GrpcServer, NamedService, UnaryService};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use weirgate_shared::docs;

use super::messages::MAX_MESSAGE_BYTES;
use super::service::RateLimitService;
use super::without_decision::{Arrival, gave_way, unread};
use crate::net::stream::{Holds, Prefixed, TAKING, Transport, read};
use crate::net::{Address, Client, Clients, Listener, Place, Protocol, Stop, accept};

/// Most calls at the same time on one connection, 256. Envoy opens another one for more.
const MAX_STREAMS: u32 = 256;
/// Longest list of headers, 16 KiB, and the room that each call needs until its message is whole.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Room for an answer until its client takes it, 4 KiB.
const ANSWER_BYTES: usize = 4 * 1024;
/// Bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Time after which a silent connection is asked whether it is alive, and time for its answer. One
/// that stops within a frame or a list of headers cannot answer.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// What each connection of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time for that.
const PREFACE_TIME: Duration = Duration::from_secs(10);

/// A listener for calls.
#[derive(Debug)]
pub struct Grpc(Listener);

impl Grpc {
    /// Listens on an address.
    ///
    /// # Errors
    /// A sentence that names the address and the remedy.
    pub async fn bind(address: SocketAddr) -> Result<Self, String> {
        Ok(Self(Listener::bind(&Address::Tcp(address), "--grpc").await?))
    }

    /// Returns where it listens: the port, if the system chose it.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self.0.address()? {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) => None,
        }
    }

    /// Serves both services and `grpc.health.v1` until `shutdown`, and then ends the calls that have
    /// begun. The health is serving between `ready` and `shutdown`.
    pub async fn serve(
        self,
        service: RateLimitService,
        clients: Clients,
        ready: impl Future<Output = ()>,
        shutdown: impl Future<Output = ()>,
    ) {
        let service = Arc::new(service);
        let (reporter, health) = tonic_health::server::health_reporter();
        let report = async |status| {
            // The name without a service is that of the whole server.
            reporter.set_service_status("", status).await;
            let names = [Methods::<Envoy>::NAME, Methods::<Kuadrant>::NAME];
            for name in names {
                reporter.set_service_status(name, status).await;
            }
        };
        report(tonic_health::ServingStatus::NotServing).await;
        let routes = Routes::new(health)
            .add_service(Methods::<Envoy>::new(Arc::clone(&service)))
            .add_service(Methods::<Kuadrant>::new(service))
            .prepare();
        let accepting = tokio::spawn(accept(self.0, clients.clone(), Http2(routes)));
        let becoming = async {
            ready.await;
            report(tonic_health::ServingStatus::Serving).await;
            std::future::pending().await
        };
        tokio::select! {
            () = becoming => {}
            () = shutdown => {}
        }
        report(tonic_health::ServingStatus::NotServing).await;
        accepting.abort();
        let _ = accepting.await;
        clients.end().await;
    }
}

impl From<TcpListener> for Grpc {
    fn from(listener: TcpListener) -> Self {
        Self(Listener::Tcp(listener))
    }
}

/// Serves calls on one connection in memory: for tests and fuzzing.
pub async fn serve_in_memory(
    service: Arc<RateLimitService>,
    clients: &Clients,
    stream: BufReader<DuplexStream>,
) {
    let routes = Routes::new(Methods::<Envoy>::new(service)).prepare();
    clients.serve(stream, Http2(routes)).await;
}

/// HTTP/2 with the routes of all services.
#[derive(Debug, Clone)]
struct Http2(Routes);

impl Protocol for Http2 {
    /// HTTP/2 has no answer before its handshake.
    const FULL: &'static [u8] = b"";
    const IS_MULTIPLEXED: bool = true;

    async fn serve<T: Transport>(self, mut transport: T, client: Arc<Client>) {
        let mut preface = vec![0; PREFACE.len()];
        let begun = timeout(PREFACE_TIME, transport.read_exact(&mut preface));
        // What speaks another protocol is told so by the handshake.
        if !matches!(begun.await, Ok(Ok(_))) {
            return;
        }
        let io = Prefixed::new(preface.into(), transport, Unheld);
        let answers = Arc::new(Answers::default());
        let calls =
            Calls { routes: self.0, client: Arc::clone(&client), answers: Arc::clone(&answers) };
        let mut connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_BYTES)
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .serve_connection(TokioIo::new(io), calls);
        tokio::select! {
            // A client that goes away is no error.
            _ = &mut connection => return,
            () = answers.stuck() => return,
            () = client.stopped(Stop::Finish) => {}
        }
        Pin::new(&mut connection).graceful_shutdown();
        let _ = connection.await;
    }
}

/// A connection whose calls hold their room one by one.
struct Unheld;

impl Holds for Unheld {
    /// HTTP/2 reads on while it answers.
    fn is_answering(&self) -> bool {
        false
    }

    fn arrive(&self) -> bool {
        true
    }

    fn keep(&self, _: usize) -> Option<Place> {
        None
    }
}

/// The calls of a connection.
#[derive(Debug, Clone)]
struct Calls {
    routes: Routes,
    client: Arc<Client>,
    answers: Arc<Answers>,
}

/// The answers of a connection that its client has not taken.
#[derive(Debug, Default)]
struct Answers {
    begun: AtomicU64,
    taken: AtomicU64,
}

impl Answers {
    /// Waits until the client has taken none of its answers within [`TAKING`].
    async fn stuck(&self) {
        let mut before = None;
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            let is_waiting = self.begun.load(Ordering::Relaxed) != taken;
            if is_waiting && before == Some(taken) {
                return;
            }
            before = is_waiting.then_some(taken);
            sleep(TAKING).await;
        }
    }
}

impl Service<http::Request<Incoming>> for Calls {
    type Response = http::Response<Held>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        let arrival = Arrival(Instant::now());
        let Self { routes, client, answers } = self.clone();
        Box::pin(async move {
            // Its answers have no end.
            let is_watch = request.uri().path() == "/grpc.health.v1.Health/Watch";
            let answer = call(routes, &client, arrival, request).await;
            let answer = answer.unwrap_or_else(Status::into_http);
            let room = client.hold(ANSWER_BYTES);
            Ok(answer.map(|body| Held {
                body,
                _room: room,
                _untaken: (!is_watch).then(|| Untaken::new(answers)),
            }))
        })
    }
}

/// Answers a call once its message is whole.
async fn call(
    mut routes: Routes,
    client: &Client,
    arrival: Arrival,
    request: http::Request<Incoming>,
) -> Result<http::Response<tonic::body::Body>, Status> {
    let (parts, body) = request.into_parts();
    let room = client.hold_alone(usize::try_from(MAX_HEADER_BYTES).unwrap_or(usize::MAX));
    let room = room.ok_or_else(gave_way)?;
    let message = read(body, MAX_MESSAGE_BYTES + PREFIX_BYTES, room).await;
    let message = message.map_err(unread)?;
    let _busy = client.busy().ok_or_else(gave_way)?;
    let body = tonic::body::Body::new(Full::new(message));
    let mut request = http::Request::from_parts(parts, body);
    request.extensions_mut().insert(arrival);
    match routes.call(request).await {
        Ok(answer) => Ok(answer),
    }
}

/// The body of an answer, with its room.
#[derive(Debug)]
struct Held {
    body: tonic::body::Body,
    _room: Option<Place>,
    _untaken: Option<Untaken>,
}

/// An answer until it is taken.
#[derive(Debug)]
struct Untaken(Arc<Answers>);

impl Untaken {
    fn new(answers: Arc<Answers>) -> Self {
        answers.begun.fetch_add(1, Ordering::Relaxed);
        Self(answers)
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        self.0.taken.fetch_add(1, Ordering::Relaxed);
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

type Answer =
    Pin<Box<dyn Future<Output = Result<http::Response<tonic::body::Body>, Infallible>> + Send>>;

/// The methods of both services, under the name of `S`.
#[derive(Debug)]
pub(super) struct Methods<S> {
    service: Arc<RateLimitService>,
    name: PhantomData<fn() -> S>,
}

/// Envoy's `RateLimitService`.
#[derive(Debug)]
pub(super) enum Envoy {}

/// Kuadrant's `RateLimitService`.
#[derive(Debug)]
pub(super) enum Kuadrant {}

impl NamedService for Methods<Envoy> {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl NamedService for Methods<Kuadrant> {
    const NAME: &'static str = "kuadrant.service.ratelimit.v1.RateLimitService";
}

impl<S> Methods<S> {
    pub(super) const fn new(service: Arc<RateLimitService>) -> Self {
        Self { service, name: PhantomData }
    }
}

impl<S> Clone for Methods<S> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.service))
    }
}

impl<S, B> TowerService<http::Request<B>> for Methods<S>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Answer {
        let service = Arc::clone(&self.service);
        // Before anything of the message is read.
        if let Err(status) = service.authenticate(request.headers()) {
            return Box::pin(async move { Ok(status.into_http()) });
        }
        match request.uri().path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => unary(
                request,
                move |request| async move { service.should_rate_limit(request).await },
            ),
            "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit" => {
                unary(request, move |request| async move { service.check(request).await })
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Report" => {
                unary(request, move |request| async move { service.report(request).await })
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve" => {
                unary(request, move |request| async move { service.reserve(request).await })
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Commit" => {
                unary(request, move |request| async move { service.commit(request).await })
            }
            _ => unimplemented(),
        }
    }
}

/// Decodes the message, calls `method` with it, and encodes its answer.
fn unary<B, M, R, F>(
    request: http::Request<B>,
    method: impl FnOnce(Request<M>) -> F + Send + 'static,
) -> Answer
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
    M: prost::Message + Default + Send + Sync + 'static,
    R: prost::Message + Default + Send + Sync + 'static,
    F: Future<Output = Result<Response<R>, Status>> + Send + 'static,
{
    Box::pin(async move {
        let mut grpc = GrpcServer::new(ProstCodec::<R, M>::default())
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(grpc.unary(Once(Some(method)), request).await)
    })
}

fn unimplemented() -> Answer {
    let status = Status::unimplemented(concat!(
        "this service has no such method: see ",
        docs!("guide/envoy")
    ));
    Box::pin(async move { Ok(status.into_http()) })
}

/// A method that is called once.
struct Once<F>(Option<F>);

impl<M, R, F, A> UnaryService<M> for Once<F>
where
    F: FnOnce(Request<M>) -> A,
    A: Future<Output = Result<Response<R>, Status>>,
{
    type Response = R;
    type Future = Called<A>;

    fn call(&mut self, request: Request<M>) -> Called<A> {
        Called(self.0.take().map(|method| Box::pin(method(request))))
    }
}

/// The answer of a method.
struct Called<A>(Option<Pin<Box<A>>>);

impl<A, R> Future for Called<A>
where
    A: Future<Output = Result<R, Status>>,
{
    type Output = Result<R, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Some(answer) => answer.as_mut().poll(context),
            None => Poll::Ready(Err(Status::internal("the method was called before"))),
        }
    }
}

//! Accepts connections, bounds them, and ends those that make no progress.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_io_timeout::TimeoutStream;

/// Pause after a connection could not be accepted, which mostly is for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two warnings of that.
const WARNED_EVERY: Duration = Duration::from_secs(10);
/// Time for which an idle connection keeps its place anyway: its request may be on the way.
const AT_LEAST_IDLE: Duration = Duration::from_millis(100);
/// Maximum length of a request's head, and of what is read ahead of it.
const MAX_HEAD: usize = 16 * 1024;

/// How much a server holds, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Open connections. One more takes the place of the one that has been idle longest; where all
    /// have a request, it waits.
    pub connections: usize,
    /// Time for the head of a request, from the moment from which the server waits for it.
    pub head: Duration,
    /// Time in which a client must take some of what it is sent.
    pub stall: Duration,
    /// Time for requests under way once the server stops.
    pub grace: Duration,
}

/// Serves connections until `stop` is done, then waits for the last requests. `answer` gets each
/// request with the address at which its connection arrived.
pub async fn serve<F, A, B>(
    listener: TcpListener,
    bounds: Bounds,
    stop: impl Future<Output = ()>,
    answer: F,
) where
    F: Fn(Request<Incoming>, SocketAddr) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Error = Infallible> + Send + 'static,
    B::Data: Send,
{
    let free = Arc::new(Semaphore::new(bounds.connections));
    let (places, stopping) = (Arc::new(Places::default()), watch::Sender::new(false));
    let (mut connections, mut warned) = (JoinSet::new(), None);
    let accepting = async {
        loop {
            let (stream, own) = match accept(&listener).await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn(&error, &mut warned);
                    // Its descriptor is free then.
                    places.make_one();
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            while connections.try_join_next().is_some() {}
            let permit = places.permit(&free).await;
            let place = Place::new(&places);
            let (stopped, answer) = (stopping.subscribe(), answer.clone());
            connections.spawn(async move {
                connection(stream, own, bounds, &place, stopped, answer).await;
                place.leave();
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = stop => {}
        () = accepting => {}
    }
    drop(listener);
    stopping.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(bounds.grace, ended).await;
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, _) = listener.accept().await?;
    let own = stream.local_addr()?;
    // Without it a small answer waits for the acknowledgement of the last one.
    let _ = stream.set_nodelay(true);
    Ok((stream, own))
}

fn warn(error: &io::Error, warned: &mut Option<Instant>) {
    if warned.is_none_or(|at| at.elapsed() >= WARNED_EVERY) {
        *warned = Some(Instant::now());
        tracing::warn!(
            %error,
            "connections cannot be accepted; close some, or raise the limit of open files"
        );
    }
}

async fn connection<F, A, B>(
    stream: TcpStream,
    own: SocketAddr,
    bounds: Bounds,
    place: &Arc<Place>,
    mut stopping: watch::Receiver<bool>,
    answer: F,
) where
    F: Fn(Request<Incoming>, SocketAddr) -> A,
    A: Future<Output = Response<B>>,
    B: Body<Error = Infallible> + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(bounds.stall));
    let service = service_fn(|request| {
        let busy = Busy::new(place);
        let answered = answer(request, own);
        async {
            let response = answered.await;
            // Busy until the body is sent, or dropped with the connection.
            let held = response.map(|body| {
                body.map_err(move |never| {
                    let _ = &busy;
                    never
                })
            });
            Ok::<_, Infallible>(held)
        }
    });
    let mut builder = http1::Builder::new();
    let builder =
        builder.timer(TokioTimer::new()).header_read_timeout(bounds.head).max_buf_size(MAX_HEAD);
    let served = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut served = std::pin::pin!(served);
    tokio::select! {
        biased;
        () = place.left.notified() => return,
        // A client that goes away is no error.
        _ = &mut served => return,
        _ = stopping.wait_for(|is_stopping| *is_stopping) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}

/// The connections without a request, by the order in which they became so.
#[derive(Debug, Default)]
struct Places(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    next: u64,
    places: BTreeMap<u64, (Instant, Arc<Place>)>,
}

impl Places {
    /// Returns the permit for one more connection. While there is none, idle connections end.
    async fn permit(&self, free: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(free).try_acquire_owned() {
            return Some(permit);
        }
        loop {
            self.make_one();
            let permit = Arc::clone(free).acquire_owned();
            if let Ok(permit) = tokio::time::timeout(PAUSE, permit).await {
                return permit.ok();
            }
        }
    }

    /// Ends the connection that has been idle longest, if there is one.
    fn make_one(&self) {
        let mut idle = self.idle();
        if let Some(longest) = idle.places.first_entry()
            && longest.get().0.elapsed() >= AT_LEAST_IDLE
        {
            longest.remove().1.left.notify_one();
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    /// Its key among the idle ones, if it is one.
    order: AtomicU64,
    /// Notified when the connection must end.
    left: Notify,
}

impl Place {
    fn new(places: &Arc<Places>) -> Arc<Self> {
        let place = Arc::new(Self {
            places: Arc::clone(places),
            order: AtomicU64::new(0),
            left: Notify::new(),
        });
        place.rest();
        place
    }

    /// Adds the connection to the idle ones.
    fn rest(self: &Arc<Self>) {
        let mut idle = self.places.idle();
        let order = idle.next;
        idle.next += 1;
        self.order.store(order, Ordering::Relaxed);
        let place = (Instant::now(), Arc::clone(self));
        idle.places.insert(order, place);
    }

    /// Removes the connection from the idle ones.
    fn leave(&self) {
        let order = self.order.load(Ordering::Relaxed);
        self.places.idle().places.remove(&order);
    }
}

/// A request of a connection, until its answer is sent.
struct Busy(Arc<Place>);

impl Busy {
    fn new(place: &Arc<Place>) -> Self {
        place.leave();
        Self(Arc::clone(place))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.rest();
    }
}

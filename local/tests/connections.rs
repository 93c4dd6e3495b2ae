//! What a server holds, over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use weirgate_local::listen::{Bounds, serve};

/// How long something may take that takes a second at most.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than a socket holds unread.
const LARGE: usize = 16 * 1024 * 1024;
const BOUNDS: Bounds = Bounds {
    connections: 4,
    head: PATIENCE.saturating_mul(10),
    stall: PATIENCE.saturating_mul(10),
    grace: Duration::from_millis(100),
};

/// A server whose answers to `/held` wait for `release`.
struct Served {
    address: SocketAddr,
    release: Arc<Semaphore>,
    _stop: oneshot::Sender<()>,
}

impl Served {
    async fn new(bounds: Bounds) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let release = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&release);
        let answer = move |request: http::Request<hyper::body::Incoming>, own| {
            let held = Arc::clone(&held);
            async move {
                assert_eq!(own, address);
                let body = match request.uri().path() {
                    "/large" => Bytes::from(vec![b'x'; LARGE]),
                    "/held" => {
                        held.acquire().await.unwrap().forget();
                        Bytes::from_static(b"held")
                    }
                    _ => Bytes::from_static(b"here"),
                };
                Response::new(Full::<Bytes>::new(body))
            }
        };
        let stop_when = async {
            let _: Result<(), _> = stopped.await;
        };
        tokio::spawn(serve(listener, bounds, stop_when, answer));
        Self { address, release, _stop: stop }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection that has sent the beginning of a request.
    async fn begin(&self, text: &str) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }
}

/// Sends a request and reads the end of its answer, which says that it was served.
async fn ask(stream: &mut TcpStream, path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    answered(stream).await;
}

async fn answered(stream: &mut TcpStream) {
    let mut text = vec![];
    while !text.ends_with(b"\r\n\r\nhere") && !text.ends_with(b"\r\n\r\nheld") {
        let read = timeout(PATIENCE, stream.read_buf(&mut text)).await;
        assert_ne!(read.expect("an answer in time").unwrap(), 0, "closed");
    }
}

/// Waits until the server has closed a connection.
async fn closed(stream: &mut TcpStream) {
    let mut rest = vec![];
    let ended = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    // An answer of 408 or 400 may be before the end, and an unread request makes it a reset.
    let _ = ended.expect("the server closes the connection in time");
}

#[tokio::test]
async fn one_connection_too_many_takes_the_place_of_the_one_that_is_idle_longest() {
    let served = Served::new(BOUNDS).await;
    let mut streams = vec![];
    for _ in 0..4 {
        let mut stream = served.connect().await;
        ask(&mut stream, "/").await;
        streams.push(stream);
    }
    // The first is no longer the one that is idle longest.
    ask(&mut streams[0], "/").await;
    let mut new = served.connect().await;
    ask(&mut new, "/").await;
    closed(&mut streams[1]).await;
    for at in [0, 2, 3] {
        ask(&mut streams[at], "/").await;
    }
}

#[tokio::test]
async fn connections_without_a_whole_head_give_way_in_any_number() {
    let served = Served::new(BOUNDS).await;
    let mut slow = vec![];
    for number in 0..40 {
        let begun = ["", "GET", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nhost: here\r\n"];
        slow.push(served.begin(begun[number % begun.len()]).await);
        if number % 8 == 7 {
            ask(&mut served.connect().await, "/").await;
        }
    }
    for stream in &mut slow[..30] {
        closed(stream).await;
    }
}

#[tokio::test]
async fn a_request_under_way_keeps_its_place_and_a_new_connection_waits_for_it() {
    let served = Served::new(BOUNDS).await;
    let mut held = vec![];
    for _ in 0..4 {
        held.push(served.begin("GET /held HTTP/1.1\r\nhost: here\r\n\r\n").await);
    }
    let mut new = served.begin("GET / HTTP/1.1\r\nhost: here\r\n\r\n").await;
    let mut byte = [0];
    let early = timeout(Duration::from_millis(500), new.read(&mut byte)).await;
    assert!(early.is_err(), "served beyond the bound: {early:?}");
    served.release.add_permits(1);
    answered(&mut new).await;
    served.release.add_permits(3);
    for stream in &mut held {
        answered(stream).await;
    }
}

#[tokio::test]
async fn a_head_that_does_not_arrive_in_time_ends_its_connection() {
    let bounds = Bounds { connections: 100, head: Duration::from_millis(200), ..BOUNDS };
    let served = Served::new(bounds).await;
    let whole = "GET / HTTP/1.1\r\nhost: here\r\nx: y\r\n\r\n";
    for end in 0..whole.len() {
        let mut stream = served.begin(&whole[..end]).await;
        closed(&mut stream).await;
    }
    let mut idle = served.connect().await;
    ask(&mut idle, "/").await;
    closed(&mut idle).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_ends() {
    let bounds = Bounds { stall: Duration::from_millis(200), ..BOUNDS };
    let served = Served::new(bounds).await;
    let mut unread = served.begin("GET /large HTTP/1.1\r\nhost: here\r\n\r\n").await;
    // What is sent to a socket that is closed comes back as an error.
    let ended = async {
        while unread.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the server closes the connection in time");
}

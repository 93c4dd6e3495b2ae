//! A server whose process has no descriptors left. Alone in its process, because the limit is the
//! process's.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use weirgate_local::listen::{Bounds, serve};

const PATIENCE: Duration = Duration::from_secs(20);

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("weirgate")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn without_descriptors_a_server_warns_once_and_serves_again_when_there_are_some() {
    let warnings = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::set_global_default(Warnings(Arc::clone(&warnings))).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let bounds = Bounds { connections: 10, head: PATIENCE, stall: PATIENCE, grace: Duration::ZERO };
    let answer = |_, _| async { Response::new(Full::new(Bytes::from_static(b"here"))) };
    tokio::spawn(serve(listener, bounds, std::future::pending(), answer));

    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 128.min(most), most).unwrap();
    let mut files = vec![];
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // One for the client, none for the server.
    files.pop();
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = "GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    let early = timeout(Duration::from_secs(1), client.read_to_string(&mut text)).await;
    assert!(early.is_err(), "{early:?}");
    // The server has tried several times by now.
    assert_eq!(warnings.load(Ordering::Relaxed), 1);

    drop(files);
    timeout(PATIENCE, client.read_to_string(&mut text)).await.expect("an answer in time").unwrap();
    assert!(text.ends_with("here"), "{text}");
    assert_eq!(warnings.load(Ordering::Relaxed), 1);
}

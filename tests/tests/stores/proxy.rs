//! A TCP proxy that loses answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const PASS: u8 = 0;
const CLOSE: u8 = 1;
const SWALLOW: u8 = 2;
const REFUSE: u8 = 3;
const HOLD: u8 = 4;

/// A proxy before a server on this machine.
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

struct State {
    mode: AtomicU8,
    /// Port of the server.
    target: AtomicU16,
    /// Bytes of the longest answer that arrives.
    most: AtomicUsize,
    connections: AtomicU32,
    /// One for a request that is held and shall be passed on.
    released: Semaphore,
    /// One for each answer to such a request.
    answered: Semaphore,
}

impl Proxy {
    /// Starts one, which passes everything on.
    pub async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Self {
            port: listener.local_addr().expect("it is bound").port(),
            state: Arc::new(State {
                mode: AtomicU8::new(PASS),
                target: AtomicU16::new(port),
                most: AtomicUsize::new(usize::MAX),
                connections: AtomicU32::new(0),
                released: Semaphore::new(0),
                answered: Semaphore::new(0),
            }),
        };
        let state = Arc::clone(&proxy.state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let target = state.target.load(Ordering::SeqCst);
                let server = TcpStream::connect(("127.0.0.1", target)).await;
                let Ok(server) = server else { continue };
                state.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(pass(client, server, Arc::clone(&state)));
            }
        });
        proxy
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Closes the connection in place of the next answer.
    pub fn lose_next_answer(&self) {
        self.state.mode.store(CLOSE, Ordering::SeqCst);
    }

    /// Closes the connection in place of passing the next request on.
    pub fn lose_next_request(&self) {
        self.state.mode.store(REFUSE, Ordering::SeqCst);
    }

    /// Leads new connections to another server, as a name does after a failover.
    pub fn lead_to(&self, port: u16) {
        self.state.target.store(port, Ordering::SeqCst);
    }

    /// Closes each connection in the middle of an answer of this many bytes.
    pub fn close_at_answers_of(&self, bytes: usize) {
        self.state.most.store(bytes, Ordering::SeqCst);
    }

    /// Holds the next request until it is released, whatever becomes of its connection.
    pub fn hold_next_request(&self) {
        self.state.mode.store(HOLD, Ordering::SeqCst);
    }

    /// Passes the request on that is held. Returns when the server has answered it.
    pub async fn release(&self) {
        self.state.released.add_permits(1);
        let answered = self.state.answered.acquire().await;
        answered.expect("it is open").forget();
    }

    /// Passes everything on again.
    pub fn pass_all(&self) {
        self.state.mode.store(PASS, Ordering::SeqCst);
    }

    /// Returns the number of connections that were made.
    pub fn connections(&self) -> u32 {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Lets no answer through any more, of connections that are open, and leaves those open.
    pub fn swallow_answers(&self) {
        self.state.mode.store(SWALLOW, Ordering::SeqCst);
    }
}

async fn pass(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let (mode, is_held) = (&state.mode, AtomicBool::new(false));
    let answered = AtomicUsize::new(0);
    let is_old = mode.load(Ordering::SeqCst) == PASS;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = from_client.read(&mut buffer).await;
            let Ok(length @ 1..) = read else { return };
            answered.store(0, Ordering::SeqCst);
            if mode.load(Ordering::SeqCst) == REFUSE {
                mode.store(PASS, Ordering::SeqCst);
                return;
            }
            if mode.load(Ordering::SeqCst) == HOLD {
                mode.store(PASS, Ordering::SeqCst);
                let released = state.released.acquire().await;
                released.expect("it is open").forget();
                is_held.store(true, Ordering::SeqCst);
            }
            if to_server.write_all(&buffer[..length]).await.is_err() {
                return;
            }
            if is_held.load(Ordering::SeqCst) {
                // Its client may be gone, which says nothing about the answer.
                std::future::pending().await
            }
        }
    };
    let answers = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = from_server.read(&mut buffer).await;
            let Ok(length @ 1..) = read else { return };
            let whole = answered.fetch_add(length, Ordering::SeqCst) + length;
            if whole >= state.most.load(Ordering::SeqCst) {
                return;
            }
            if is_held.swap(false, Ordering::SeqCst) {
                state.answered.add_permits(1);
            }
            match mode.load(Ordering::SeqCst) {
                CLOSE => {
                    mode.store(PASS, Ordering::SeqCst);
                    return;
                }
                SWALLOW if is_old => {}
                _ if to_client.write_all(&buffer[..length]).await.is_err() => return,
                _ => {}
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}

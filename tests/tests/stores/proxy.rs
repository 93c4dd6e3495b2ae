//! A TCP proxy that loses answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PASS: u8 = 0;
const CLOSE: u8 = 1;
const SWALLOW: u8 = 2;
const REFUSE: u8 = 3;

/// A proxy before a server on this machine.
pub struct Proxy {
    port: u16,
    mode: Arc<AtomicU8>,
}

impl Proxy {
    /// Starts one, which passes everything on.
    pub async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Self {
            port: listener.local_addr().expect("it is bound").port(),
            mode: Arc::default(),
        };
        let mode = Arc::clone(&proxy.mode);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await;
                let Ok(server) = server else { continue };
                tokio::spawn(pass(client, server, Arc::clone(&mode)));
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
        self.mode.store(CLOSE, Ordering::SeqCst);
    }

    /// Closes the connection in place of passing the next request on.
    pub fn lose_next_request(&self) {
        self.mode.store(REFUSE, Ordering::SeqCst);
    }

    /// Lets no answer through any more, of connections that are open, and leaves those open.
    pub fn swallow_answers(&self) {
        self.mode.store(SWALLOW, Ordering::SeqCst);
    }
}

async fn pass(client: TcpStream, server: TcpStream, mode: Arc<AtomicU8>) {
    let is_old = mode.load(Ordering::SeqCst) == PASS;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = from_client.read(&mut buffer).await;
            let Ok(length @ 1..) = read else { return };
            if mode.load(Ordering::SeqCst) == REFUSE {
                mode.store(PASS, Ordering::SeqCst);
                return;
            }
            if to_server.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    };
    let answers = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = from_server.read(&mut buffer).await;
            let Ok(length @ 1..) = read else { return };
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

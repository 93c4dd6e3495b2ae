//! Requests that say of themselves that they came over TLS.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Passes connections on to the emulator, as what ends TLS in front of a server does: it adds to
/// the first request of each what it came over. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) endpoint: String,
    task: AbortHandle,
}

impl Proxy {
    pub(super) async fn to(endpoint: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let own = format!("http://{}", listener.local_addr()?);
        let emulator = endpoint.trim_start_matches("http://").to_owned();
        let task = tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let emulator = emulator.clone();
                tokio::spawn(async move { pass(caller, &emulator).await });
            }
        });
        Ok(Self {
            endpoint: own,
            task: task.abort_handle(),
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(caller: TcpStream, emulator: &str) -> std::io::Result<()> {
    let (mut caller, mut line) = (BufReader::new(caller), String::new());
    caller.read_line(&mut line).await?;
    let mut emulator = TcpStream::connect(emulator).await?;
    emulator
        .write_all(format!("{line}X-Forwarded-Proto: https\r\n").as_bytes())
        .await?;
    copy_bidirectional(&mut caller, &mut emulator)
        .await
        .map(drop)
}

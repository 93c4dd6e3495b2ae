//! Addresses, listeners, and the loop that accepts.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};

use super::clients::{Clients, Protocol};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Pause after a connection could not be accepted: out of file descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(100);

/// A TCP peer that is gone without a word is noticed after a minute: it is asked after 30 s of silence, then
/// every 10 s.
const SILENCE: Duration = Duration::from_secs(30);
const ASKS_EVERY: Duration = Duration::from_secs(10);
const ASKS: u32 = 3;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket, for its owner alone.
    Unix(PathBuf),
}

/// A listener of one of them.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    // The file first, which is removed while it is still this process that listens.
    Unix(UnixFile, UnixListener),
}

/// The file of a Unix socket. Another process may have replaced it by its own.
#[derive(Debug)]
pub(crate) struct UnixFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Listener {
    /// Listens on an address, which `flag` gave.
    ///
    /// # Errors
    /// A sentence that names the address and the remedy.
    pub(crate) async fn bind(address: &Address, flag: &str) -> Result<Self, String> {
        Ok(match address {
            Address::Tcp(address) => Self::Tcp(bind_tcp(*address, flag).await?),
            Address::Unix(path) => {
                let (listener, file) = bind_unix(path).await?;
                Self::Unix(file, listener)
            }
        })
    }

    /// Returns where it listens: the port, if the system chose it.
    pub(crate) fn address(&self) -> Option<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(Address::Tcp),
            Self::Unix(file, _) => Some(Address::Unix(file.path.clone())),
        }
    }
}

impl Drop for UnixFile {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Accepts connections until the future is dropped. While none can be accepted, because the process
/// has no file descriptors mostly, it closes connections that wait, pauses, and says so once.
pub(crate) async fn accept(listener: Listener, clients: Clients, protocol: impl Protocol) {
    let shown = listener.address().map(|address| address.to_string());
    let shown = shown.unwrap_or_default();
    let mut is_paused = false;
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                // Without it a small response waits for the acknowledgement of the last one.
                let _ = stream.set_nodelay(true);
                clients.add(stream, protocol.clone());
            }),
            Listener::Unix(_, listener) => {
                listener.accept().await.map(|(stream, _)| clients.add(stream, protocol.clone()))
            }
        };
        match accepted {
            Ok(()) if is_paused => {
                tracing::info!(address = shown, "connections are accepted again");
                is_paused = false;
            }
            Ok(()) => {}
            Err(error) => {
                if !is_paused {
                    tracing::error!(%error, address = shown, "no connection can be accepted: raise the \
                        limit of open files, or give a smaller --max-connections");
                    is_paused = true;
                }
                clients.give_way();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn bind_tcp(address: SocketAddr, flag: &str) -> Result<TcpListener, String> {
    let bound = TcpListener::bind(address).await.and_then(|listener| {
        notice_silence(&listener)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        let stop = match error.kind() {
            io::ErrorKind::AddrInUse => "stop the process that uses it, or ",
            _ => "",
        };
        format!("{flag} {address}: {error}; {stop}give another {flag}")
    })
}

/// Makes the connections of a listener, which have its settings, end with a peer that is silent.
fn notice_silence(listener: &TcpListener) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(SILENCE);
    let keepalive = keepalive.with_interval(ASKS_EVERY).with_retries(ASKS);
    let socket = SockRef::from(listener);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE + ASKS_EVERY * ASKS))?;
    socket.set_tcp_keepalive(&keepalive)
}

/// Listens on a Unix socket that only its owner may open, and replaces one that a killed agent left.
async fn bind_unix(path: &Path) -> Result<(UnixListener, UnixFile), String> {
    let shown = path.display();
    let is_socket = match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(format!(
                "--unix-socket {shown} exists and is no socket: remove it, or give another path"
            ));
        }
        found => found.is_ok(),
    };
    // Only a refusal shows that no process listens: one that is too busy to accept gives none.
    let is_left = || async {
        let refused = UnixStream::connect(path).await.map_err(|error| error.kind());
        let gone = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
        refused.is_err_and(|kind| gone.contains(&kind))
    };
    if is_socket && !is_left().await {
        return Err(format!(
            "--unix-socket {shown} is in use by another process: stop it, or give another path"
        ));
    }
    // Under another name until it listens, so it takes the place of an old one at once.
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = PathBuf::from(hidden);
    let bound = private_socket(&hidden).and_then(|socket| {
        let listener = socket.listen(BACKLOG)?;
        let bound = std::fs::symlink_metadata(&hidden)?;
        std::fs::rename(&hidden, path)?;
        let file = UnixFile { path: path.to_owned(), device: bound.dev(), inode: bound.ino() };
        Ok((listener, file))
    });
    bound.map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::InvalidInput => "give a shorter path",
            _ => "give a path in a folder that the agent may write",
        };
        format!("--unix-socket {shown}: {error}; {remedy}")
    })
}

/// Returns a socket that only its owner may open. It does not listen, so none can have opened it with
/// the permissions that it had for a moment.
fn private_socket(path: &Path) -> io::Result<UnixSocket> {
    let _ = std::fs::remove_file(path);
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_unix_socket_refuses_connections_until_its_permissions_are_set() {
        let path = format!("weirgate-private-{}", std::process::id());
        let path = std::env::temp_dir().join(path);
        let socket = private_socket(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let connect = || std::os::unix::net::UnixStream::connect(&path);
        assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let _listener = socket.listen(BACKLOG).unwrap();
        connect().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("weirgate-{name}-{}", std::process::id()))
    }

    #[tokio::test]
    async fn a_listener_removes_no_socket_but_its_own() {
        let path = path("own");
        let bind = async || {
            let address = Address::Unix(path.clone());
            Listener::bind(&address, "--unix-socket").await.unwrap()
        };
        let first = bind().await;
        std::fs::remove_file(&path).unwrap();
        let second = bind().await;
        drop(first);
        UnixStream::connect(&path).await.unwrap();
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_of_a_process_that_accepts_nothing_is_in_use() {
        let path = path("full");
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let listener = socket.listen(0).unwrap();
        // As many as wait to be accepted.
        let mut waiting = vec![];
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
        }
        let refused = bind_unix(&path).await.unwrap_err();
        assert!(refused.contains("is in use by another process"), "{refused}");
        // What a process leaves that was killed is replaced.
        drop((listener, waiting));
        let _bound = bind_unix(&path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_without_a_word_is_found_out() {
        let listener = bind_tcp("127.0.0.1:0".parse().unwrap(), "--listen");
        let listener = listener.await.unwrap();
        let _client = tokio::net::TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(_client, listener.accept());
        let (_client, (accepted, _)) = (client.unwrap(), accepted.unwrap());
        assert!(SockRef::from(&accepted).keepalive().unwrap());
    }
}

//! Addresses, listeners, and the loop that accepts.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixSocket};

use super::clients::{Clients, Protocol};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Pause after a connection could not be accepted: out of file descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(100);

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
    Unix(UnixListener, PathBuf),
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
            Address::Unix(path) => Self::Unix(bind_unix(path).await?, path.clone()),
        })
    }

    /// Returns where it listens: the port, if the system chose it.
    pub(crate) fn address(&self) -> Option<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(Address::Tcp),
            Self::Unix(_, path) => Some(Address::Unix(path.clone())),
        }
    }
}

/// Removes the file of a Unix socket.
impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
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
            Listener::Unix(listener, _) => listener
                .accept()
                .await
                .map(|(stream, _)| clients.add(stream, protocol.clone())),
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
    TcpListener::bind(address).await.map_err(|error| {
        let stop = match error.kind() {
            io::ErrorKind::AddrInUse => "stop the process that uses it, or ",
            _ => "",
        };
        format!("{flag} {address}: {error}; {stop}give another {flag}")
    })
}

/// Listens on a Unix socket that only its owner may open, and replaces one that a killed agent left.
async fn bind_unix(path: &Path) -> Result<UnixListener, String> {
    let shown = path.display();
    if tokio::net::UnixStream::connect(path).await.is_ok() {
        return Err(format!(
            "--unix-socket {shown} is in use by another process: stop it, or give another path"
        ));
    }
    let is_other = std::fs::symlink_metadata(path).is_ok_and(|found| {
        use std::os::unix::fs::FileTypeExt;
        !found.file_type().is_socket()
    });
    if is_other {
        return Err(format!(
            "--unix-socket {shown} exists and is no socket: remove it, or give another path"
        ));
    }
    // Under another name until it listens, so it takes the place of an old one at once.
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = PathBuf::from(hidden);
    let bound = private_socket(&hidden).and_then(|socket| {
        let listener = socket.listen(BACKLOG)?;
        std::fs::rename(&hidden, path)?;
        Ok(listener)
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
        assert_eq!(
            connect().unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        let _listener = socket.listen(BACKLOG).unwrap();
        connect().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

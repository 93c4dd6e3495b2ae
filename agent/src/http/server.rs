//! Listens, bounds the connections, and ends them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixSocket};
use tokio::sync::{Semaphore, watch};

use super::connection::{Shared, Stop, reached, serve};
use super::service::Api;
use super::stream::Transport;

/// What a connection beyond the bound is told.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
content-type: application/problem+json\r\ncontent-length: 202\r\n\r\n\
{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"the agent has its \
maximum of connections: close some, or start it with a larger --max-connections\",\"applied\":\"no\",\"retry\":true}";
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

/// How much a server does at once.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Open connections; more are refused.
    pub max_connections: u32,
    /// Time for requests in flight when the server stops.
    pub grace: Duration,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    bounds: Bounds,
}

#[derive(Debug)]
enum Listener {
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

impl Server {
    /// Listens on all addresses.
    ///
    /// # Errors
    /// A sentence that names the address and the remedy.
    pub async fn bind(addresses: &[Address], bounds: Bounds) -> Result<Self, String> {
        let mut listeners = vec![];
        for address in addresses {
            listeners.push(match address {
                Address::Tcp(address) => Listener::Tcp(bind_tcp(*address).await?),
                Address::Unix(path) => Listener::Unix(bind_unix(path).await?, path.clone()),
            });
        }
        Ok(Self { listeners, bounds })
    }

    /// Returns where it listens: the ports, if the system chose them.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let address = |listener: &Listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().ok().map(Address::Tcp),
            Listener::Unix(_, path) => Some(Address::Unix(path.clone())),
        };
        self.listeners.iter().filter_map(address).collect()
    }

    /// Returns the time for requests in flight when it stops.
    #[must_use]
    pub const fn grace(&self) -> Duration {
        self.bounds.grace
    }

    /// Serves until `stop` is done; then accepts no more, finishes the requests in flight, and drops
    /// those that are not finished after the time for it.
    pub async fn serve(self, api: Api, stop: impl Future<Output = ()>) {
        let Self { listeners, bounds } = self;
        let free = usize::try_from(bounds.max_connections).unwrap_or(Semaphore::MAX_PERMITS);
        let connections = Connections {
            shared: Arc::new(Shared {
                api,
                open: AtomicU64::new(0),
            }),
            free: Arc::new(Semaphore::new(free)),
            stop: watch::channel(Stop::No).0,
        };
        let mut sockets = vec![];
        let accepting = listeners.into_iter().map(|listener| {
            if let Listener::Unix(_, path) = &listener {
                sockets.push(path.clone());
            }
            accept(listener, connections.clone())
        });
        let accepting: Vec<_> = accepting.map(tokio::spawn).collect();
        stop.await;
        for task in accepting {
            task.abort();
        }
        for path in sockets {
            let _ = std::fs::remove_file(path);
        }
        connections.stop.send_replace(Stop::Finish);
        let ended = || connections.free.acquire_many(bounds.max_connections);
        if tokio::time::timeout(bounds.grace, ended()).await.is_err() {
            let open = connections.shared.open.load(Ordering::Relaxed);
            tracing::warn!(open, "connections were closed before their requests ended");
            connections.stop.send_replace(Stop::Close);
            // What the dropped requests took returns from now on.
            let _ = ended().await;
        }
    }
}

/// The connections of a server.
#[derive(Clone)]
struct Connections {
    shared: Arc<Shared>,
    free: Arc<Semaphore>,
    stop: watch::Sender<Stop>,
}

impl Connections {
    /// Serves a connection, if there may be one more.
    fn add(&self, transport: impl Transport) {
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else {
            transport.write_now(FULL);
            return;
        };
        let (shared, mut stop) = (Arc::clone(&self.shared), self.stop.subscribe());
        tokio::spawn(async move {
            shared.open.fetch_add(1, Ordering::Relaxed);
            let finish = stop.clone();
            tokio::select! {
                () = serve(transport, Arc::clone(&shared), finish) => {}
                () = reached(&mut stop, Stop::Close) => {}
            }
            shared.open.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        });
    }
}

async fn accept(listener: Listener, connections: Connections) {
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                // Without it a small response waits for the acknowledgement of the last one.
                let _ = stream.set_nodelay(true);
                connections.add(stream);
            }),
            Listener::Unix(listener, _) => listener
                .accept()
                .await
                .map(|(stream, _)| connections.add(stream)),
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "a connection was not accepted");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => "stop the process that uses it, or give another --listen",
            _ => "give another --listen",
        };
        format!("--listen {address}: {error}; {remedy}")
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

    #[test]
    fn the_answer_beyond_the_bound_has_the_length_that_it_states() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = format!("content-length: {}", body.len());
        assert!(head.contains(&length), "{length}");
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}

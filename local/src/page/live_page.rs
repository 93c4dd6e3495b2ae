//! Start and stop of the page.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use weirgate::RateLimiter;
use weirgate_shared::reached;

use super::actions::LastActions;
use super::board::{Board, Cost};
use super::callers::{Callers, MetricsUrl};
use super::details::MAX_ASKS;
use super::poller::Poller;
use super::server::{Site, serve};
use super::shown::Shown;
use crate::listen::HostName;

/// Bytes that the system keeps for one connection until the viewer takes them.
const SEND_BUFFER: u32 = 16 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// Port of the page, if no other one is chosen.
pub const PORT: u16 = 2775;
/// How many ports are tried from [`PORT`] on.
pub const PORTS: u16 = 100;

/// How the page runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address to listen on, default 127.0.0.1. Any other one shows the table to everything that
    /// reaches it.
    pub address: IpAddr,
    /// Names of the page in the header `Host`, beside the address of the connection, and `localhost` for
    /// 127.0.0.1, with the port. Requests to other names are refused.
    pub hosts: Vec<HostName>,
    /// Port: exactly this one, or any free one for 0. `None`, the default, is [`PORT`], or if that is
    /// in use the next free one.
    pub port: Option<u16>,
    /// Read units that all viewers together cost in a second on average, default 25.
    pub read_units: u32,
    /// Name of the table, to be shown.
    pub table: String,
    /// Namespace of the limiter, to be shown, default `default`.
    pub namespace: String,
    /// Metrics of callers, for their denials, which the table does not count. Default: none.
    pub metrics: Vec<MetricsUrl>,
    /// Limiters of this process, for their denials. Default: none.
    pub callers: Vec<RateLimiter>,
    /// What the functions did last; `None`, the default, if they run elsewhere.
    pub actions: Option<Arc<dyn LastActions>>,
}

impl Options {
    /// Returns the defaults for a table.
    pub fn new(table: impl Into<String>) -> Self {
        Self {
            address: Ipv4Addr::LOCALHOST.into(),
            hosts: vec![],
            port: None,
            read_units: 25,
            table: table.into(),
            namespace: "default".to_owned(),
            metrics: vec![],
            callers: vec![],
            actions: None,
        }
    }
}

/// The page, until it is dropped.
#[derive(Debug)]
pub struct LivePage {
    address: SocketAddr,
    board: Arc<Board>,
    /// Ends the thread when it is dropped.
    _stop: oneshot::Sender<()>,
}

impl LivePage {
    /// Starts the page, on a thread of its own. Reads nothing until a viewer comes. The limiter must be
    /// [built](weirgate::Builder::build) on a multi-thread runtime.
    ///
    /// # Errors
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if the port is, or all that are tried; another one if
    /// it cannot be listened on, or no thread can be started.
    pub fn start(limiter: RateLimiter, options: Options) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let Options { address, port, .. } = options;
        let listening = match port {
            Some(port) => listen((address, port).into(), &runtime),
            None => listen_from(PORT, address, &runtime),
        };
        let listener = match listening {
            Ok(listener) => listener,
            Err(error) => {
                // The caller's own runtime does not let it wait for the end of another one.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let address = listener.local_addr()?;
        let board = Arc::new(Board::new());
        let shown = Arc::new(Shown {
            table: options.table,
            namespace: options.namespace,
            actions: options.actions,
            has_callers: !options.metrics.is_empty() || !options.callers.is_empty(),
        });
        let (asks, asked) = mpsc::channel(MAX_ASKS);
        let poller = Poller::new(limiter, Arc::clone(&board), options.read_units, asked);
        let callers = Callers::new(Arc::clone(&board), options.callers, options.metrics);
        let site = Site { board: Arc::clone(&board), shown, asks, hosts: options.hosts.into() };
        let (stop, stopped) = oneshot::channel();
        // Made on the thread: the compiler does not see that the reads could be moved to it.
        let run = move || async move {
            tokio::select! {
                () = poller.run() => {}
                () = callers.run() => {}
                () = serve(listener, site) => {}
                _ = stopped => {}
            }
        };
        let thread = std::thread::Builder::new().name("page".to_owned());
        thread.spawn(move || runtime.block_on(run()))?;
        Ok(Self { address, board, _stop: stop })
    }

    /// The address for a browser, as `http://127.0.0.1:8080/`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", reached(self.address))
    }

    /// The port that it listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// What its reads cost so far.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.board.cost()
    }
}

/// Returns a listener on the first free port from `first` on.
fn listen_from(first: u16, address: IpAddr, runtime: &Runtime) -> io::Result<TcpListener> {
    let mut ports = first..=first.saturating_add(PORTS - 1);
    loop {
        let port = ports.next().unwrap_or(first);
        match listen((address, port).into(), runtime) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && !ports.is_empty() => {}
            listening => return listening,
        }
    }
}

/// Returns a listener whose connections keep little of what a viewer does not read, so that the page
/// finds out soon.
fn listen(address: SocketAddr, runtime: &Runtime) -> io::Result<TcpListener> {
    let _entered = runtime.enter();
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // As the standard library does it: the port of a page that has just ended is free.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

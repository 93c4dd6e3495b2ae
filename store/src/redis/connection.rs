//! One connection that all callers share, made again after it was lost.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError, cmd};
use rustls::crypto::{CryptoProvider, ring};
use tokio::sync::watch;
use tokio::time::Instant;
use weirgate_shared::EpochMillis;

use super::error;
use super::info::{field, is_of_cluster, node, replica, unfit};
use crate::{Clock, CorrectedClock, ErrorKind, StoreError, SystemClock};

/// How to reach Redis or Valkey.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://{user}:{password}@{host}:{port}/{database}`, or `rediss://` for TLS. User, password, port
    /// (6379) and database (0) may be left out.
    pub url: String,
    /// Name of the table: prefix of all its keys. Default: `weirgate`.
    pub table: String,
    /// Timeout of a new connection to one server, with its handshake. Default: 1 s.
    pub connect_timeout: Duration,
    /// Timeout of one request. Its outcome is then unknown, until it was repeated. Default: 1 s.
    pub request_timeout: Duration,
    /// Whether a server that evicts keys is accepted: a bucket that is evicted is full again. Default: no.
    pub accept_eviction: bool,
    /// Machine's clock, or another one for tests.
    pub clock: Arc<dyn Clock>,
    /// Whether the server's time corrects the clock, and items expire by it. Default: yes; not in tests that move
    /// the clock.
    pub use_server_time: bool,
}

impl RedisOptions {
    /// Returns the options for a server, with the defaults.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            table: "weirgate".to_owned(),
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
            accept_eviction: false,
            clock: Arc::new(SystemClock),
            use_server_time: true,
        }
    }
}

/// Leaves out the URL, because it may have a password.
impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("table", &self.table)
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

/// Servers of a cluster that are named one by the other until one has the table.
const REDIRECTIONS: usize = 4;
/// Maximum time of a connection without a write, by the larger of both clocks. A server that is now a replica goes on to
/// answer reads. Networks forget idle ones after some minutes, and those of a frozen process: a request on one waits for
/// the whole timeout.
const IDLE: Duration = Duration::from_secs(30);

pub(super) struct Connection {
    /// How to reach the server of the URL, without its database: the crate makes errors of its own of those that a
    /// server answers to its SELECT.
    info: ConnectionInfo,
    database: i64,
    /// Known servers, the next one to try first: the last one with the table, the others of its cluster as it named
    /// them, and that of the URL.
    servers: Mutex<VecDeque<ConnectionAddr>>,
    config: AsyncConnectionConfig,
    connect_timeout: Duration,
    accept_eviction: bool,
    table: String,
    /// Address, without user and password.
    server: String,
    clock: CorrectedClock,
    /// Whether the server's time corrects the clock.
    use_server_time: bool,
    /// Key of the number of writes.
    writes: String,
    open: Mutex<Open>,
}

/// A connection that is open, and what it knows of the server.
#[derive(Clone)]
pub(super) struct Opened {
    pub(super) connection: MultiplexedConnection,
    /// Machine's time when the connection was asked for.
    pub(super) asked: EpochMillis,
    asked_at: Instant,
    known: Arc<Known>,
}

struct Known {
    /// Greatest number of writes that the server has said here.
    writes: AtomicU64,
    opened: Instant,
    /// Start of the last write by both clocks: ms since `opened`, and epoch ms.
    written_ms: AtomicU64,
    written_epoch_ms: AtomicI64,
}

impl Opened {
    /// Returns the number of writes that the server has said last. Those of this server so far are at least as
    /// many.
    pub(super) fn writes(&self) -> u64 {
        self.known.writes.load(Ordering::Relaxed)
    }

    /// Counts the number of writes of an answer, 0 of one to no write.
    pub(super) fn said(&self, writes: u64) {
        self.known.writes.fetch_max(writes, Ordering::Relaxed);
        if writes > 0 {
            let Known { written_ms, written_epoch_ms, .. } = &*self.known;
            written_ms.store(self.asked_ms(), Ordering::Relaxed);
            written_epoch_ms.store(self.asked.0, Ordering::Relaxed);
        }
    }

    fn asked_ms(&self) -> u64 {
        let asked = self.asked_at.saturating_duration_since(self.known.opened);
        u64::try_from(asked.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns whether the connection can be used: it has written lately, or is new.
    fn is_usable(&self) -> bool {
        let written_ms = self.known.written_ms.load(Ordering::Relaxed);
        let rest = Duration::from_millis(self.asked_ms().saturating_sub(written_ms));
        let written = EpochMillis(self.known.written_epoch_ms.load(Ordering::Relaxed));
        rest.max(self.asked.since(written).into()) < IDLE
    }
}

enum Connected {
    /// A connection, and the other servers of the cluster.
    Opened(Opened, Vec<ConnectionAddr>),
    /// The server of the cluster that has the table.
    Moved(ConnectionAddr),
}

/// Outcome of an attempt to connect, once it has one: the connection and its number.
type Outcome = Option<Result<(u64, Opened), StoreError>>;

/// The connection, and the number of those so far.
#[derive(Default)]
struct Open {
    opened: Option<Opened>,
    number: u64,
    /// The attempt under way, for all that wait for it: each would wait as long for its own.
    attempt: Option<watch::Receiver<Outcome>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Connection {
    /// Returns a connection that the first request opens.
    pub(super) fn new(
        options: &RedisOptions,
        skew: CorrectedClock,
        writes: String,
    ) -> Result<Self, StoreError> {
        let invalid = |reason: String| StoreError {
            kind: ErrorKind::Invalid,
            request: "CONNECT".to_owned(),
            table: options.table.clone(),
            reason,
            source: None,
        };
        // Braces name what a slot of a cluster is chosen by.
        if options.table.is_empty() || options.table.contains(['{', '}']) {
            return Err(invalid(format!(
                "the table's name must not be empty or have braces, got {:?}; choose another one",
                options.table
            )));
        }
        // The URL itself may have a password.
        let client = Client::open(options.url.as_str()).map_err(|error| {
            invalid(format!(
                "the URL of the store must be redis://user:password@host:port/database, or rediss:// for TLS, got \
                 another one ({error}); correct it"
            ))
        })?;
        // The client takes the only provider that is built in, and panics if an application has several.
        if options.url.starts_with("rediss") && CryptoProvider::get_default().is_none() {
            // Another thread may have been faster.
            let _ = ring::default_provider().install_default();
        }
        let info = client.get_connection_info().clone();
        let mut settings = info.redis_settings().clone();
        let database = settings.db();
        if settings.username().is_some() && settings.password().is_none() {
            // Without one, the crate lets the server take the user `default`.
            settings = settings.set_password("");
        }
        let info = info.set_redis_settings(settings.set_db(0));
        let server = info.addr().to_string();
        Ok(Self {
            servers: Mutex::new(VecDeque::from([info.addr().clone()])),
            info,
            database,
            config: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(options.connect_timeout))
                .set_response_timeout(Some(options.request_timeout)),
            connect_timeout: options.connect_timeout,
            accept_eviction: options.accept_eviction,
            table: options.table.clone(),
            server,
            clock: skew,
            use_server_time: options.use_server_time,
            writes,
            open: Mutex::default(),
        })
    }

    /// Makes the connection, if there is none.
    pub(super) async fn open(self: &Arc<Self>) -> Result<(), StoreError> {
        self.opened().await.map(drop)
    }

    /// Sends a command. An error is of a command that was sent, or of a connection that was not made.
    pub(super) async fn send<T>(
        self: &Arc<Self>,
        request: &impl Fn() -> String,
        send: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, StoreError> {
        self.send_on(request, async |opened| send(&mut opened.connection).await).await
    }

    /// Sends a command that needs to know what the server said before, or says something.
    pub(super) async fn send_on<T>(
        self: &Arc<Self>,
        request: &impl Fn() -> String,
        send: impl AsyncFnOnce(&mut Opened) -> Result<T, RedisError>,
    ) -> Result<T, StoreError> {
        let (number, mut opened) = self.opened().await?;
        match send(&mut opened).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                if error::needs_connection(&error) {
                    let mut open = self.current();
                    if open.number == number {
                        open.opened = None;
                    }
                }
                Err(self.failed(request(), error))
            }
        }
    }

    pub(super) fn failed(&self, request: String, error: RedisError) -> StoreError {
        let (kind, reason) = error::classify(&error, &self.server);
        self.refused(kind, request, reason, Some(error))
    }

    pub(super) fn refused(
        &self,
        kind: ErrorKind,
        request: String,
        reason: String,
        source: Option<RedisError>,
    ) -> StoreError {
        StoreError {
            kind,
            request,
            table: self.table.clone(),
            reason,
            source: source.map(Into::into),
        }
    }

    /// Returns the connection and its number. Without one, it waits for an attempt to connect.
    async fn opened(self: &Arc<Self>) -> Result<(u64, Opened), StoreError> {
        let (asked, asked_at) = (self.clock.local(), Instant::now());
        let mut attempt = {
            let mut open = self.current();
            if let Some(known) = &open.opened {
                let opened = Opened { asked, asked_at, ..known.clone() };
                if opened.is_usable() {
                    return Ok((open.number, opened));
                }
            }
            open.opened = None;
            self.attempt(&mut open)
        };
        let outcome = attempt.wait_for(Option::is_some).await;
        match outcome.as_deref() {
            Ok(Some(Ok(connected))) => Ok(connected.clone()),
            Ok(Some(Err(error))) => Err(error.without_source()),
            Ok(None) | Err(_) => {
                let reason =
                    format!("the runtime that connected to {} ended; ask again", self.server);
                let request = "CONNECT".to_owned();
                Err(self.refused(ErrorKind::Unreachable, request, reason, None))
            }
        }
    }

    /// Returns the attempt to connect that is under way, or begins one.
    fn attempt(self: &Arc<Self>, open: &mut Open) -> watch::Receiver<Outcome> {
        // A closed one has ended with its runtime.
        let under_way = open.attempt.clone().filter(|attempt| !attempt.is_closed());
        under_way.unwrap_or_else(|| {
            let (send, attempt) = watch::channel(None);
            let connection = Arc::clone(self);
            // A task, because a request that is not polled would hold all others.
            tokio::spawn(async move {
                let connected = connection.connect().await;
                send.send_replace(Some(connection.keep(connected)));
            });
            open.attempt = Some(attempt.clone());
            attempt
        })
    }

    /// Ends an attempt. Returns its connection with its number, for later requests as well.
    fn keep(&self, connected: Result<Opened, StoreError>) -> Result<(u64, Opened), StoreError> {
        let mut open = self.current();
        open.attempt = None;
        let opened = connected.map_err(|error| match open.number {
            0 => error,
            _ if error.kind.is_transient() => error,
            // One that was accepted before has changed, or has a successor with other settings and users: what the
            // caller has set is right.
            _ => StoreError { kind: ErrorKind::Unavailable, ..error },
        })?;
        open.number += 1;
        open.opened = Some(opened.clone());
        Ok((open.number, opened))
    }

    fn current(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to the first known server that leads to the table.
    async fn connect(&self) -> Result<Opened, StoreError> {
        let begun = Instant::now();
        let (all, mut tried) = (self.servers().len(), 0);
        let (mut moved, mut moves) = (None, 0);
        loop {
            let server = moved.take().unwrap_or_else(|| {
                tried += 1;
                self.next_server()
            });
            match self.connect_to(server.clone()).await {
                Ok(Connected::Opened(opened, others)) => {
                    self.know(server, others);
                    return Ok(opened);
                }
                Ok(Connected::Moved(to)) if moves < REDIRECTIONS => {
                    moves += 1;
                    moved = Some(to);
                }
                Ok(Connected::Moved(_)) => {
                    let reason = format!("{} names one server after the other", self.server);
                    let request = "CONNECT".to_owned();
                    return Err(self.refused(ErrorKind::Unavailable, request, reason, None));
                }
                Err(error) if tried >= all || begun.elapsed() >= self.connect_timeout => {
                    return Err(error);
                }
                Err(error) => tracing::debug!(%error, "trying the next server"),
            }
        }
    }

    fn servers(&self) -> MutexGuard<'_, VecDeque<ConnectionAddr>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next server to try, which is then the last one: also if the attempt is dropped.
    fn next_server(&self) -> ConnectionAddr {
        let mut servers = self.servers();
        servers.rotate_left(1);
        let next = servers.back().cloned();
        next.unwrap_or_else(|| self.info.addr().clone())
    }

    /// Forgets all servers but the one with the table, those that it has named, and that of the URL.
    fn know(&self, server: ConnectionAddr, others: Vec<ConnectionAddr>) {
        let mut known = VecDeque::from([server]);
        for other in others.into_iter().chain([self.info.addr().clone()]) {
            if !known.contains(&other) {
                known.push_back(other);
            }
        }
        *self.servers() = known;
    }

    /// Returns the address of another server of the cluster: `10.0.0.1:6379`.
    fn address(&self, text: &str) -> Option<ConnectionAddr> {
        let (host, port) = text.rsplit_once(':')?;
        let (host, port) = (host.trim_matches(['[', ']']), port.parse().ok()?);
        // Without a host, it is the one that was asked.
        let host = match (host, self.info.addr()) {
            ("", ConnectionAddr::Tcp(asked, _) | ConnectionAddr::TcpTls { host: asked, .. }) => {
                asked
            }
            _ => host,
        };
        let host = host.to_owned();
        Some(match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        })
    }

    /// Returns the time that the clock of another server is ahead of that of the table's, in ms, and at least, or `None`
    /// if it does not tell; and why it would be refused as a primary.
    pub(super) async fn ask_replica(&self, replica: &str) -> (Option<i64>, Option<String>) {
        let Some(address) = self.address(replica) else {
            return (None, None);
        };
        let asking = async {
            let client = Client::open(self.info.clone().set_addr(address))?;
            let connection = client.get_multiplexed_async_connection_with_config(&self.config);
            let mut connection = connection.await?;
            let sent = self.clock.now().0;
            let (seconds, micros): (i64, i64) = cmd("TIME").query_async(&mut connection).await?;
            let time = seconds.saturating_mul(1_000).saturating_add(micros / 1_000);
            let answered = self.clock.now().0;
            let ahead = time.saturating_sub(time.min(answered).max(sent));
            let info: String = cmd("INFO").query_async(&mut connection).await?;
            Ok::<_, RedisError>((ahead, unfit(&info, false)))
        };
        match tokio::time::timeout(self.connect_timeout, asking).await {
            Ok(Ok((ahead, unfit))) => {
                let reason = unfit.map(|(_, reason)| format!("{replica} {reason}"));
                (Some(ahead), reason)
            }
            Ok(Err(error)) => {
                let reason = match error::classify(&error, replica) {
                    (kind, _) if kind.is_transient() => None,
                    // Its remedy is for the URL, which fits the primary.
                    (ErrorKind::MissingCredentials, _) => {
                        Some(format!("{replica} does not accept the user and password"))
                    }
                    (_, reason) => Some(reason),
                };
                (None, reason)
            }
            Err(_) => (None, None),
        }
    }

    async fn connect_to(&self, server: ConnectionAddr) -> Result<Connected, StoreError> {
        let sent = self.clock.local();
        let name = server.to_string();
        let connecting = async {
            let client = Client::open(self.info.clone().set_addr(server))?;
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&self.config).await?;
            if self.database != 0 {
                let select = cmd("SELECT").arg(self.database).to_owned();
                match select.exec_async(&mut connection).await {
                    Err(error) if error::classify(&error, &name).0 == ErrorKind::Rejected => {
                        let reason = format!(
                            "must have the database of the URL, got {} ({error}); name another one, or leave it out",
                            self.database
                        );
                        return Ok((Err((ErrorKind::Rejected, reason)), String::new()));
                    }
                    selected => selected?,
                }
            }
            let info: String = cmd("INFO").query_async(&mut connection).await?;
            let unfit = replica(&info).or_else(|| unfit(&info, self.accept_eviction));
            if let Some(unfit) = unfit {
                return Ok((Err(unfit), info));
            }
            let mut others = vec![];
            if is_of_cluster(&info) {
                let mut nodes = cmd("CLUSTER");
                let nodes = nodes.arg("NODES").query_async(&mut connection).await;
                // A user may not be allowed to; the server of the URL is then the only way into the cluster.
                let nodes: String = nodes.unwrap_or_default();
                let named = nodes.lines().filter_map(node);
                others.extend(named.filter_map(|address| self.address(&address)));
            }
            let writes = cmd("HGET").arg(&self.writes).arg("all").to_owned();
            let writes: Result<Option<u64>, _> = writes.query_async(&mut connection).await;
            let writes = match writes {
                Err(error) if error.code() == Some("MOVED") => {
                    let moved = error.redirect_node().map(|(server, _)| server);
                    let moved = moved.and_then(|server| self.address(server));
                    return moved.map(Connected::Moved).ok_or(error).map(|moved| (Ok(moved), info));
                }
                Err(error) if error::needs_connection(&error) => return Err(error),
                // Whatever else is wrong with this key is an error of the first write.
                writes => writes.ok().flatten().unwrap_or_default(),
            };
            let opened = Opened {
                connection,
                asked: sent,
                asked_at: Instant::now(),
                known: Arc::new(Known {
                    writes: AtomicU64::new(writes),
                    opened: Instant::now(),
                    written_ms: AtomicU64::new(0),
                    written_epoch_ms: AtomicI64::new(self.clock.local().0),
                }),
            };
            Ok::<_, RedisError>((Ok(Connected::Opened(opened, others)), info))
        };
        let connected = tokio::time::timeout(self.connect_timeout, connecting).await;
        let request = || "CONNECT".to_owned();
        let (connected, info) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                let (kind, reason) = error::classify(&error, &name);
                // Nothing of the request itself was sent. What answers otherwise is no Redis.
                let kind = match kind {
                    ErrorKind::Unconfirmed if error.is_io_error() => ErrorKind::Unreachable,
                    ErrorKind::Unconfirmed => ErrorKind::Rejected,
                    kind => kind,
                };
                return Err(self.refused(kind, request(), reason, Some(error)));
            }
            Err(_) => {
                let reason = format!("{name} accepts no connection in time");
                return Err(self.refused(ErrorKind::Unreachable, request(), reason, None));
            }
        };
        let now = field(&info, "server_time_usec").and_then(|now| now.parse::<i64>().ok());
        if let (true, Some(now)) = (self.use_server_time, now) {
            self.clock.observe_ms(now / 1_000, sent, self.clock.local());
        }
        connected.map_err(|(kind, reason)| {
            self.refused(kind, request(), format!("{name} {reason}"), None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_that_are_known_are_those_that_the_last_one_named_and_that_of_the_url() {
        let options = RedisOptions::new("redis://url:1");
        let connection = Connection::new(&options, CorrectedClock::default(), String::new());
        let connection = connection.expect("the URL is one");
        let tcp = |name: &str| ConnectionAddr::Tcp(name.to_owned(), 1);
        for round in 0..100 {
            let [one, other] = ["one", "other"].map(|name| tcp(&format!("{name}-{round}")));
            connection.know(one.clone(), vec![other.clone(), one.clone()]);
            let tried = [(); 4].map(|()| connection.next_server());
            assert_eq!(tried, [one.clone(), other, tcp("url"), one]);
        }
        connection.know(tcp("url"), vec![]);
        assert_eq!(*connection.servers(), [tcp("url")]);
    }
}

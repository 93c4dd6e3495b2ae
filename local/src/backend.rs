//! Start and stop of everything, in an order that leaves nothing behind.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;
use weirgate::{Builder, FileError, LimitsFileContents, RateLimiter};
use weirgate_store::{ConnectOptions, StoreError, Table, connect, create_table};

use crate::actions::Actions;
use crate::checkpoint::{self, Checkpoint};
use crate::database::{DatabaseError, Embedded};
use crate::functions::Functions;
use crate::limits;
use crate::listen::HostName;
use crate::mapping::Mapping;
use crate::schedule::Schedule;
use crate::server::Server;
use crate::stream::StreamReader;

/// How the backend runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address to listen on, default 127.0.0.1. All that reach another one can read and change the
    /// table.
    pub address: IpAddr,
    /// Port; 0, the default, is any free one.
    pub port: u16,
    /// Names of the table in the header `Host`, beside the address of the connection, and `localhost`
    /// for 127.0.0.1, with the port: those of a forwarded port or a container. Requests to other
    /// names are refused.
    pub hosts: Vec<HostName>,
    /// Folder of the database, which is made if it does not exist; `None`, the default, keeps the
    /// table in memory.
    pub data: Option<PathBuf>,
    /// Name of the table, default `weirgate`.
    pub table: String,
    /// Limits file that is applied at the start.
    pub limits: Option<PathBuf>,
    /// Namespace that the limits file is applied to, default `default`.
    pub namespace: String,
    /// Time between runs of the reconciler, default 10 s. The template's default is a minute.
    pub reconcile_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            hosts: vec![],
            data: None,
            table: "weirgate".to_owned(),
            limits: None,
            namespace: "default".to_owned(),
            reconcile_every: Duration::from_secs(10),
        }
    }
}

/// A backend that could not start. Nothing runs then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The name of the table cannot be used.
    #[error("the table cannot be named {0:?}{1}; give another --table, or another WEIRGATE_TABLE")]
    Name(String, &'static str),
    /// Something else listens on the port.
    #[error("port {} of {} is in use: choose another one, or 0 for any free one", .0.port(), .0.ip())]
    PortTaken(SocketAddr),
    /// The port cannot be listened on, or a thread cannot be started.
    #[error("port {} of {} cannot be served: {error}", address.port(), address.ip())]
    Io {
        /// The address with the port.
        address: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// The thread of the functions of a store cannot be started.
    #[error("the functions need a thread, got {0}; allow the process another one")]
    Thread(io::Error),
    /// The limits file is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// The database cannot be opened.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The table cannot be made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The limits of the file cannot be set, or the namespace is no name.
    #[error(transparent)]
    Limits(#[from] weirgate::Error),
}

/// The backend: the table behind HTTP, the aggregator on its stream, the reconciler on its timer. It
/// ends when it is dropped; [`stop`](Self::stop) also waits for the end.
#[derive(Debug)]
pub struct LocalBackend {
    options: Options,
    endpoint: String,
    actions: Actions,
    functions: Functions,
    server: Server,
    /// Has the folder locked until everything has ended.
    embedded: Embedded,
}

impl LocalBackend {
    /// Starts the backend. The author of what the limits file changes is `weirgate local`.
    ///
    /// # Errors
    /// [`StartError`] if the limits file is wrong, the port is taken, or the folder cannot be used.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let limiter = RateLimiter::builder(&options.table).principal("weirgate local");
        Self::start_with(options, limiter).await
    }

    /// Starts the backend. `limiter` has the settings of the limiter that applies the limits file.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(options: Options, limiter: Builder) -> Result<Self, StartError> {
        let reason = match options.table.as_str() {
            checkpoint::TABLE => ", which is the name of a table of the backend itself",
            // Those are of DynamoDB's.
            table if table.starts_with("arn:") => ", which is an ARN",
            _ => "",
        };
        if !reason.is_empty() {
            return Err(StartError::Name(options.table, reason));
        }
        let contents = match &options.limits {
            Some(path) => LimitsFileContents::read(path)?,
            None => LimitsFileContents::default(),
        };
        let address = SocketAddr::new(options.address, options.port);
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => StartError::PortTaken(address),
            _ => StartError::Io { address, error },
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        let embedded = match &options.data {
            Some(folder) => Embedded::in_folder(folder)?,
            None => Embedded::in_memory()?,
        };
        let checkpoint = Checkpoint::open(&embedded, &options.table)?;
        let server =
            Server::start(listener, embedded.database(), options.hosts.clone()).map_err(refused)?;
        let endpoint = server.endpoint().to_owned();
        let actions = Actions::default();
        let functions = async {
            let table = prepare(&embedded, &endpoint, &options, (limiter, &contents)).await?;
            let (mapping, schedule) = wire(&embedded, checkpoint, table, &options, &actions)?;
            Functions::start(mapping, schedule).map_err(refused)
        };
        match functions.await {
            Ok(functions) => Ok(Self { endpoint, actions, functions, server, embedded, options }),
            Err(error) => {
                server.stop();
                Err(error)
            }
        }
    }

    /// The address of the table, as `http://127.0.0.1:8000`.
    #[must_use]
    pub fn endpoint_url(&self) -> &str {
        &self.endpoint
    }

    /// How the backend was started.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// The environment variables with which an SDK of AWS, and the command line, find the table.
    /// The credentials are made up.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, &str); 6] {
        [
            ("AWS_ENDPOINT_URL_DYNAMODB", &self.endpoint),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "local"),
            ("AWS_SECRET_ACCESS_KEY", "local"),
            ("WEIRGATE_TABLE", &self.options.table),
            ("WEIRGATE_NAMESPACE", &self.options.namespace),
        ]
    }

    /// What the functions did last.
    #[must_use]
    pub const fn actions(&self) -> &Actions {
        &self.actions
    }

    /// Stops: the functions end what they are doing, then requests under way have two seconds. What
    /// the aggregator has not handled is handled after a start with the same folder.
    pub async fn stop(self) {
        // Threads are joined, which must not block the runtime of the caller.
        let stopped = tokio::task::spawn_blocking(move || {
            self.functions.stop();
            self.server.stop();
            drop(self.embedded);
        });
        let _ = stopped.await;
    }
}

/// Makes the table if there is none, and applies the limits.
async fn prepare(
    embedded: &Embedded,
    endpoint: &str,
    options: &Options,
    (limiter, contents): (Builder, &LimitsFileContents),
) -> Result<Table, StartError> {
    let connection =
        ConnectOptions { local_endpoint: Some(endpoint.to_owned()), ..ConnectOptions::default() };
    let connected = connect(connection).await;
    let found = embedded.database().get_table_metadata(&options.table);
    if found.map_err(|error| embedded.refused(error))?.is_none() {
        create_table(&connected.client, &options.table).await?;
    }
    let table = Table::new(connected, &options.table);
    // Those of this process, also for the table of an earlier release.
    table.mark_functions().await?;
    let limiter = limiter.table(table.clone()).namespace(&options.namespace);
    limits::apply(&limiter.build().await?, contents).await?;
    Ok(table)
}

/// Returns both functions, with the settings that the template has by default.
fn wire(
    embedded: &Embedded,
    checkpoint: Checkpoint,
    table: Table,
    options: &Options,
    actions: &Actions,
) -> Result<(Mapping, Schedule), StartError> {
    let position = checkpoint.read();
    let position = position.map_err(|error| embedded.refused(error))?;
    let database = embedded.database();
    let stream = StreamReader::after(database, &options.table, position);
    let lookup = |name: &str| (name == "TABLE_NAME").then(|| options.table.clone());
    let setting = |error: &dyn std::error::Error| {
        weirgate::Error::Invalid(format!("the functions refuse the table's name: {error}"))
    };
    let aggregator = weirgate_aggregator::Config::read(lookup).map_err(|error| setting(&error))?;
    let reconciler = weirgate_reconciler::Config::read(lookup).map_err(|error| setting(&error))?;
    let mapping =
        Mapping::new(stream, (checkpoint, position), (table.clone(), aggregator), actions.clone());
    let schedule = Schedule {
        database: database.clone(),
        table,
        config: reconciler,
        actions: actions.clone(),
        every: options.reconcile_every,
        expire_at: Instant::now(),
    };
    Ok((mapping, schedule))
}

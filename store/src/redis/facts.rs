//! What a server says of itself, for operators.

use redis::{Value, cmd};

use super::RedisTable;
use super::connection::texts;
use crate::table::Backend;
use crate::{ErrorKind, StoreError, Table};

/// The server of a table in Redis or Valkey, as it describes itself. Empty texts are not known: hosted servers do
/// not tell all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerFacts {
    /// Name and version: `Redis 7.0.15`.
    pub version: String,
    /// What is evicted if memory is full, such as `noeviction`.
    pub eviction: String,
    /// Most memory for data, in bytes; 0 without a limit.
    pub memory_bytes: u64,
    /// Memory in use, in bytes.
    pub used_bytes: u64,
    /// Whether each write is appended to a file.
    pub is_appended: bool,
    /// When that file is written to the disk: `always`, `everysec` or `no`.
    pub fsync: String,
    /// Whether the last write of that file failed.
    pub has_append_failed: bool,
    /// The primary, if the server is its replica.
    pub primary: Option<Primary>,
    /// The replicas that are connected.
    pub replicas: Vec<Replica>,
}

/// The primary of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Primary {
    /// Host and port.
    pub address: String,
    /// Whether the replica is connected to it.
    pub is_linked: bool,
}

/// A replica, as its primary knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Host and port.
    pub address: String,
    /// `online`, or how far it has come.
    pub state: String,
    /// Seconds since it said how far it is; below 2 usually.
    pub lag_seconds: u64,
    /// What it has not confirmed, in bytes.
    pub behind_bytes: u64,
}

impl Table {
    /// Asks the server of a table in Redis or Valkey about itself.
    ///
    /// # Errors
    /// [`StoreError`] if it does not answer, or the table is in DynamoDB.
    pub async fn describe_server(&self) -> Result<ServerFacts, StoreError> {
        match &self.backend {
            Backend::Redis(table) => table.facts().await,
            _ => Err(StoreError {
                kind: ErrorKind::Rejected,
                request: "INFO".to_owned(),
                table: self.name.clone(),
                reason: "the table is not in Redis".to_owned(),
                source: None,
            }),
        }
    }
}

impl RedisTable {
    async fn facts(&self) -> Result<ServerFacts, StoreError> {
        let request = || "INFO".to_owned();
        let connection = &self.0.connection;
        let (info, config) = connection
            .send(&request, async |connection| {
                let info: String = cmd("INFO").query_async(connection).await?;
                let mut config = cmd("CONFIG");
                config.arg("GET").arg("appendfsync");
                match config.query_async(connection).await {
                    Ok(config) => Ok((info, config)),
                    Err(error) if error.is_io_error() => Err(error),
                    // Hosted servers do not have it.
                    Err(_) => Ok((info, Value::Nil)),
                }
            })
            .await?;
        let config = texts(config).map_err(|error| connection.failed(request(), error))?;
        Ok(read(&info, config))
    }
}

fn read(info: &str, config: Vec<(String, String)>) -> ServerFacts {
    let field = |name: &str| {
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().to_owned()
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or_default();
    let version = match &*field("valkey_version") {
        "" => format!("Redis {}", field("redis_version")),
        version => format!("Valkey {version}"),
    };
    let offset = number(&field("master_repl_offset"));
    let replica = |number_of: usize| {
        let line = field(&format!("slave{number_of}"));
        let part = |name: &str| {
            let mut parts = line.split(',');
            let value = parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_default().to_owned()
        };
        (!line.is_empty()).then(|| Replica {
            address: format!("{}:{}", part("ip"), part("port")),
            state: part("state"),
            lag_seconds: number(&part("lag")),
            behind_bytes: offset.saturating_sub(number(&part("offset"))),
        })
    };
    ServerFacts {
        version,
        eviction: field("maxmemory_policy"),
        memory_bytes: number(&field("maxmemory")),
        used_bytes: number(&field("used_memory")),
        is_appended: field("aof_enabled") == "1",
        fsync: config
            .into_iter()
            .find_map(|(name, value)| (name == "appendfsync").then_some(value))
            .unwrap_or_default(),
        has_append_failed: field("aof_last_write_status") == "err",
        primary: (field("role") == "slave").then(|| Primary {
            address: format!("{}:{}", field("master_host"), field("master_port")),
            is_linked: field("master_link_status") == "up",
        }),
        replicas: (0..).map_while(replica).collect(),
    }
}

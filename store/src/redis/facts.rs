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
    /// Commands that the user of the table needs and may not run: `zadd`.
    pub denied: Vec<String>,
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

/// All commands that requests and scripts use, on a key of the table.
const NEEDED: [&str; 26] = [
    "DEL key",
    "EVAL script 1 key",
    "EVALSHA sha 1 key",
    "EXISTS key",
    "GET key",
    "HDEL key field",
    "HGET key field",
    "HGETALL key",
    "HINCRBY key field 1",
    "HMGET key field",
    "HSET key field value",
    "INFO",
    "PEXPIRE key 1",
    "SELECT 0",
    "SET key value",
    "TIME",
    "XACK key group 1-1",
    "XADD key * field value",
    "XDEL key 1-1",
    "XGROUP CREATE key group 0",
    "XINFO STREAM key",
    "XREADGROUP GROUP group consumer STREAMS key 0",
    "ZADD key 0 member",
    "ZRANGE key 0 0",
    "ZREM key member",
    "ZSCORE key member",
];
/// Returns those that the user may not run.
const DENIED: &str = "
local denied = {}
for _, command in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(command, '%S+') do
    words[#words + 1] = word == 'key' and KEYS[1] or word
  end
  if not redis.acl_check_cmd(unpack(words)) then
    denied[#denied + 1] = string.lower(words[1])
  end
end
return denied";

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
        let mut denied = cmd("EVAL");
        denied.arg(DENIED).arg(1).arg(&self.0.keys.writes);
        denied.arg(&NEEDED);
        let (info, config, denied) = connection
            .send(&request, async |connection| {
                let info: String = cmd("INFO").query_async(connection).await?;
                let mut config = cmd("CONFIG");
                config.arg("GET").arg("appendfsync");
                let config = match config.query_async(connection).await {
                    Ok(config) => config,
                    Err(error) if error.is_io_error() => return Err(error),
                    // Hosted servers do not have it.
                    Err(_) => Value::Nil,
                };
                let denied: Vec<String> = match denied.query_async(connection).await {
                    Ok(denied) => denied,
                    Err(error) if error.is_io_error() => return Err(error),
                    // Without scripts nothing works, which each write tells.
                    Err(_) => vec![],
                };
                Ok((info, config, denied))
            })
            .await?;
        let config = texts(config).map_err(|error| connection.failed(request(), error))?;
        Ok(ServerFacts {
            denied,
            ..read(&info, config)
        })
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
        denied: vec![],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_commands_of_requests_and_scripts_are_known_to_need_a_permission() {
        let needed = NEEDED.iter().filter_map(|call| call.split(' ').next());
        let needed: BTreeSet<_> = needed.collect();
        let sources = [
            include_str!("apply.lua"),
            include_str!("records.rs"),
            include_str!("../redis.rs"),
        ];
        let mut used = BTreeSet::new();
        for (before, end) in [("call('", '\''), ("cmd(\"", '"')] {
            let parts = sources
                .iter()
                .flat_map(|source| source.split(before).skip(1));
            used.extend(parts.filter_map(|rest| rest.split(end).next()));
        }
        assert!(used.len() > 20, "{used:?}");
        let missing: Vec<_> = used.difference(&needed).collect();
        assert_eq!(missing, Vec::<&&str>::new());
    }
}

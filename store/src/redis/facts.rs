//! What a server says of itself, for operators.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, cmd, pipe};

use super::error::is_denied;
use super::info::is_of_cluster;
use super::{RedisTable, texts};
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
    /// Whether that is put off while the file is rewritten, for half a minute at most.
    pub is_fsync_put_off: bool,
    /// Whether the last write of that file failed.
    pub has_append_failed: bool,
    /// Whether it is of a cluster.
    pub is_of_cluster: bool,
    /// The replicas that are connected.
    pub replicas: Vec<Replica>,
    /// Replicas without which it takes no writes; `None` if that is not known.
    pub least_replicas: Option<u64>,
    /// The stream from which usage is copied; `None` if there is none.
    pub stream: Option<StreamFacts>,
    /// Commands that the user of the table needs and may not run: `zadd`, `xgroup|create`.
    pub denied: Vec<String>,
    /// Why it takes no writes, whatever its memory; `None` if it does.
    pub refuses: Option<String>,
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
    /// Time that its clock is ahead of its primary's, in ms, and negative if it is behind; `None` if it does not tell.
    pub ahead_ms: Option<i64>,
    /// Why it is refused once it is the primary; `None` if it is not, or does not tell.
    pub refuses: Option<String>,
}

/// The stream from which usage is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Its key.
    pub key: String,
    /// Records that wait.
    pub waiting: u64,
    /// Whether a process runs the functions, which read it.
    pub is_read: bool,
}

/// Settings that a server may tell.
const SETTINGS: [&str; 3] = ["appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write"];
/// All commands that requests and scripts use, on a key of the table.
const NEEDED: [&str; 27] = [
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
    "XGROUP|CREATE key group 0",
    "XINFO|STREAM key",
    "XLEN key",
    "XREADGROUP GROUP group consumer STREAMS key 0",
    "ZADD key 0 member",
    "ZRANGE key 0 0",
    "ZREM key member",
    "ZSCORE key member",
];
/// What connections of a cluster use too.
const NEEDED_IN_CLUSTER: &str = "CLUSTER|NODES";
/// Returns those that the user may not run.
const DENIED: &str = "
local denied = {}
for _, command in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(command, '[^%s|]+') do
    words[#words + 1] = word == 'key' and KEYS[1] or word
  end
  if not redis.acl_check_cmd(unpack(words)) then
    denied[#denied + 1] = string.lower(string.match(command, '%S+'))
  end
end
return denied";

/// Writes nothing, and is refused as each write is, but by a full server.
const MAY_WRITE: &str = "#!lua flags=allow-oom
return 1";

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
    /// Returns what of scripts and keys the user may not use, if a script with a key was refused.
    async fn denied_scripts(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<String>, RedisError> {
        let mut denied = vec![];
        for (name, script) in [("EVAL", "return 1"), ("EVALSHA", "0")] {
            let asked = cmd(name).arg(script).arg(0).exec_async(connection).await;
            match asked {
                Err(error) if is_denied(&error) => denied.push(name.to_lowercase()),
                Err(error) if error.code() != Some("NOSCRIPT") => return Err(error),
                _ => {}
            }
        }
        if denied.is_empty() {
            let (prefix, _) = self.0.keys.writes.split_once('{').unwrap_or_default();
            denied.push(format!("the keys {prefix}*"));
        }
        Ok(denied)
    }

    async fn facts(&self) -> Result<ServerFacts, StoreError> {
        let request = || "INFO".to_owned();
        let connection = &self.0.connection;
        let (info, config, denied, refuses, stream) = connection
            .send(&request, async |connection| {
                let info: String = cmd("INFO").query_async(connection).await?;
                let mut config = cmd("CONFIG");
                config.arg("GET").arg(&SETTINGS);
                let config = match config.query_async(connection).await {
                    Ok(config) => config,
                    Err(error) if error.is_io_error() => return Err(error),
                    // Hosted servers do not have it.
                    Err(_) => Value::Nil,
                };
                let mut denied = cmd("EVAL");
                denied.arg(DENIED).arg(1).arg(&self.0.keys.writes);
                denied.arg(&NEEDED);
                if is_of_cluster(&info) {
                    denied.arg(NEEDED_IN_CLUSTER);
                }
                let denied = match unless_denied(denied.query_async(connection).await)? {
                    Some(denied) => denied,
                    // A script asks, which needs the commands for scripts and a key.
                    None => self.denied_scripts(connection).await?,
                };
                let mut write = cmd("EVAL");
                write.arg(MAY_WRITE).arg(1).arg(&self.0.keys.writes);
                let refuses = match write.exec_async(connection).await {
                    Ok(()) => None,
                    Err(error) if error.is_io_error() => return Err(error),
                    // It is among what is denied.
                    Err(error) if is_denied(&error) => None,
                    Err(error) => Some(error),
                };
                let stream = &self.0.keys.records;
                let mut all = pipe();
                all.cmd("EXISTS").arg(stream);
                all.cmd("XLEN").arg(stream);
                all.cmd("EXISTS").arg(&self.0.keys.lock);
                // It is among what is denied.
                let stream: Option<(bool, u64, bool)> =
                    unless_denied(all.query_async(connection).await)?;
                Ok((info, config, denied, refuses, stream))
            })
            .await?;
        let config = texts(config).map_err(|error| connection.failed(request(), error))?;
        let (has_stream, waiting, is_read) = stream.unwrap_or_default();
        let mut facts = ServerFacts {
            denied,
            refuses: refuses.map(|error| connection.failed(request(), error).reason),
            stream: has_stream.then(|| StreamFacts {
                key: self.0.keys.records.clone(),
                waiting,
                is_read,
            }),
            ..read(&info, &config)
        };
        for replica in &mut facts.replicas {
            (replica.ahead_ms, replica.refuses) = connection.ask_replica(&replica.address).await;
        }
        Ok(facts)
    }
}

/// Returns an answer; `None` if the user may not ask.
fn unless_denied<T>(answer: Result<T, RedisError>) -> Result<Option<T>, RedisError> {
    match answer {
        Err(error) if is_denied(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

fn read(info: &str, config: &[(String, String)]) -> ServerFacts {
    let [fsync, put_off, least_replicas] = SETTINGS.map(|wanted| {
        let mut known = config.iter();
        known.find_map(|(name, value)| (name == wanted).then_some(value.as_str()))
    });
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
            ahead_ms: None,
            refuses: None,
        })
    };
    ServerFacts {
        version,
        eviction: field("maxmemory_policy"),
        memory_bytes: number(&field("maxmemory")),
        used_bytes: number(&field("used_memory")),
        is_appended: field("aof_enabled") == "1",
        fsync: fsync.unwrap_or_default().to_owned(),
        is_fsync_put_off: put_off == Some("yes"),
        has_append_failed: field("aof_last_write_status") == "err",
        is_of_cluster: is_of_cluster(info),
        replicas: (0..).map_while(replica).collect(),
        // INFO has this line exactly where replicas are required.
        least_replicas: match least_replicas {
            Some(least) => least.parse().ok(),
            None if field("role").is_empty() => None,
            None => Some(u64::from(!field("min_slaves_good_slaves").is_empty())),
        },
        stream: None,
        denied: vec![],
        refuses: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_commands_of_requests_and_scripts_are_known_to_need_a_permission() {
        let needed = NEEDED.iter().chain([&NEEDED_IN_CLUSTER]);
        let needed = needed.filter_map(|call| call.split([' ', '|']).next());
        // Hosted servers do not have the last one, so nothing depends on it.
        let needed: BTreeSet<_> = needed.chain(["CONFIG"]).collect();
        let own = include_str!("facts.rs").split("#[cfg(test)]").next();
        let sources = [
            own.unwrap_or_default(),
            include_str!("apply.lua"),
            include_str!("connection.rs"),
            include_str!("records.rs"),
            include_str!("../redis.rs"),
        ];
        let mut used = BTreeSet::new();
        for (before, end) in [("call('", '\''), ("cmd(\"", '"')] {
            let parts = sources.iter().flat_map(|source| source.split(before).skip(1));
            used.extend(parts.filter_map(|rest| rest.split(end).next()));
        }
        assert!(used.len() > 20, "{used:?}");
        let missing: Vec<_> = used.difference(&needed).collect();
        assert_eq!(missing, Vec::<&&str>::new());
    }
}

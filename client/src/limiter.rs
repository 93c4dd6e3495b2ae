//! The limiter and how it is built.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{BucketKey, EntityId, Namespace, Resource};
use weirgate_store::{Connection, Table, connect};

use crate::shards::Shards;
use crate::stats::Counters;
use crate::{Acquire, Clock, Error, Stats};

/// How many buckets a limiter remembers; more than these are forgotten while nobody waits for them.
const MAX_BUCKETS: usize = 10_000;

/// Limits rates and concurrency through one DynamoDB table. Clones are cheap and share everything.
///
/// ```no_run
/// # async fn example() -> Result<(), weirgate::Error> {
/// let limiter = weirgate::RateLimiter::builder("weirgate").namespace("default").build().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimiter {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) table: Table,
    pub(crate) namespace: Namespace,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) started: Instant,
    /// By how much the machine's clock was ahead of the time since then when it was last read, in ms.
    pub(crate) ahead_ms: AtomicI64,
    buckets: Mutex<HashMap<BucketKey, Arc<Shards>>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) denial_memory: Duration,
    pub(crate) owner: Arc<str>,
}

impl RateLimiter {
    /// A limiter on the table `table`, whose name is among the deployed stack's outputs.
    #[must_use]
    pub fn builder(table: impl Into<String>) -> Builder {
        Builder {
            table: TableSource::Name(table.into(), Connection::default()),
            namespace: "default".to_owned(),
            owner: String::new(),
            clock: None,
            timeout: Duration::from_secs(5),
            denial_memory: Duration::from_secs(1),
        }
    }

    /// Asks for tokens of `entity` on `resource`.
    pub fn acquire(&self, entity: &str, resource: &str) -> Acquire<'_> {
        Acquire::new(self, entity, resource)
    }

    /// What this limiter has done since it was built.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }
}

impl Inner {
    /// What is known of a bucket.
    pub(crate) fn bucket(&self, entity: EntityId, resource: Resource) -> Arc<Shards> {
        let key = BucketKey { namespace: self.namespace.clone(), entity, resource, shard: 0 };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(&key) {
            return Arc::clone(bucket);
        }
        if buckets.len() >= MAX_BUCKETS {
            buckets.retain(|_, bucket| Arc::strong_count(bucket) > 1);
        }
        let bucket = Arc::new(Shards::new(key.clone()));
        buckets.insert(key, Arc::clone(&bucket));
        bucket
    }

    /// Forgets what was seen of all buckets.
    pub(crate) fn forget_views(&self) {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.values().for_each(|bucket| bucket.forget_views());
    }
}

/// Builds a [`RateLimiter`].
#[derive(Debug)]
pub struct Builder {
    table: TableSource,
    namespace: String,
    owner: String,
    clock: Option<Arc<dyn Clock>>,
    timeout: Duration,
    denial_memory: Duration,
}

#[derive(Debug)]
enum TableSource {
    Name(String, Connection),
    Table(Table),
}

impl Builder {
    /// The tenant whose buckets these are; `default` if not said.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Written into leases, for people who look at who holds what; up to 64 characters.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// How long a decision may take, its retries included, before it fails with [`Error::Timeout`]: 5 s if not said.
    /// Waiting for tokens is not part of it.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a denial is answered from memory at most, before the table is asked again: 1 s if not said. Until the
    /// retry time in any case, and never longer than 50 ms for slots.
    #[must_use]
    pub const fn denial_memory(mut self, denial_memory: Duration) -> Self {
        self.denial_memory = denial_memory;
        self
    }

    /// Another clock than the machine's, for tests. DynamoDB's answers correct it too.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// How to reach DynamoDB, if not by the defaults.
    #[must_use]
    pub fn connection(mut self, connection: Connection) -> Self {
        if let TableSource::Name(_, known) = &mut self.table {
            *known = connection;
        }
        self
    }

    /// A table that is connected already, with the clock of its [`Connection`].
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.table = TableSource::Table(table);
        self
    }

    /// Connects. No request is sent yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a namespace, owner or table name that breaks its rule, or a second clock.
    pub async fn build(self) -> Result<RateLimiter, Error> {
        let namespace = Namespace::new(self.namespace)?;
        if self.owner.chars().count() > 64 {
            return Err(Error::Invalid(format!("owner {:?} is longer than 64 characters: shorten it", self.owner)));
        }
        let table = match self.table {
            TableSource::Table(_) if self.clock.is_some() => {
                let remedy = "a table that is connected has a clock already: leave this one out, or connect with it";
                return Err(Error::Invalid(remedy.to_owned()));
            }
            TableSource::Table(table) => table,
            TableSource::Name(name, mut connection) => {
                let is_arn = name.starts_with("arn:");
                let is_name =
                    |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b) || (is_arn && b":/".contains(&b));
                if name.len() < 3 || (name.len() > 255 && !is_arn) || !name.bytes().all(is_name) {
                    let rule = "a name of 3 to 255 of A-Z a-z 0-9 _ - . or an ARN";
                    return Err(Error::Invalid(format!("table {name:?} is not a table's name: it takes {rule}")));
                }
                connection.clock = self.clock.unwrap_or(connection.clock);
                Table::new(connect(connection).await, name)
            }
        };
        let settings =
            Settings { timeout: self.timeout, denial_memory: self.denial_memory, owner: self.owner.as_str().into() };
        let (counters, buckets) = (Counters::default(), Mutex::default());
        let started = Instant::now();
        let ahead_ms = AtomicI64::new(table.skew().local().0);
        let inner = Inner { table, namespace, settings, counters, started, ahead_ms, buckets };
        Ok(RateLimiter { inner: Arc::new(inner) })
    }
}

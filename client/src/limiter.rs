//! The limiter and how it is built.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weirgate_shared::{BucketKey, EntityId, Namespace, Resource};
use weirgate_store::{Connection, Table, connect};

use crate::prefetch::{self, Pool};
use crate::shards::Shards;
use crate::stats::Counters;
use crate::{Acquire, Clock, Error, Prefetch, Stats, SystemClock};

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
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    known: HashMap<BucketKey, Arc<Shards>>,
    /// Nothing is taken ahead any more.
    is_shut_down: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) denial_memory: Duration,
    pub(crate) owner: Arc<str>,
    pub(crate) is_shadow: bool,
    pub(crate) prefetch: HashMap<Resource, Prefetch>,
}

impl RateLimiter {
    /// A limiter on the table `table`, whose name is among the deployed stack's outputs.
    #[must_use]
    pub fn builder(table: impl Into<String>) -> Builder {
        Builder {
            table: TableSource::Name(table.into(), Connection::default()),
            namespace: "default".to_owned(),
            owner: String::new(),
            clock: Arc::new(SystemClock),
            timeout: Duration::from_secs(5),
            denial_memory: Duration::from_secs(1),
            is_shadow: false,
            prefetch: vec![],
        }
    }

    /// Asks for tokens of `entity` on `resource`.
    pub fn acquire(&self, entity: &str, resource: &str) -> Acquire<'_> {
        Acquire::new(self, entity, resource)
    }

    /// Gives back what was taken ahead, and has the table count every acquire granted until now. Whatever is asked
    /// afterwards goes to the table. Without [prefetch](Builder::prefetch) there is nothing to do, and nothing the second
    /// time. A limiter that is dropped without it forfeits what it had taken ahead.
    ///
    /// # Errors
    /// [`Error::Store`] or [`Error::Timeout`] if something could not be given back: it counts as used. The rest was.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let pools = self.inner.shut_down();
        // Tasks of their own: they come to an end also if the caller goes away.
        let tasks: Vec<_> =
            pools.into_iter().map(|shards| tokio::spawn(prefetch::close(Arc::clone(&self.inner), shards))).collect();
        let mut done = Ok(());
        for task in tasks {
            // Only a runtime that shuts down drops a task.
            done = done.and(task.await.unwrap_or(Ok(())));
        }
        done
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
        let mut buckets = self.buckets();
        if let Some(bucket) = buckets.known.get(&key) {
            return Arc::clone(bucket);
        }
        if buckets.known.len() >= MAX_BUCKETS {
            // Who keeps a pool is among those that hold its bucket.
            buckets.known.retain(|_, bucket| Arc::strong_count(bucket) > 1);
        }
        let takes_ahead = !buckets.is_shut_down && !self.settings.is_shadow;
        let prefetch = self.settings.prefetch.get(&key.resource).filter(|_| takes_ahead);
        let bucket = Arc::new(Shards::new(key.clone(), prefetch.copied().map(Pool::new)));
        buckets.known.insert(key, Arc::clone(&bucket));
        bucket
    }

    /// The buckets that tokens may have been taken ahead of; from now on none are.
    fn shut_down(&self) -> Vec<Arc<Shards>> {
        let mut buckets = self.buckets();
        buckets.is_shut_down = true;
        buckets.known.values().filter(|bucket| bucket.pool.is_some()).map(Arc::clone).collect()
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Builds a [`RateLimiter`].
#[derive(Debug)]
pub struct Builder {
    table: TableSource,
    namespace: String,
    owner: String,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    denial_memory: Duration,
    is_shadow: bool,
    prefetch: Vec<(String, Prefetch)>,
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

    /// Denies nobody: an acquire that would be denied is granted, says so, and counts in [`Stats::shadow_denied`]. What
    /// it was short of is not taken, so that the numbers are those of a limiter that denies.
    #[must_use]
    pub const fn shadow(mut self, is_shadow: bool) -> Self {
        self.is_shadow = is_shadow;
        self
    }

    /// Takes tokens of `resource` ahead, and serves acquires from memory: a write about every second instead of one for
    /// each. For rates that are enforced; a request with a lease, slots or soft limits goes to the table as always.
    ///
    /// End the limiter with [`RateLimiter::shutdown`], or what it has taken ahead then is lost.
    #[must_use]
    pub fn prefetch(mut self, resource: impl Into<String>, prefetch: Prefetch) -> Self {
        self.prefetch.push((resource.into(), prefetch));
        self
    }

    /// Another clock than the machine's, for tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
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

    /// A table that is connected already.
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.table = TableSource::Table(table);
        self
    }

    /// Connects. No request is sent yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a namespace, owner, table name or prefetch that breaks its rule.
    pub async fn build(self) -> Result<RateLimiter, Error> {
        let namespace = Namespace::new(self.namespace)?;
        if self.owner.chars().count() > 64 {
            return Err(Error::Invalid(format!("owner {:?} is longer than 64 characters: shorten it", self.owner)));
        }
        let mut prefetch = HashMap::new();
        for (resource, numbers) in self.prefetch {
            let numbers = numbers.check(&resource)?;
            if prefetch.insert(Resource::new(&*resource)?, numbers).is_some() {
                return Err(Error::Invalid(format!("prefetch of {resource:?} is given twice: give it once")));
            }
        }
        let table = match self.table {
            TableSource::Table(table) => table,
            TableSource::Name(name, connection) => {
                let is_arn = name.starts_with("arn:");
                let is_name =
                    |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b) || (is_arn && b":/".contains(&b));
                if name.len() < 3 || (name.len() > 255 && !is_arn) || !name.bytes().all(is_name) {
                    let rule = "a name of 3 to 255 of A-Z a-z 0-9 _ - . or an ARN";
                    return Err(Error::Invalid(format!("table {name:?} is not a table's name: it takes {rule}")));
                }
                Table::new(connect(connection).await, name)
            }
        };
        let settings = Settings {
            timeout: self.timeout,
            denial_memory: self.denial_memory,
            owner: self.owner.as_str().into(),
            is_shadow: self.is_shadow,
            prefetch,
        };
        let (counters, buckets) = (Counters::default(), Mutex::default());
        let inner = Inner { table, namespace, clock: self.clock, settings, counters, buckets };
        Ok(RateLimiter { inner: Arc::new(inner) })
    }
}

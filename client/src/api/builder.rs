//! Builds a limiter, and checks every setting before anything is sent.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use weirgate_shared::{LimitName, Namespace, Resource, exact_span};
use weirgate_store::{Clock, ConnectOptions, Table, connect, refuse_url};

use super::limiter::RateLimiter;
use crate::decide::describe;
use crate::session::{CircuitBreakerConfig, Session, Settings};
use crate::values::{Error, OnUnavailable, Prefetch, VendorCount, check_on_unavailable};

impl RateLimiter {
    /// Builds a limiter on the table `table`, whose name is among the deployed stack's outputs. With the feature
    /// `redis`, also on a server of Redis or Valkey, at `redis://{user}:{password}@{host}:{port}/{database}`, or
    /// `rediss://` for TLS. `?table={name}` chooses the prefix of its keys, by default `weirgate`, and
    /// `accept_eviction=true` accepts a server that evicts keys.
    #[must_use]
    pub fn builder(table: impl Into<String>) -> Builder {
        Builder::new(table.into())
    }
}

/// Builds a [`RateLimiter`].
#[derive(Debug)]
pub struct Builder {
    table: TableSource,
    connection: Option<ConnectOptions>,
    namespace: String,
    owner: String,
    principal: Option<String>,
    config_ttl: Duration,
    audit_retention: Option<Duration>,
    usage_retention: Duration,
    clock: Option<Arc<dyn Clock>>,
    timeout: Duration,
    denial_cache_ttl: Duration,
    is_shadow: bool,
    has_resource_metrics: bool,
    on_unavailable: OnUnavailable,
    breaker: CircuitBreakerConfig,
    prefetch: Vec<(String, Prefetch)>,
    vendor_limits: Vec<(VendorCount, String)>,
    #[cfg(feature = "yaml")]
    file: Option<crate::file::LimitsFile>,
}

enum TableSource {
    /// The name, or a URL, which may have a password.
    Name(String),
    Table(Table),
}

impl fmt::Debug for TableSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => match name.split_once("://") {
                Some((scheme, _)) => write!(f, "{scheme}://.."),
                None => write!(f, "{name:?}"),
            },
            Self::Table(table) => table.fmt(f),
        }
    }
}

impl Builder {
    pub(crate) fn new(table: String) -> Self {
        Self {
            table: TableSource::Name(table),
            connection: None,
            namespace: "default".to_owned(),
            owner: String::new(),
            principal: None,
            config_ttl: Duration::from_secs(60),
            audit_retention: Some(Duration::from_secs(90 * 86_400)),
            usage_retention: Duration::from_secs(90 * 86_400),
            clock: None,
            timeout: Duration::from_secs(5),
            denial_cache_ttl: Duration::from_secs(30),
            is_shadow: false,
            has_resource_metrics: false,
            on_unavailable: OnUnavailable::Error,
            breaker: CircuitBreakerConfig::default(),
            prefetch: vec![],
            vendor_limits: vec![],
            #[cfg(feature = "yaml")]
            file: None,
        }
    }

    /// Sets the tenant of the buckets. Default: `default`.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets the owner written into leases, for operators; up to 64 characters.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Sets the author of configuration changes in audit events; up to 256 characters. Default: the
    /// owner, or `unknown`.
    #[must_use]
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// Sets how old a cached configuration may be: 60 s by default, at most a day. A change by
    /// another limiter takes effect here after that time, or once a bucket shows the newer version.
    /// While reads hang, or take more than a quarter of the time of a request, it can be twice that.
    #[must_use]
    pub const fn config_ttl(mut self, config_ttl: Duration) -> Self {
        self.config_ttl = config_ttl;
        self
    }

    /// Sets how long audit events of this limiter are kept: 90 days by default, at most 100 years, or
    /// indefinitely with `None`.
    #[must_use]
    pub fn audit_retention(mut self, audit_retention: impl Into<Option<Duration>>) -> Self {
        self.audit_retention = audit_retention.into();
        self
    }

    /// Sets how long the deployed stack keeps usage, its parameter `SnapshotTtlDays`: 90 days by
    /// default, at most 100 years. A report of earlier usage is refused, because it would be short.
    #[must_use]
    pub const fn usage_retention(mut self, usage_retention: Duration) -> Self {
        self.usage_retention = usage_retention;
        self
    }

    /// Sets the time allowed for a decision, retries included, before it fails with
    /// [`Error::Timeout`]: 5 s by default. Waiting for tokens is not included.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the longest time for which a denial is repeated from cache, without reading the table:
    /// 30 s by default.
    ///
    /// A denial by a rate is cached for a tenth of its retry-after, between 1 s and 30 s; one by
    /// slots for 50 ms. This setting can only make both shorter. A request that comes at its retry
    /// time is not denied from cache.
    #[must_use]
    pub const fn denial_cache_ttl(mut self, denial_cache_ttl: Duration) -> Self {
        self.denial_cache_ttl = denial_cache_ttl;
        self
    }

    /// Sets whether the histogram of decisions has the resource as a label, and the gauge of
    /// prefetched tokens the resource and the limit, and whether vendors' limits are gauges. Default: no,
    /// because there may be many.
    #[must_use]
    pub const fn metrics_by_resource(mut self, has_resource_metrics: bool) -> Self {
        self.has_resource_metrics = has_resource_metrics;
        self
    }

    /// Sets the decision while DynamoDB is unavailable. Default: an error. An acquire can override
    /// it.
    #[must_use]
    pub const fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.on_unavailable = on_unavailable;
        self
    }

    /// Sets the circuit breaker. Default: it opens after 10 failures in a row, for 1 s to 30 s.
    #[must_use]
    pub const fn circuit_breaker(mut self, breaker: CircuitBreakerConfig) -> Self {
        self.breaker = breaker;
        self
    }

    /// Grants every acquire. One that would be denied says so in its grant, and counts in
    /// [`Stats::shadow_denied`](crate::Stats::shadow_denied). Amounts that are short are not taken,
    /// so the numbers are those of a limiter that denies.
    #[must_use]
    pub const fn shadow(mut self, is_shadow: bool) -> Self {
        self.is_shadow = is_shadow;
        self
    }

    /// Sets a file with limits for acquires without limits. The first level that has a configuration
    /// wins, in the file or in the table; where both have one, the file's.
    #[cfg(feature = "yaml")]
    #[must_use]
    pub fn limits_file(mut self, file: crate::LimitsFile) -> Self {
        self.file = Some(file);
        self
    }

    /// Prefetches tokens of `resource`, and serves acquires from memory: about one write a second
    /// instead of one per acquire. It applies to enforced rates; a request with a lease, slots or
    /// soft limits goes to the table as usual.
    ///
    /// End the limiter with [`RateLimiter::shutdown`], or its prefetched tokens are lost.
    #[must_use]
    pub fn prefetch(mut self, resource: impl Into<String>, prefetch: Prefetch) -> Self {
        self.prefetch.push((resource.into(), prefetch));
        self
    }

    /// Lets the balance of `limit` follow what the vendor says is left: where an answer that is
    /// [reported](crate::Grant::vendor_said) says less than the balance, others use the account too, or its
    /// window is another one. The balance is then lowered to what the vendor has left and a margin: 5 % of
    /// the capacity, the largest amount that is held, or what the vendor rounds to, if more. It is never
    /// raised, and not below what leases hold. A process lowers a bucket once a second at most, by one
    /// write. Rates only. [`RateLimiter::vendor_advice`] compares it with the vendor's limit. Default: no limit
    /// follows.
    #[must_use]
    pub fn follow_vendor(mut self, counts: VendorCount, limit: impl Into<String>) -> Self {
        self.vendor_limits.push((counts, limit.into()));
        self
    }

    /// Replaces the machine's clock, for tests. DynamoDB's responses correct this one too.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets the options of the connection to DynamoDB.
    #[must_use]
    pub fn connection(mut self, connection: ConnectOptions) -> Self {
        self.connection = Some(connection);
        self
    }

    /// Uses a connected table, with the clock of its [`ConnectOptions`].
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.table = TableSource::Table(table);
        self
    }

    /// Connects, without sending a request. Only a server of Redis is asked whether it fits.
    ///
    /// The limiter works on the tokio runtime that awaits this. Its calls may come from any thread, with
    /// or without a runtime, if that one is a multi-thread runtime; otherwise only from that one. On
    /// others, and after the runtime has ended, each call fails at once with [`Error::Invalid`]. A grant
    /// may be dropped anywhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid namespace, owner, principal, table name, time or prefetch,
    /// a second clock or connection, or without a runtime. [`Error::Store`] if a server of Redis evicts keys, is
    /// older than 7.0, or does not accept the user.
    pub async fn build(self) -> Result<RateLimiter, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::Invalid(
                "build() must be awaited on a tokio runtime, which the limiter then uses, got a thread without one; use tokio, or .build().wait() with the feature blocking"
                    .to_owned(),
            ));
        };
        let namespace = Namespace::new(self.namespace)?;
        if self.owner.chars().count() > 64 {
            return Err(Error::Invalid(format!(
                "owner {:?} is longer than 64 characters: shorten it",
                self.owner
            )));
        }
        let owner = Some(&self.owner).filter(|owner| !owner.is_empty());
        let principal = self.principal.as_ref().or(owner).map_or("unknown", String::as_str);
        if principal.is_empty() || principal.chars().count() > 256 {
            return Err(Error::Invalid(format!(
                "principal must have 1 to 256 characters, got {principal:?}"
            )));
        }
        let (day, century) = (Duration::from_secs(86_400), Duration::from_secs(36_525 * 86_400));
        for (name, time, most) in [
            ("config_ttl", self.config_ttl, day),
            ("audit_retention", self.audit_retention.unwrap_or_default(), century),
            ("usage_retention", self.usage_retention, century),
        ] {
            if time > most {
                return Err(Error::Invalid(format!(
                    "{name} must be {} at most, got {}; lower it",
                    exact_span(most),
                    exact_span(time)
                )));
            }
        }
        let mut prefetch = HashMap::new();
        for (resource, numbers) in self.prefetch {
            let numbers = numbers.check(&resource)?;
            if prefetch.insert(Resource::new(&*resource)?, numbers).is_some() {
                return Err(Error::Invalid(format!(
                    "prefetch of {resource:?} is set twice: set it once"
                )));
            }
        }
        let mut vendor_limits = BTreeMap::new();
        for (counts, limit) in self.vendor_limits {
            let limit = LimitName::new(limit)?;
            if let Some(other) = vendor_limits.insert(counts, limit.clone()) {
                return Err(Error::Invalid(format!(
                    "both {other} and {limit} follow the vendor's {counts:?}: let one of them follow it"
                )));
            }
        }
        let table = match self.table {
            TableSource::Table(_) if self.clock.is_some() => {
                let remedy = "a table that is connected has a clock already: leave this one out, or connect with it";
                return Err(Error::Invalid(remedy.to_owned()));
            }
            TableSource::Table(_) if self.connection.is_some() => {
                let remedy = "a table that is connected has its connection already: leave connection() out, or table()";
                return Err(Error::Invalid(remedy.to_owned()));
            }
            TableSource::Table(table) => table,
            TableSource::Name(url) if is_redis(&url) => {
                on_redis(&url, self.connection, self.clock)?
            }
            TableSource::Name(name) => {
                let remedy = "begin the URL of a table in Redis with redis:// or rediss://";
                refuse_url(&name, remedy).map_err(Error::Invalid)?;
                let is_arn = name.starts_with("arn:");
                let is_name = |b: u8| {
                    b.is_ascii_alphanumeric()
                        || b"_-.".contains(&b)
                        || (is_arn && b":/".contains(&b))
                };
                if name.len() < 3 || (name.len() > 255 && !is_arn) || !name.bytes().all(is_name) {
                    let rule = "3 to 255 of A-Z a-z 0-9 _ - ., or is an ARN";
                    return Err(Error::Invalid(format!(
                        "{name:?} is no valid table name: a name has {rule}"
                    )));
                }
                let mut connection = self.connection.unwrap_or_default();
                connection.clock = self.clock.unwrap_or(connection.clock);
                Table::new(connect(connection).await, name)
            }
        };
        table.check_server().await?;
        check_on_unavailable(self.on_unavailable)?;
        let settings = Settings {
            timeout: self.timeout,
            denial_cache_ttl: self.denial_cache_ttl,
            owner: self.owner.as_str().into(),
            principal: principal.into(),
            config_ttl: self.config_ttl,
            audit_retention: self.audit_retention,
            usage_retention: self.usage_retention,
            is_shadow: self.is_shadow,
            has_resource_metrics: self.has_resource_metrics,
            on_unavailable: self.on_unavailable,
            prefetch,
            vendor_limits,
            #[cfg(feature = "yaml")]
            file: self.file,
        };
        describe();
        let session = Session::new(runtime, table, namespace, settings, self.breaker);
        Ok(RateLimiter::new(session))
    }
}

fn is_redis(table: &str) -> bool {
    ["redis://", "rediss://"].iter().any(|scheme| table.starts_with(scheme))
}

/// Of the options of a connection, clock and timeouts are of Redis too.
#[cfg(feature = "redis")]
fn on_redis(
    url: &str,
    connection: Option<ConnectOptions>,
    clock: Option<Arc<dyn Clock>>,
) -> Result<Table, Error> {
    let url = weirgate_store::StoreUrl::parse(url);
    let url = url.map_err(|error| Error::Invalid(format!("the URL of the store {error}")))?;
    let mut options = url.options();
    if let Some(connection) = connection {
        options.connect_timeout = connection.connect_timeout;
        options.request_timeout = connection.request_timeout;
        options.clock = connection.clock;
    }
    options.clock = clock.unwrap_or(options.clock);
    Ok(Table::on_redis(&options)?)
}

#[cfg(not(feature = "redis"))]
fn on_redis(_: &str, _: Option<ConnectOptions>, _: Option<Arc<dyn Clock>>) -> Result<Table, Error> {
    Err(Error::Invalid(
        "a table on Redis needs the feature redis of the crate weirgate; add it".to_owned(),
    ))
}

//! Rate limits shared through one DynamoDB table: token buckets taken from in a single write,
//! concurrency slots that return when their holder crashes, and usage that is counted once.
//!
//! ```no_run
//! use std::time::Duration;
//! use weirgate::{Decision, Limit, RateLimiter};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder("weirgate").namespace("default").build().await?;
//! let limits = [Limit::per_minute("rpm", 600)?, Limit::per_minute("tpm", 100_000)?];
//!
//! let decision = limiter
//!     .acquire("openai", "gpt-4")
//!     .limits(&limits)
//!     .take("rpm", 1)
//!     .take("tpm", 1_500) // an estimate
//!     .wait_up_to(Duration::from_secs(2))
//!     .send()
//!     .await?;
//! match decision {
//!     Decision::Granted(mut grant) => {
//!         // ... call the vendor, learn what it really took ...
//!         if let Err(error) = grant.adjust("tpm", 1_213).await {
//!             eprintln!("could not adjust: {error}");
//!         }
//!     }
//!     Decision::Denied(denied) => println!("try again in {:?}", denied.retry_after),
//!     Decision::NeverFits(never) => println!("{never}"),
//!     Decision::Disabled(disabled) => println!("{disabled}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `calendar` | quotas by hour, day, week, month and year, in all time zones |
//! | `redis` | a table in Redis or Valkey instead: `RateLimiter::builder("redis://...")` |
//! | `tower` | a layer for axum, hyper and tonic |
//! | `yaml` | limits from a file that is read again when it changes |
//! | `blocking` | `.wait()` on every future, for threads without an async runtime and `spawn_blocking` |
//! | `serde` | JSON of limits, denials, usage, lists and audit events |
//! | `testing` | limiters on a table in memory, with a clock that tests move; for `[dev-dependencies]` |
//!
//! Credentials come from variables, profiles with keys or roles, web identity, containers and instances. SSO, `aws login`
//! and credential processes are features of `aws-config`: a program that needs them depends on it with
//! `features = ["sso", "credentials-login", "credentials-process"]`.
//!
//! # Layout
//!
//! An acquire passes these folders from top to bottom, and its answer goes back up. Each uses only
//! those below it.
//!
//! | folder | what it does |
//! |---|---|
//! | `testing` | limiters on a table in memory |
//! | `http`, `tower` | limits in HTTP fields and bodies, and a layer that sends them |
//! | `api` | what applications call: [`RateLimiter`], [`Acquire`], [`Peek`], configurations, usage |
//! | `decide` | one request over all its buckets: which ones, all or none, [`Grant`]s, without DynamoDB |
//! | `bucket` | one bucket of any number of shards: routing, holds, prefetch |
//! | `config` | which limits are in force |
//! | `queue` | one shard: its waiters share writes; its view; takes and settlements |
//! | `session` | every request to the table; clocks, circuit breaker, retries |
//! | `file` | limits from a YAML file |
//! | `values` | plain data: amounts, limits, denials, errors, counters |

mod api;
mod bucket;
mod config;
mod decide;
#[cfg(feature = "yaml")]
mod file;
pub mod http;
mod queue;
mod session;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
mod values;

#[cfg(feature = "blocking")]
pub use api::blocking;
pub use api::{
    Acquire, AcquireAll, Admin, BalanceEdit, BalanceReport, Balances, Builder, ConfigChange,
    ConfigReport, ConfiguredLevel, EffectiveBucket, EffectiveLimits, EraseReport, Grants,
    LimitScale, LimitsEdit, LimitsReport, LiveLeases, OperationOutcome, Page, PageToken, PauseEdit,
    PauseReport, Peek, PlanUse, PolicyEdit, PolicyReport, Purge, PurgeReport, RateLimiter, Refund,
    ScopeError, StoredBucket, StoredLease, SwitchEdit, SwitchReport, TopUser, Unreadable,
    UsageReport, UsageRow, UsageScope, UsageTotal,
};
pub use decide::{Decision, Grant};
#[cfg(feature = "yaml")]
pub use file::{FileError, LimitsFile, LimitsFileContents};
pub use session::{CacheStats, CircuitBreakerConfig, FakeClock};
pub use values::{
    BreakerState, ConfiguredRate, Degraded, Denied, Disabled, Error, LimitStatus, NeverFits,
    OnUnavailable, Prefetch, Settlement, Stats, VendorAdvice, VendorCount, VendorLimit,
    VendorReport,
};
pub use weirgate_shared::{
    AuditChange, AuditEvent, AuditId, AuditSubject, CalendarWindow, Class, ClassName, Config,
    ConfigError, ConfigFilter, ConfigLevel, ConfigPatch, ConfigStatus, Cron, DescriptionError,
    Entity, EntityDescription, EntityId, EpochMillis, Every, Granularity, Limit, LimitError,
    LimitKind, LimitMode, LimitName, MilliTokens, MilliTotal, NameError, Period, PlanName,
    QuotaWindow, RefillRule, Resource, Scale, Schedule, ScheduleRule, SessionWindow, Switch, Usage,
    UsageState, Versioned, Weekday, Window, WindowCode, WindowError, WindowUsage, ZoneName,
};
#[cfg(feature = "redis")]
pub use weirgate_store::RedisOptions;
pub use weirgate_store::{Clock, ConnectOptions, ErrorKind, StoreError, SystemClock, Table};

/// Compiles the examples of both READMEs and of the guide with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/guide/acquire.md")]
#[doc = include_str!("../../docs/guide/http.md")]
#[doc = include_str!("../../docs/guide/json.md")]
#[doc = include_str!("../../docs/guide/leases.md")]
#[doc = include_str!("../../docs/guide/lifecycle.md")]
#[doc = include_str!("../../docs/guide/limits.md")]
#[doc = include_str!("../../docs/guide/lists.md")]
#[doc = include_str!("../../docs/guide/operate.md")]
#[doc = include_str!("../../docs/guide/prefetch.md")]
#[doc = include_str!("../../docs/guide/shards.md")]
#[cfg_attr(feature = "testing", doc = include_str!("../../docs/guide/testing-your-code.md"))]
#[doc = include_str!("../../docs/guide/unavailability.md")]
#[doc = include_str!("../../docs/guide/usage.md")]
#[allow(missing_debug_implementations)]
pub struct Readme;

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
//!         grant.adjust("tpm", 1_213).await?;
//!     }
//!     Decision::Denied(denied) => println!("try again in {:?}", denied.retry_after),
//!     Decision::NeverFits(never) => println!("{never}"),
//!     Decision::Disabled(disabled) => println!("{disabled}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! - `limiter`, `builder`: [`RateLimiter`] and its [`Builder`]; `inner`: state that its clones
//!   share
//! - `acquire`: [`Acquire`]: one request, checked before anything is sent
//! - `acquire_all`: [`AcquireAll`]: several requests, all or none
//! - `decision`: [`Decision`], with the status of every limit
//! - `bucket`: the shards of a bucket, and the router that chooses among them
//! - `queue`: the waiters of one shard, which share its writes, and their worker
//! - `decide`: takes from all buckets of a request, or from none
//! - `grant`, `hold`, `settle`: [`Grant`]: adjust, renew, release, roll back
//! - `unavailable`: decisions without DynamoDB, and the circuit breaker; `requests` reports to it
//! - `prefetch`: tokens taken ahead, and acquires served from memory
//! - `peek`: [`Peek`]: balances, without taking
//! - `scope`: a grant around a piece of work
//! - `config`: limits and entities in the table, and which limits are in force
//! - `stats`, `telemetry`: counters, metrics and spans for operators
//! - `http`: limits in HTTP fields and bodies; `tower`: a layer that sends them
//! - `file`: limits from a YAML file; `blocking`: waiting without an async runtime
//! - `plan_time`: the time that writes are planned by
//! - `clock`, `error`

mod acquire;
mod acquire_all;
mod ages;
#[cfg(feature = "blocking")]
pub mod blocking;
mod bucket;
mod builder;
mod clock;
mod config;
mod decide;
mod decision;
mod error;
#[cfg(feature = "yaml")]
mod file;
mod grant;
mod hold;
pub mod http;
mod inner;
mod limiter;
mod limits;
mod peek;
mod plan_time;
mod prefetch;
mod queue;
mod requests;
mod scope;
mod settle;
mod stats;
mod telemetry;
#[cfg(feature = "tower")]
pub mod tower;
mod unavailable;
mod usage;

pub use acquire::Acquire;
pub use acquire_all::{AcquireAll, Grants};
pub use builder::Builder;
pub use clock::FakeClock;
pub use config::{CacheStats, Page, PageToken};
pub use decision::{Decision, Denied, Disabled, LimitStatus, NeverFits};
pub use error::Error;
#[cfg(feature = "yaml")]
pub use file::{FileError, LimitsFile};
pub use grant::{Grant, Settlement};
pub use limiter::RateLimiter;
pub use peek::{Balances, Peek};
pub use prefetch::Prefetch;
pub use scope::ScopeError;
pub use stats::Stats;
pub use unavailable::{CircuitBreakerConfig, Degraded, OnUnavailable};
pub use weirgate_shared::{
    AuditChange, AuditEvent, AuditId, AuditSubject, Config, ConfigError, ConfigFilter, ConfigLevel,
    ConfigStatus, Entity, EntityId, EpochMillis, Limit, LimitError, LimitMode, LimitName,
    MilliTokens, NameError, RefillRule, Resource, Usage, Window, WindowUsage,
};
pub use weirgate_store::{Clock, ConnectOptions, ErrorKind, StoreError, SystemClock, Table};

/// Compiles the examples of the README and of the guide with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/guide/acquire.md")]
#[doc = include_str!("../../docs/guide/http.md")]
#[doc = include_str!("../../docs/guide/leases.md")]
#[doc = include_str!("../../docs/guide/limits.md")]
#[doc = include_str!("../../docs/guide/prefetch.md")]
#[doc = include_str!("../../docs/guide/shards.md")]
#[doc = include_str!("../../docs/guide/unavailability.md")]
#[doc = include_str!("../../docs/guide/usage.md")]
#[allow(missing_debug_implementations)]
pub struct Readme;

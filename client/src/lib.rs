//! Rate limits shared through one DynamoDB table: token buckets taken in a single write, concurrency slots that come
//! back when their holder crashes, and usage that counts once.
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
//! - `limiter`: [`RateLimiter`] and its [`Builder`]
//! - `acquire`: [`Acquire`]: one request, checked before anything is sent
//! - `decision`: [`Decision`] and what it says of every limit
//! - `shards`: which shards of a bucket to ask, and when all of them
//! - `line`: callers of one shard share its writes; the acquire protocol
//! - `decide`: all buckets of a request give, or none does
//! - `grant`, `held`, `settling`: [`Grant`]: adjust, renew, release, roll back
//! - `prefetch`: tokens taken ahead, and acquires served from memory
//! - `scope`: a grant around a piece of work
//! - `clock`, `error`, `stats`

mod acquire;
mod clock;
mod decide;
mod decision;
mod error;
mod grant;
mod held;
mod limiter;
mod limits;
mod line;
mod prefetch;
mod scope;
mod settling;
mod shards;
mod stats;

pub use acquire::Acquire;
pub use clock::{Clock, FakeClock, SystemClock};
pub use decision::{Decision, Denied, Disabled, LimitStatus, NeverFits};
pub use error::Error;
pub use grant::{Grant, Settlement};
pub use limiter::{Builder, RateLimiter};
pub use prefetch::Prefetch;
pub use scope::ScopeError;
pub use stats::Stats;
pub use weirgate_shared::{EntityId, EpochMillis, Limit, LimitError, MilliTokens, Mode, NameError, Resource};
pub use weirgate_store::{Connection, StoreError, Table};

/// The README's examples are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[allow(missing_debug_implementations)]
pub struct Readme;

//! The aggregator: stream records in, usage snapshots, refills and splits out.
//!
//! # Layout
//!
//! - `function`: [`function`], as Lambda runs it; `config`: [`Config`] from the environment
//! - `handle`: [`handle`]: one event, by the four verbs below
//! - [`parse`]: an event to records, with `json` and `timestamp` below it
//! - [`plan`]: records to planned writes, with `split` for hot shards
//! - [`execute`]: planned writes to what became of them
//! - [`report`]: what became of them to a partial-batch response and the invocation's metrics
//! - [`replay`]: discarded batches to copies, for the command line

mod config;
pub mod execute;
mod function;
mod handle;
mod json;
pub mod parse;
pub mod plan;
pub mod replay;
pub mod report;
mod split;
mod timestamp;

pub use config::{Config, DEFAULT_TTL_DAYS, HOT_UNITS, REFILL_WRITES, TTL_DAYS};
pub use function::function;
pub use handle::{Handled, Invocation, handle, handle_next};
pub use report::{Response, Summary};
pub use split::Split;
pub use weirgate_runtime::LogBudget;

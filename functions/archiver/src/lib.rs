//! The archiver: audit events that the table has deleted as expired in, one object of the archive
//! bucket for each out.
//!
//! It is a function because EventBridge Pipes and Firehose deliver an event at least once, and bill 5
//! KB for each. In the aggregator, a fault of S3 would delay usage and splits.
//!
//! # Layout
//!
//! - `config`: [`Config`] from the environment
//! - [`parse`]: an event to the expired audit events in it
//! - [`plan`]: an expired event to its object; the name follows from the event's key
//! - `bucket`: [`Bucket`]: one signed request that writes an object, unless there is one of its name
//! - [`execute`]: objects to what became of them
//! - [`report`]: what became of them to a partial-batch response and the metrics of the invocation
//! - `handle`: [`handle()`]: all of these for one event; `function`: [`function()`]: the function as
//!   Lambda runs it

mod bucket;
mod config;
pub mod execute;
mod function;
mod handle;
pub mod parse;
pub mod plan;
pub mod report;

pub use bucket::{Bucket, PutError, Written};
pub use config::Config;
pub use function::function;
pub use handle::{Handled, Invocation, handle};
pub use report::{Response, Summary};

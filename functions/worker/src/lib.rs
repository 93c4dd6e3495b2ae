//! Both functions in one process, for a table in Redis: the aggregator on the table's stream of images, the
//! reconciler on its schedule. Of all processes with a worker on a table, one works at a time.
//!
//! # Layout
//!
//! - `worker`: [`Worker`]: the lock, and both functions while this process has it
//! - `reader`: batches of the stream to the aggregator; what fails in part comes again
//! - `event`: records as an event of Lambda
//! - `report`: [`Report`]: what the functions did

mod event;
mod reader;
mod report;
mod worker;

pub use report::{BatchSummary, Report, RunSummary, Work};
pub use worker::{Options, Worker};

//! The common parts of the functions, around their handlers.
//!
//! # Layout
//!
//! - `serve`: [`serve`]: logging, configuration, connection
//! - `runner`: [`Runner`]: the invocations of a process, each with its line
//! - `metrics_line`: [`MetricsLine`] of an invocation: a log line and its metrics
//! - `budget`: [`LogBudget`]: how much an invocation may log, and texts cut to it
//! - `log`: [`log_lines`]: JSON lines with the `timestamp` and `level` that Lambda reads
//! - `settings`: [`Settings`] of any function
//! - `variable`: [`required`], [`number`]: environment variables, and what keeps a function from
//!   starting
//! - `clock`: [`time_left`] of an invocation

mod budget;
mod clock;
mod log;
mod metrics_line;
mod runner;
mod serve;
mod settings;
mod variable;

pub use budget::{LogBudget, SHOWN, beginning, shorten};
pub use clock::time_left;
pub use lambda_runtime::Context;
pub use log::{log_lines, subscriber};
pub use metrics_line::{DIMENSIONS, Metric, MetricsLine, NAMESPACE, Unit};
pub use runner::{Function, Invoked, Invoking, Runner};
pub use serve::{answer, serve};
pub use settings::Settings;
pub use variable::{ConfigError, not_empty, number, required};

//! The common parts of the functions, around their handlers.
//!
//! # Layout
//!
//! - `serve`: [`serve`]: logging, configuration, connection, invocations;
//!   [`serve_without_table`]: without the connection
//! - `budget`: [`LogBudget`]: how much an invocation may log, and texts cut to it
//! - `log`: [`log_lines`]: JSON lines with the `timestamp` and `level` that Lambda reads
//! - `variable`: [`required`], [`number`]: environment variables, and what keeps a function from
//!   starting
//! - `clock`: [`time_left`] of an invocation

mod budget;
mod clock;
mod log;
mod serve;
mod variable;

pub use budget::{LogBudget, beginning, shorten};
pub use clock::time_left;
pub use log::{log_lines, subscriber};
pub use serve::{Answer, Function, Handler, answer, serve, serve_without_table};
pub use variable::{ConfigError, number, required};

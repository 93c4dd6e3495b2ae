//! What both functions need around their handlers.
//!
//! # Layout
//!
//! - `log`: [`log_lines`]: JSON lines with the `timestamp` and `level` that Lambda reads
//! - `variable`: [`required`], [`number`]: environment variables, and what keeps a function from starting
//! - `clock`: [`now`] and [`time_left`], read once per invocation

mod clock;
mod log;
mod variable;

pub use clock::{now, time_left};
pub use log::{log_lines, subscriber};
pub use variable::{ConfigError, number, required};

//! The metrics of the functions: their lines, as CloudWatch reads them, and what the template makes
//! of them.

mod invocations;
mod line;
mod template;

//! The metrics of the functions: their lines, as CloudWatch reads them, and what the template makes
//! of them.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod invocations;
mod line;
mod picture;
mod queries;

//! What the table knows, read through the client: usage reports, lists.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod report_costs;
mod reports;

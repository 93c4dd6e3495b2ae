//! What the table knows, read through the client: usage reports, lists; and the table itself.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod costs;
mod erase;
mod erased;
mod lists;
mod purge;
mod report_costs;
mod reports;
mod unreadable;

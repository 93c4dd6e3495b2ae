//! What the table knows, read through the client: usage reports, lists; and the table itself.

use weirgate_tests as fixtures;

mod costs;
mod erase;
mod erased;
mod lists;
mod purge;
mod report_costs;
mod reports;
mod unreadable;

//! Limits that are stored, inherited, loaded from files, and audited.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod acts;
mod audit;
mod cache;
mod descriptions;
mod hierarchy;
mod hierarchy_races;
mod limits_file;
mod moves;
mod props;
mod releases;
mod replace;
mod resolve;
mod schema;
mod set;
mod stops;
mod switches;

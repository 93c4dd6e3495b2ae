//! The tower layer, its header fields, real servers; and the metrics of a process.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod fields;
mod layer;
mod metrics;
mod servers;

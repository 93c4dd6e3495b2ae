//! The tower layer, its header fields, real servers; and the metrics of a process.

use weirgate_tests as fixtures;

mod fields;
mod layer;
mod metrics;
mod servers;

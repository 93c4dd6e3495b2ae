//! Many processes on one bucket; `make herds` runs these at full size.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod contended;
mod denials;
mod heat;
mod herd;

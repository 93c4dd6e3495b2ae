//! Properties of units, keys, items and planned writes, with the examples that no generator would
//! find.

mod model;

mod balances;
mod codec;
mod config;
mod copies;
mod extremes;
mod keys;
mod lives;
mod math;
mod merged;
mod rolls;
mod rules;
mod shards;
mod sizes;
mod ttl;
mod vectors;
mod write;
mod written;
mod years;

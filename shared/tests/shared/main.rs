//! Properties of units, keys, items and planned writes, with the examples that no generator would
//! find.

mod model;

mod calendar;
mod classes;
mod codec;
mod config;
mod contract;
mod extremes;
mod keys;
mod line;
mod lives;
mod math;
mod merged;
mod pauses;
mod quotas;
mod rules;
mod schedules;
mod shards;
mod sizes;
mod ttl;
mod windows;
mod write;
mod written;
mod years;

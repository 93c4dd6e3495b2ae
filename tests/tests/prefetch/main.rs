//! Prefetched tokens.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod acquires;
mod edge;
mod prefetch;
mod props;

//! Prefetched tokens.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod acquires;
mod edge;
mod outstanding;
mod prefetch;
mod props;

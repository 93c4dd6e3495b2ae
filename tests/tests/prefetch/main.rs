//! Prefetched tokens.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod edge;
mod prefetch;
mod props;

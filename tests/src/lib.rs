//! What the tests of several files set up. What these stand on is in the crate `weirgate-testkit`.

#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "read and used by tests alone"
)]

pub mod aggregator;
pub mod discarded;
pub mod fleet;
pub mod policy;
pub mod recorder;
pub mod sharded;
pub mod stored;

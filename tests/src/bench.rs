//! Measurements for `make bench`; each prints its rows.

pub mod aggregator;
pub mod reconciler;

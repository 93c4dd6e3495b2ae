//! A table that does not answer, and clocks that are wrong.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod away;
mod breaker_gauge;
mod clocks;
mod unreachable;

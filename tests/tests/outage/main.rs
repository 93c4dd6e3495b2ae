//! A table that does not answer, and clocks that are wrong.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod away;
mod clocks;
mod unreachable;

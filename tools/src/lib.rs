//! What the commands of the Makefile run.
//!
//! # Layout
//!
//! - [`bench`](mod@bench): what `make bench` measures
//! - [`demo`]: a deployed stack, driven and reported on
//! - [`drill`]: the commands of `docs/operations.md`, run on a deployed stack
//! - [`scaling`]: how far one key goes, computed

pub mod bench;
pub mod demo;
pub mod drill;
pub mod scaling;

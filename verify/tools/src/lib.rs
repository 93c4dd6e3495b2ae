//! What the commands of the Makefile run.
//!
//! # Layout
//!
//! - [`bench`](mod@bench): what `make bench` measures
//! - [`chart`]: charts as SVG
//! - [`demo`]: a deployed stack, driven and reported on
//! - [`drill`]: the commands of `docs/operations.md`, run on a deployed stack
//! - [`number`]: numbers as pages show them
//! - [`page`]: pages with computed parts
//! - [`scaling`]: how far one key goes, computed

pub mod bench;
pub mod chart;
pub mod demo;
pub mod drill;
pub mod number;
pub mod page;
pub mod scaling;

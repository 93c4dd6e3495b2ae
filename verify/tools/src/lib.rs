//! What the commands of the Makefile run.
//!
//! # Layout
//!
//! - [`bench`](mod@bench): what `make bench` measures
//! - [`scaling`]: how far one key goes, and what a month costs, computed
//! - [`number`], [`page`]: numbers and computed parts of pages

pub mod bench;
pub mod number;
pub mod page;
pub mod scaling;

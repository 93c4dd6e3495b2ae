//! What `make bench` measures, and the page it writes of it.
//!
//! # Layout
//!
//! - [`row`], [`mod@unit`]: one measured number: its spread over rounds, its target, how pages show it
//! - [`run`], [`machine`]: the numbers of a run, in `docs/benchmarks.json`
//! - [`scenario`], [`rivals`], [`round`], [`beside`]: the same calls for Weirgate and the systems
//!   that it is compared with
//! - [`acquire`], [`aggregator`], [`edge`], [`function`], [`heat`], [`local`], [`prefetch`],
//!   [`reconciler`]: Weirgate's own numbers, with [`connection`] and [`virtual_time`]
//! - [`cost`]: what a million requests cost
//! - [`parts`]: all of these, by name
//! - [`comparison`]: a run beside the committed one
//! - [`page`]: the computed parts of `docs/benchmarks.md`

pub mod acquire;
pub mod aggregator;
pub mod beside;
pub mod comparison;
pub mod connection;
pub mod cost;
pub mod edge;
pub mod function;
pub mod heat;
pub mod local;
pub mod machine;
pub mod page;
pub mod parts;
pub mod prefetch;
pub mod reconciler;
pub mod rivals;
pub mod round;
pub mod row;
pub mod run;
pub mod scenario;
pub mod unit;
pub mod virtual_time;

#[cfg(test)]
mod tests;

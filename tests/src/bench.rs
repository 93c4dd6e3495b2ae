//! What `make bench` measures.
//!
//! # Layout
//!
//! - [`row`], [`run`]: a measured number; all of a run, beside the committed one
//! - [`scenario`], [`rivals`]: the same calls for Weirgate and the systems it is compared with
//! - [`acquire`], [`aggregator`], [`edge`], [`function`], [`heat`], [`local`]: Weirgate's own
//!   numbers, over [`harness`]
//! - [`cost`]: what a million requests cost
//! - [`parts`]: all of these, by name

pub mod acquire;
pub mod aggregator;
pub mod cost;
pub mod edge;
pub mod function;
pub mod harness;
pub mod heat;
pub mod local;
pub mod parts;
pub mod rivals;
pub mod row;
pub mod run;
pub mod scenario;

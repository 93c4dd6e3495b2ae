//! What the end-to-end tests, the benchmarks and the demo stand on.
//!
//! # Layout
//!
//! - `dynamo`: [`Dynamo`]: an embedded DynamoDB under the real SDK, with faults on demand and its stream as Lambda events

mod dynamo;

pub use dynamo::{Dynamo, Fault};

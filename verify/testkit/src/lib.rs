//! What tests, the simulation and the tools stand on.
//!
//! # Layout
//!
//! - [`alarm`]: the alarms of the template, evaluated as CloudWatch does
//! - [`batches`]: stream batches of a load
//! - `dynamo`: [`Dynamo`]: an embedded DynamoDB under the real SDK, with faults on demand and its
//!   stream as Lambda events
//! - `partitions`: [`Partitions`]: what a table of DynamoDB takes, and how its transactions
//!   conflict, on virtual time
//! - [`emf`]: the metrics that CloudWatch makes of log lines
//! - [`heat`]: a hot bucket on virtual time
//! - `image`: items in DynamoDB's JSON as values
//! - [`lambda`]: Lambda's side of a function, for one event
//! - [`leased`]: buckets with leases, as values and in the table
//! - `lines`: the log lines of a function
//! - [`policy`]: IAM, as far as the template uses it
//! - `process`: [`Process`]: a deployed function on a test's table
//! - `redis`: [`RedisServer`], [`RedisCluster`]: Debian's redis-server, for one test
//! - `runtime`: [`runtime()`]: a runtime with paused time
//! - [`server`]: the embedded database behind HTTP, and other services of AWS
//! - [`shape`](mod@shape): what a request asks, without names and values
//! - [`template`](mod@template): `template.yaml`, read
//! - `temporary`: [`Temporary`]: a file or a folder that a test removes

pub mod alarm;
pub mod batches;
mod dynamo;
pub mod emf;
pub mod heat;
mod image;
pub mod lambda;
pub mod leased;
mod lines;
mod partitions;
pub mod policy;
mod process;
mod redis;
mod runtime;
pub mod server;
pub mod shape;
pub mod template;
mod temporary;

pub use dynamo::{Dynamo, Fault, Request, import};
pub use image::{attributes, bucket, live, snapshot};
pub use lines::Lines;
pub use partitions::{Counts, Limits, Partitions};
pub use process::Process;
pub use redis::{RedisCluster, RedisServer};
pub use runtime::runtime;
pub use temporary::Temporary;

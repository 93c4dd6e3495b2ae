//! The only crate of Weirgate that talks to DynamoDB: planned writes in, outcomes out.
//!
//! # Layout
//!
//! - `connect`: [`connect`] is the one place that builds an SDK client
//! - `credentials` (feature `chain`): credentials that take longer to load than an attempt
//! - `clock`, `skew`, `date`: [`Clock`], and [`CorrectedClock`], which corrects it by the dates of
//!   answers
//! - `table`: [`Table`] runs planned writes and reads, with retries that cannot apply anything
//!   twice
//! - `dynamo`: a table in DynamoDB, and what all requests to it have in common
//! - `bound`: responses that are rejected for their size before they are read
//! - `request`: what every backend is asked, and what it answers; `index`: the table's indexes
//! - `list`: items of one partition, page by page; `due`: those that are due
//! - `scan`: the whole table, page by page
//! - `transact`: planned writes to several items that all happen, or none
//! - `expression`: a planned write as expressions with placeholders
//! - `attribute`: values to the SDK's attributes and back
//! - `endpoint`: the URL of DynamoDB as a user gives it
//! - `request_endpoint`: the URL that requests were sent to
//! - `error`: [`StoreError`]: an error without a decision, and its [`ErrorKind`]; `error::classify`
//!   decides what an SDK error means for the write
//! - `idle`: HTTP connections, which a process that was frozen makes again
//! - `ids`: [`random_id`]: ids of writes and leases, from the operating system's generator
//! - `schema`: the table's definition, for local use
//! - `describe`: [`TableFacts`]: the table as AWS has it, against that definition
//! - `memory` (feature `memory`): [`MemoryTable`], a table in the process for tests
//! - `redis` (feature `redis`): a table in Redis or Valkey; [`RedisOptions`], [`ServerFacts`], and
//!   [`RecordStream`], the images from which usage is copied
//! - `store_url` (feature `redis`): [`StoreUrl`]: where that is, as users give it
//! - `meter`: [`CapacityMeter`] adds up the write units that DynamoDB reports
//! - `throttles`: [`ThrottleMeter`] counts throttled requests by their reason

mod attribute;
mod bound;
mod clock;
mod connect;
#[cfg(feature = "chain")]
mod credentials;
mod date;
mod describe;
mod due;
mod dynamo;
mod endpoint;
mod error;
mod expression;
mod idle;
mod ids;
mod index;
mod list;
#[cfg(feature = "memory")]
mod memory;
mod meter;
mod proxy;
#[cfg(feature = "redis")]
mod redis;
mod request;
mod request_endpoint;
mod scan;
mod schema;
mod skew;
#[cfg(feature = "redis")]
mod store_url;
mod table;
mod throttles;
mod transact;

pub use attribute::Item;
pub use aws_smithy_types::base64;
pub use clock::{Clock, SystemClock};
#[cfg(feature = "chain")]
pub use connect::sdk_config;
pub use connect::{ConnectOptions, Connection, connect, connect_with};
pub use describe::{IndexState, TableFacts};
pub use due::{Due, DuePage, Order};
pub use error::{ErrorKind, StoreError, chain};
pub use ids::{random_bits, random_id, seed_ids_of_thread};
pub use index::{BY_ENTITY, BY_RESOURCE, CHILDREN, Index, indexes};
pub use list::{Page, Query, SortKeys};
#[cfg(feature = "memory")]
pub use memory::MemoryTable;
pub use meter::{CapacityMeter, ConsumedUnits};
pub use proxy::https_connector;
#[cfg(feature = "redis")]
pub use redis::{
    RecordStream, RedisOptions, Replica, ServerFacts, StreamFacts, StreamRecord, Unread,
};
pub use request::{
    ActionOutcome, Consistency, Position, ReturnValues, ScanPage, TransactOutcome, WriteOutcome,
};
pub use schema::create_table;
pub use skew::CorrectedClock;
#[cfg(feature = "redis")]
pub use store_url::{PasswordFileError, StoreUrl, StoreUrlError};
pub use table::{ReadWithin, RetryPolicy, Table, backoff, refuse_url, short_name};
pub use throttles::{ThrottleMeter, ThrottleReason};

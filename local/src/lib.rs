//! The whole backend in one process, for development: the table, both functions, and no AWS.
//!
//! ```no_run
//! use weirgate_local::{LocalBackend, Options};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = LocalBackend::start(Options::default()).await?;
//! println!("callers use AWS_ENDPOINT_URL={}", backend.endpoint_url());
//! backend.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! - `backend`: [`LocalBackend`]: start in an order that leaves nothing behind, and stop
//! - `store_backend`: [`StoreBackend`]: the functions of a table in Redis
//! - [`limits`]: a limits file into the table
//! - `demo`: [`Demo`]: limits and traffic for a first look
//! - `functions`: the thread of both functions
//! - `mapping`: the table's stream to the aggregator, as Lambda's event source mapping does it
//! - `schedule`: the reconciler on its timer, and the deletion of expired items
//! - `actions`: [`Actions`]: what the functions did last
//! - `checkpoint`: how far the stream was handled, kept in the database
//! - `stream`: [`StreamReader`]: the records of the table's stream
//! - `server`: [`Server`]: the database behind HTTP
//! - `body`: the body of a request, in bounded time and memory
//! - [`listen`]: what both HTTP servers share: which requests they answer, and how many connections
//! - [`page`]: the live page, for any table
//! - [`why`]: what decides about a bucket, for the page and the command line
//! - `operation`: a request of DynamoDB's protocol, run by the database
//! - `database`: [`Embedded`]: the embedded database, in memory or in a folder

mod actions;
mod backend;
mod body;
mod checkpoint;
mod database;
mod demo;
mod functions;
pub mod limits;
pub mod listen;
mod mapping;
mod operation;
pub mod page;
mod schedule;
mod server;
mod store_backend;
mod stream;
pub mod why;

pub use actions::{Action, Actions};
pub use backend::{LocalBackend, Options, StartError};
pub use database::{DatabaseError, Embedded};
pub use demo::{Demo, Tenant};
pub use listen::HostName;
pub use mapping::{AGGREGATOR_TIMEOUT, BATCH_SIZE};
pub use schedule::RECONCILER_TIMEOUT;
pub use server::Server;
pub use store_backend::{StoreBackend, StoreOptions};
pub use stream::StreamReader;
pub use weirgate_worker::Work;

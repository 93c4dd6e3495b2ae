//! HTTP and JSON.
//!
//! # Layout
//!
//! - `server`: [`Server`]: listens, and serves until it is to stop
//! - `connection`: one connection; while it is idle it has no buffers
//! - `service`: from the head of a request to its response
//! - `token`: [`Token`]: the header that requests need
//! - `json`, `fields`: JSON values, and what each field must be
//! - `acquire`, `settle`, `peek`, `usage`, `health`, `metrics`: one file for each operation
//! - `refusal`: error bodies, with what a client may do next

mod acquire;
mod connection;
mod fields;
mod health;
mod json;
mod metrics;
mod peek;
mod refusal;
mod response;
mod server;
mod service;
mod settle;
mod token;
mod usage;

pub use crate::net::{Address, Bounds};
pub use connection::serve_in_memory;
pub use health::Health;
pub use server::Server;
pub use service::{Api, decode};
pub use token::Token;

//! HTTP and JSON.
//!
//! # Layout
//!
//! - `server`: [`Server`]: listens, bounds the connections, ends them
//! - `connection`: one connection; while it is idle it has no buffers
//! - `stream`: its bytes, and how long a client may take an answer
//! - `service`: from the head of a request to its response
//! - `body`: bodies of bounded size, read in bounded time and memory
//! - `json`, `fields`: JSON values, and what each field must be
//! - `acquire`, `settle`, `peek`, `usage`, `health`, `metrics`: one file for each operation
//! - `refusal`: error bodies, with what a client may do next

mod acquire;
mod body;
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
mod stream;
mod usage;

pub use health::Health;
pub use server::{Address, Bounds, Server};
pub use service::{Api, decode};

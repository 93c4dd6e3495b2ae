//! What the HTTP servers of a developer's machine share: the local table and the live page.
//!
//! # Layout
//!
//! - `origin`: [`check`]: whether a request is addressed to this server, and of no other site
//! - `connections`: [`serve`]: accepts connections, bounds them, and ends those that make no progress

mod connections;
mod origin;

pub use connections::{Bounds, serve};
pub use origin::{HostName, Refused, check};

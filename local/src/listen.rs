//! What the HTTP servers of a developer's machine share: the local table and the live page.
//!
//! # Layout
//!
//! - [`reached`]: where a server is, for clients on this machine
//! - `origin`: [`check`]: whether a request is addressed to this server, and of no other site
//! - `connections`: [`serve`]: accepts connections, bounds them, and ends those that make no progress

mod connections;
mod origin;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use connections::{Bounds, serve};
pub use origin::{HostName, Refused, check};

/// Returns the address at which clients on this machine reach what listens on `address`.
pub fn reached(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

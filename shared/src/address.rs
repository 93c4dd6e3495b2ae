//! Addresses of servers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns the address at which clients on this machine reach what listens on `address`.
#[must_use]
pub fn reached(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_reached_at_the_loopback_of_their_family_and_one_as_it_is() {
        for (listens, at) in [
            ("0.0.0.0:2774", "127.0.0.1:2774"),
            ("[::]:2774", "[::1]:2774"),
            ("10.0.0.7:2774", "10.0.0.7:2774"),
        ] {
            assert_eq!(reached(listens.parse().unwrap()), at.parse().unwrap());
        }
    }
}

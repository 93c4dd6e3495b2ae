//! The embedded DynamoDB behind HTTP.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use weirgate_local::Server;

use crate::Dynamo;

/// Serves the database from a thread of its own until the process ends; says where.
pub fn serve(dynamo: &Dynamo) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let server = Server::start(listener, dynamo.db(), vec![]).expect("a thread starts");
    server.detach()
}

/// Returns a port of 127.0.0.1 that is free, for a process that cannot choose one itself.
///
/// It is below 32768, from where the system chooses ports: no listener of another test gets it
/// between now and its use.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let ports = (0..COUNT).map(|_| {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        // Processes begin at different ones.
        let at = std::process::id().wrapping_mul(97).wrapping_add(tried) % COUNT;
        u16::try_from(FIRST + at).expect("a port is below 65536")
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let mut free = ports.filter(is_free);
    free.next().expect("a port is free")
}

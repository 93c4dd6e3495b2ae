//! The embedded DynamoDB behind HTTP.

use std::net::TcpListener;

use weirgate_local::Server;

use crate::Dynamo;

/// Serves the database from a thread of its own until the process ends; says where.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn serve(dynamo: &Dynamo) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let server = Server::start(listener, dynamo.db(), vec![]).expect("a thread starts");
    server.detach()
}

//! The binary as a sidecar, on an embedded DynamoDB behind HTTP.

mod acquire;
mod bodies;
mod connections;
mod fixtures;
mod guide;
mod life;
mod openapi;
mod schema;
mod settle;
mod unsettled;

//! The binary as a sidecar, on an embedded DynamoDB behind HTTP.

mod acquire;
mod bodies;
mod connections;
mod dropped;
mod fixtures;
mod framing;
mod guide;
mod hostile;
mod life;
mod openapi;
mod schema;
mod served;
mod settle;
mod statuses;
mod unsettled;

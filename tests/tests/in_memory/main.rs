//! The table in memory: it answers as the embedded DynamoDB does, and applications test with it.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod application;
mod quiet;
mod requests;
mod same;
mod shadow;
mod step;
mod world;

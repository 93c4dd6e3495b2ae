//! The rate limit service over a real connection, with the messages that are generated from Envoy's
//! interface, on an embedded DynamoDB.

mod bounds;
mod calls;
mod decisions;
mod fixture;
mod kuadrant;
mod reports;
mod shadow;
mod unavailable;

pub use fixture::RULES;

//! The binary as a Lambda extension, under an Extensions API of our own, on an embedded DynamoDB
//! behind HTTP.

mod freeze;
mod killed;
mod lambda;
mod life;

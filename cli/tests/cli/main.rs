//! The binary, as a terminal or a script runs it, on an embedded DynamoDB behind HTTP.

mod commands;
mod doctor;
mod every_command;
mod fixtures;
mod limits;
mod load;
mod variables;

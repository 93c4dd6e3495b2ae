//! The binary, as a terminal or a script runs it, on an embedded DynamoDB behind HTTP, or on Redis.

mod acquire;
mod bulk;
mod commands;
mod docs;
mod doctor;
mod doctor_of_stores;
mod dry_runs;
mod duplicates;
mod every_command;
mod fixtures;
mod gate;
mod limits;
mod lists;
mod load;
mod local;
mod network;
mod outcomes;
mod plan_files;
mod secrets;
mod stores;
mod terminal;
mod unreadable;
mod variables;
mod why;
mod wrong_uses;

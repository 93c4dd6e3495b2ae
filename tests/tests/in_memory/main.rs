//! The table in memory: it answers as the embedded DynamoDB does, and applications test with it.

use weirgate_tests as fixtures;

mod application;
mod quiet;
mod requests;
mod same;
mod shadow;
mod step;
mod world;

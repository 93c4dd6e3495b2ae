//! Weirgate's protocol as a state machine that is explored exhaustively: two clients, two shards,
//! one limit.
//!
//! `weirgate-shared` plans the writes, as it does for the client and the functions. An evaluator of
//! DynamoDB's conditions applies them to items. So the model runs the real plans; it models only
//! the network, the clock, and the clients' and functions' steps between two writes.
//!
//! # Layout
//!
//! - `bounds`: [`Bounds`]: how large the model is
//! - [`sizes`]: the sizes that are explored
//! - `guard`: conditions by name, so that each can be taken out and missed
//! - `table`: the items of the bucket, and what is counted in them
//! - `client`: the open request of a client
//! - `ledger`: grants and returns, kept beside the table
//! - `state`: all of that together, with the open run of a function, and writes under way
//! - `protocol`: [`Protocol`]: one size, its keys, and the events so far
//! - `step`: [`Step`]: everything that may happen in a state: the state machine that is explored
//! - `client_steps`, `function_steps`, `apply`: what happens then
//! - `properties`: what must hold in every state
//! - `runs`: its runs, as the aggregator and a reader of usage see them
//! - `copying`: [`Copying`]: the usage of these runs, copied and read
//! - `coverage`: the events that must happen at least once

mod apply;
mod bounds;
mod client;
mod client_steps;
mod copying;
mod coverage;
mod function_steps;
mod guard;
mod ledger;
mod properties;
mod protocol;
mod runs;
pub mod sizes;
mod state;
mod step;
mod table;

pub use bounds::Bounds;
pub use client::RequestKind;
pub use copying::{Copies, Copying};
pub use coverage::Event;
pub use guard::{Guard, Kind};
pub use protocol::Protocol;
pub use state::{Job, State};
pub use step::{Fate, Step};

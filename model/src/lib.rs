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
//! - `guard`: conditions by name, so that each can be taken out and missed
//! - `table`: the items of the bucket, and what is counted in them
//! - `client`: a client, from one answer to the next
//! - `work`: what the functions read, and write a while later
//! - `books`: what was admitted and given back
//! - `state`: all of that together, and what a write does to it
//! - `protocol`: [`Protocol`]: everything that may happen, and what must hold
//! - `runs`: its runs, as the aggregator and a reader of usage see them
//! - `copying`: [`Copying`]: the usage of these runs, copied and read
//! - [`sizes`]: the sizes that are explored
//! - `reached`: what must happen at least once

mod books;
mod bounds;
mod client;
mod copying;
mod guard;
// The property tests' own: one evaluator for both.
#[allow(dead_code, reason = "the property tests ask more of an item")]
#[path = "../../shared/tests/model/item.rs"]
mod item;
mod protocol;
mod reached;
mod runs;
pub mod sizes;
mod state;
mod table;
mod work;

pub use bounds::Bounds;
pub use client::Wish;
pub use copying::{Copies, Copying};
pub use guard::{Guard, Kind};
pub use protocol::{Fate, Protocol, Step};
pub use reached::Event;
pub use state::State;
pub use work::Job;

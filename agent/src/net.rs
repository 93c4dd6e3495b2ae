//! What all listeners share: connections, and the bytes that arrive on them, bounded together.
//!
//! # Layout
//!
//! - `listen`: addresses, listeners, and the loop that accepts
//! - `clients`: [`Clients`]: the connections of all listeners, and their end
//! - `room`: places that give way, the longest wait first
//! - `stream`: the bytes of one connection: how long a client may take an answer, and bodies of
//!   bounded size, read in bounded time and memory

mod clients;
mod listen;
mod room;
pub(crate) mod stream;

pub use clients::{Bounds, Clients};
pub(crate) use clients::{Client, Protocol, Stop};
pub use listen::Address;
pub(crate) use listen::{Listener, accept};
pub(crate) use room::Place;

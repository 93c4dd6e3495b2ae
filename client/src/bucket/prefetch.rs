//! Prefetch: a client takes a block of tokens about every second, and serves acquires from memory.
//!
//! A bucket of a resource with prefetch has a [`Pool`]. A request that the pool covers needs no
//! write; any other waits for the next block, or goes to the table. Tokens of a block return when
//! they are too old. No other process ever restores a block, because its tokens may have been
//! spent.

mod demand;
mod fetch;
mod pool;
mod state;

pub(crate) use fetch::{acquire, drain, return_in_time};
pub(crate) use pool::Pool;

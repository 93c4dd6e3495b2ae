//! Checks invariants at the end of a run, from the callers' record.

mod admitted;
mod consumed;
mod counted;
pub(crate) mod finality;
mod windows;

pub(crate) use admitted::refill_in;
pub use admitted::{admitted, taken};
pub use consumed::consumed;
pub use counted::{counted, counted_since};
pub use windows::windows;

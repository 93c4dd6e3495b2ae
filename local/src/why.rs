//! What decides about a bucket: for the command line and the live page.
//!
//! # Layout
//!
//! - `read`: [`Reasons::read`]: a few reads of the table
//! - `reasons`: [`Reasons`]: what they say
//! - `advice`: what to run next
//! - `saturation`: [`Saturation`]: the use of a limit against its refill
//! - `fields`: changes as fields with their text before and after

mod advice;
mod fields;
mod read;
mod reasons;
mod saturation;
mod window;

pub use advice::options;
pub use fields::{Field, Fields, change_fields, config_fields, differing, entity_fields};
pub use reasons::{Change, Known, LEASES, Level, Next, Reasons, is_of};
pub use saturation::{Saturation, Used};
pub use window::resets;

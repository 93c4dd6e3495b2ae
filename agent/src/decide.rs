//! What every protocol shares: a request becomes a call of the limiter, and its answer a value.
//!
//! # Layout
//!
//! - `request`: [`Request`]: what a caller asks of one or several buckets, all or nothing
//! - `granted`: [`Granted`]: what it was given, until it becomes a token
//! - `grant_token`: tokens of several buckets as one text
//! - `settle`: [`Settle`] and [`TakeMore`]: what a caller does with a grant
//! - `take_more`: more tokens within a grant, all or nothing
//! - `gate`: [`Gate`]: how many requests are in flight, and their memory
//! - `measures`: [`Measures`]: outcomes and durations
//! - `decider`: [`Decider`]: the limiter with its gate and its measures

mod decider;
mod gate;
mod grant_token;
mod granted;
mod measures;
mod request;
mod settle;
mod take_more;

pub use decider::Decider;
pub use gate::{Full, Gate, Permit};
pub(crate) use grant_token::{join as join_grants, restore as restore_grants};
pub use granted::Granted;
pub use measures::{Call, HISTOGRAM_BOUNDS, Measured, Measures, Measuring, Outcome};
pub use request::{BucketRequest, Request, Take};
pub use settle::{End, Settle, SettleError, Settled, TakeMore};

//! Decides a request over all its buckets: takes from all of them, or from none.

mod decider;
mod decision;
mod fallback;
mod grant;
mod local;
mod settlement;
mod stop;
mod take_more;
mod targets;
mod token;

pub(crate) use decider::decide;
pub use decision::Decision;
pub(crate) use decision::{count_decision, describe, instrumented};
pub use grant::Grant;
pub(crate) use grant::{Granted, Uncounted};
pub(crate) use local::LocalBuckets;
pub(crate) use stop::stopped;
pub(crate) use targets::ResolvedRequest;
pub(crate) use token::restore;

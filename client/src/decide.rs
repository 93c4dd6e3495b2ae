//! Decides a request over all its buckets: takes from all of them, or from none.

mod decider;
mod decision;
mod fallback;
mod grant;
mod granted;
mod local;
mod metrics;
mod stop;
mod take_more;
mod targets;

pub(crate) use decider::decide;
pub use decision::Decision;
pub use grant::Grant;
pub(crate) use grant::restore;
pub(crate) use granted::{Granted, Uncounted};
pub(crate) use local::LocalBuckets;
pub(crate) use metrics::{count_decision, describe, instrumented};
pub(crate) use stop::stopped;
pub(crate) use targets::ResolvedRequest;

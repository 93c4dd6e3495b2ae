//! What was decided on a request, at each level: a shard, a bucket, several buckets.

use std::convert::Infallible;

use super::Denied;

/// What was decided on a request. `E` says what to do where this level alone cannot decide.
#[derive(Debug)]
pub(crate) enum Outcome<T, E = Infallible, D = Denied> {
    Granted(T),
    Denied(D),
    /// This level cannot decide.
    Elsewhere(E),
}

/// Denials of several buckets, with the places of their requests.
pub(crate) type Denials = Vec<(usize, Denied)>;

//! The size of the model.

use weirgate_shared::{EpochMillis, Limit, Millis};

use crate::model::coverage::Event;
use crate::model::guard::{Guard, Kind};

/// Possible steps, their numbers, and the removed condition.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Limit that clients compete for.
    pub limit: Limit,
    /// Another one, which the second client brings to the bucket; instead of the first one, if it
    /// has the same name.
    pub brings: Option<Limit>,
    /// When it all begins.
    pub start: EpochMillis,
    /// Length of a clock tick.
    pub tick: Millis,
    /// Number of ticks.
    pub ticks: i64,
    /// Amounts that a client may request, in tokens.
    pub needs: Vec<i64>,
    /// Number of requests of each client.
    pub requests: [u8; 2],
    /// Most writes of a client for one request.
    pub attempts: u8,
    /// Duration of a take's lease, in ticks; without one, takes have no lease.
    pub lease: Option<i64>,
    /// Clients that release their lease; the others let it expire.
    pub releases: [bool; 2],
    /// Whether leases are renewed for one more tick.
    pub renews: bool,
    /// Whether takes are rolled back.
    pub rolls_back: bool,
    /// Number of faults: lost, late or duplicate requests and responses, and crashes.
    pub faults: u8,
    /// Number of function steps, on images that may be outdated.
    pub works: u8,
    /// Kinds of function steps.
    pub jobs: Vec<Kind>,
    /// Whether shard 0 is split a second time.
    pub splits_twice: bool,
    /// Whether nothing else happens between the writes of a split.
    pub splits_at_once: bool,
    /// Events that must happen at least once in a model of this size.
    pub happens: Vec<Event>,
    /// Whether the stream's images are kept, to be copied.
    pub keeps_stream: bool,
    /// Condition that is removed.
    pub without: Option<Guard>,
}

//! How large the model is.

use weirgate_shared::{EpochMillis, Limit, Millis};

use crate::guard::{Guard, Kind};
use crate::reached::Event;

/// What may happen, how often, and what is taken out.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The limit that clients compete for.
    pub limit: Limit,
    /// Another one, which the second client brings to the bucket.
    pub brings: Option<Limit>,
    /// When it all begins.
    pub start: EpochMillis,
    /// How long a tick of the clock is.
    pub tick: Millis,
    /// How many there are.
    pub ticks: i64,
    /// What a client may ask for, in tokens.
    pub needs: Vec<i64>,
    /// How often each client asks.
    pub requests: [u8; 2],
    /// How many writes a client makes for one request before it gives up.
    pub attempts: u8,
    /// How many ticks the lease of a take lasts; without one, nothing is held.
    pub lease: Option<i64>,
    /// Which client releases its lease; one that does not lets it expire.
    pub releases: [bool; 2],
    /// Whether leases are made to last a tick longer.
    pub renews: bool,
    /// Whether what was taken is given back unused.
    pub rolls_back: bool,
    /// Requests and answers lost, late or doubled, and crashes.
    pub faults: u8,
    /// What the functions do on images that may be old by then.
    pub works: u8,
    /// What the functions do.
    pub jobs: Vec<Kind>,
    /// Whether shard 0 is split again after it was split.
    pub splits_twice: bool,
    /// Whether nothing else happens between the writes of a split.
    pub splits_at_once: bool,
    /// What must happen at least once in a model of this size.
    pub happens: Vec<Event>,
    /// Whether the images of the stream are kept, to be copied.
    pub keeps_stream: bool,
    /// The condition that is taken out.
    pub without: Option<Guard>,
}

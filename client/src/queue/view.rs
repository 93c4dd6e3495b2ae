//! Cached copies of shards.

use std::sync::Arc;

use weirgate_shared::Shard;

use crate::session::Moment;

/// A copy of the shard as a response showed it, and the times of that response and its request.
#[derive(Debug, Clone)]
pub(crate) struct ShardView {
    pub(crate) shard: Arc<Shard>,
    pub(crate) seen_at: Moment,
    /// When the request was sent: a write was planned then.
    pub(crate) sent_at: Moment,
    /// Whether the wall clock has jumped ahead since the request that brought the view was sent: the
    /// process was frozen, or the clock was set.
    pub(crate) predates_clock_jump: bool,
}

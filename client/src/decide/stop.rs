//! Whether an operator has stopped a request: by the switches that are cached, or by a read.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{BucketKey, Switches};

use crate::bucket::BucketState;
use crate::config::read_switches;
use crate::session::{KnownSwitches, Session};
use crate::values::Disabled;

/// What the cached switches say about a request.
pub(super) enum Known {
    /// It is stopped.
    Stopped(Disabled),
    /// It is not stopped.
    Running,
    /// It was not stopped, and the switches are due to be read: while the request is decided, so
    /// that it waits for nothing.
    Due,
    /// Nothing is known, or it was stopped and the switches are due to be read: before the request
    /// is decided, so that a stopped one writes nothing.
    Unknown,
}

/// Returns what the cached switches say.
pub(super) fn by_cache(session: &Session, buckets: &[Arc<BucketState>]) -> Known {
    let KnownSwitches { latest, is_due } = session.config_cache.switches.known(session);
    match latest.map(|switches| disabled(&switches, buckets)) {
        Some(Some(disabled)) if !is_due => Known::Stopped(disabled),
        Some(None) if !is_due => Known::Running,
        Some(None) => Known::Due,
        // One bucket is read in the same request. For several, that would be one more.
        None if buckets.len() > 1 => Known::Due,
        Some(Some(_)) | None => Known::Unknown,
    }
}

/// Reads the switches if they are due. Returns whether the request is stopped.
pub(super) async fn by_table(
    session: &Session,
    buckets: &[Arc<BucketState>],
    timeout: Duration,
) -> Option<Disabled> {
    let only = match buckets {
        [only] => Some(&only.queues.first().shard),
        _ => None,
    };
    let switches = read_switches(session, only.map(|shard| &**shard), timeout).await;
    disabled(&switches, buckets)
}

/// Returns whether an operator has stopped a request that nothing is taken for.
pub(crate) async fn is_stopped(session: &Session, buckets: &[Arc<BucketState>]) -> bool {
    match by_cache(session, buckets) {
        Known::Stopped(_) => true,
        Known::Running => false,
        Known::Due | Known::Unknown => {
            let timeout = session.settings.timeout;
            by_table(session, buckets, timeout).await.is_some()
        }
    }
}

fn disabled(switches: &Switches, buckets: &[Arc<BucketState>]) -> Option<Disabled> {
    buckets.iter().find_map(|bucket| {
        let BucketKey {
            entity, resource, ..
        } = &bucket.key;
        let level = switches.stopping(entity, resource)?;
        Some(Disabled {
            entity: entity.clone(),
            resource: resource.clone(),
            stopped_at: Some(level),
        })
    })
}

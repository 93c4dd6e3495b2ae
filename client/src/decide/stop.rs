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

/// A bucket whose entity and resource an operator can stop.
#[derive(Debug, Clone)]
pub(crate) struct Stoppable {
    pub(crate) bucket: Arc<BucketState>,
    /// Whether the request is for this bucket. Its ancestors follow it.
    pub(crate) is_own: bool,
}

/// Returns what the cached switches say.
pub(super) fn by_cache(session: &Session, buckets: &[Stoppable]) -> Known {
    let KnownSwitches {
        latest,
        is_due,
        is_changed,
    } = session.config_cache.switches.known(session);
    match latest.map(|switches| disabled(&switches, buckets)) {
        Some(Some(disabled)) if !is_due => Known::Stopped(disabled),
        Some(None) if !is_due => Known::Running,
        Some(None) if !is_changed => Known::Due,
        // One bucket is read in the same request. For several, that would be one more.
        None if buckets.len() > 1 => Known::Due,
        Some(_) | None => Known::Unknown,
    }
}

/// Reads the switches if they are due. Returns whether the request is stopped.
pub(super) async fn by_table(
    session: &Arc<Session>,
    buckets: &[Stoppable],
    timeout: Duration,
) -> Option<Disabled> {
    let only = match buckets {
        [only] => Some(&only.bucket.queues.first().shard),
        _ => None,
    };
    let switches = read_switches(session, only, timeout).await;
    disabled(&switches, buckets)
}

/// Returns whether an operator has stopped a request that nothing is taken for.
pub(crate) async fn is_stopped(session: &Arc<Session>, buckets: &[Stoppable]) -> bool {
    match by_cache(session, buckets) {
        Known::Stopped(_) => true,
        Known::Running => false,
        Known::Due | Known::Unknown => {
            let timeout = session.settings.timeout;
            by_table(session, buckets, timeout).await.is_some()
        }
    }
}

/// Returns whether the last switches that were read stop a request, however old they are.
pub(super) fn by_last_read(session: &Session, buckets: &[Stoppable]) -> Option<Disabled> {
    let known = session.config_cache.switches.known(session);
    disabled(&*known.latest?, buckets)
}

fn disabled(switches: &Switches, buckets: &[Stoppable]) -> Option<Disabled> {
    let mut is_exempt = false;
    buckets.iter().find_map(|Stoppable { bucket, is_own }| {
        let BucketKey {
            entity, resource, ..
        } = &bucket.key;
        if *is_own {
            is_exempt = switches.exempts(entity, resource);
        }
        let level = switches.stopping(entity, resource)?;
        if is_exempt && level.entity().is_none() {
            return None;
        }
        Some(Disabled {
            entity: entity.clone(),
            resource: resource.clone(),
            stopped_at: Some(level),
        })
    })
}

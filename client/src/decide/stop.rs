//! Whether an operator has stopped a request: by the switches that are cached, or by a read.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::write::MAX_ANCESTORS;
use weirgate_shared::{BucketKey, ConfigLevel, EntityId, Switches};

use crate::bucket::BucketState;
use crate::config::{Ancestors, ancestors, read_entities, read_switches};
use crate::session::{KnownSwitches, Session, deadline};
use crate::values::Disabled;

/// What the cached switches say about a request.
pub(super) enum Known {
    /// It is stopped.
    Stopped(Disabled),
    /// It is not stopped.
    Running,
    /// It was not stopped, and the switches or its ancestors are due to be read: while the request
    /// is decided, so that it waits for nothing.
    Due,
    /// Nothing is known, or it was stopped and a read is due: before the request is decided, so that
    /// a stopped one writes nothing.
    Unknown,
}

/// Returns what the cached switches say about a request for these buckets and their ancestors'.
pub(super) fn by_cache(session: &Session, buckets: &[Arc<BucketState>]) -> Known {
    let KnownSwitches { latest, is_due } = session.config_cache.switches.known(session);
    let Some(switches) = latest else {
        // One bucket is read in the same request. For several, that would be one more.
        return match buckets {
            [_] => Known::Unknown,
            _ => Known::Due,
        };
    };
    match disabled(session, &switches, buckets) {
        (Some(disabled), unread) if !is_due && unread.is_empty() => Known::Stopped(disabled),
        (None, unread) if !is_due && unread.is_empty() => Known::Running,
        (None, _) => Known::Due,
        (Some(_), _) => Known::Unknown,
    }
}

/// Reads the switches and the ancestors if they are due. Returns whether the request is stopped.
///
/// Ancestors that cannot be read stop nothing; those known before do.
pub(super) async fn by_table(
    session: &Arc<Session>,
    buckets: &[Arc<BucketState>],
    timeout: Duration,
) -> Option<Disabled> {
    let until = deadline(timeout);
    let only = match buckets {
        [only] => Some(&only.first_queue().shard),
        _ => None,
    };
    let switches = read_switches(session, only, timeout).await;
    let (disabled, unread) = disabled(session, &switches, buckets);
    let Some(first) = buckets.first().filter(|_| !unread.is_empty()) else {
        return disabled;
    };
    let known = || {
        let (_, unread) = self::disabled(session, &switches, buckets);
        unread.is_empty().then_some(())
    };
    let of = (session.clone(), switches.clone(), buckets.to_vec());
    let read = async move |_| {
        let (session, switches, buckets) = of;
        for _ in 0..=MAX_ANCESTORS {
            let (_, unread) = self::disabled(&session, &switches, &buckets);
            if unread.is_empty() || read_entities(&session, &unread).await.is_err() {
                break;
            }
        }
    };
    let read = first.ancestors.share(session, until, known, read);
    read.await.ok();
    self::disabled(session, &switches, buckets).0
}

/// Returns whether an operator has stopped a request, before it is decided.
pub(crate) async fn stopped(
    session: &Arc<Session>,
    buckets: &[Arc<BucketState>],
    timeout: Duration,
) -> Option<Disabled> {
    match by_cache(session, buckets) {
        Known::Stopped(disabled) => Some(disabled),
        Known::Running => None,
        Known::Due | Known::Unknown => by_table(session, buckets, timeout).await,
    }
}

/// Returns whether the newest switches stop a request, however old they are.
pub(super) fn by_last_read(session: &Session, buckets: &[Arc<BucketState>]) -> Option<Disabled> {
    let known = session.config_cache.switches.known(session);
    disabled(session, &*known.latest?, buckets).0
}

/// Returns how the switches stop a request, and the entities that have to be read to know.
///
/// A stop of an ancestor, or of its plan, is meant for its descendants, whatever they take from. A stop of
/// the resource or the system decides by the entity itself.
fn disabled(
    session: &Session,
    switches: &Switches,
    buckets: &[Arc<BucketState>],
) -> (Option<Disabled>, Vec<EntityId>) {
    let (has_stopped_entities, has_exempt_plans) =
        (switches.stop_entities(), switches.exempt_plans());
    let mut all_unread = vec![];
    let of_bucket = |bucket: &Arc<BucketState>| {
        let BucketKey { entity, resource, .. } = &bucket.key;
        let disabled = |entity: &EntityId, stopped_at: ConfigLevel| Disabled {
            entity: entity.clone(),
            resource: resource.clone(),
            stopped_at: Some(stopped_at),
        };
        // As far as its names tell. Only a plan that is exempt can lift a stop of a wider level.
        match switches.stopping(entity, None, resource) {
            Some(level) if level.entity().is_some() || !has_exempt_plans => {
                return Some(disabled(entity, level));
            }
            None if !has_stopped_entities => return None,
            _ => {}
        }
        let Ancestors { known, unread } = ancestors(session, entity);
        all_unread.extend(unread);
        known.iter().enumerate().find_map(|(generation, (ancestor, plan))| {
            let level = switches.stopping(ancestor, plan.as_ref(), resource)?;
            (generation == 0 || level.has_members()).then(|| disabled(ancestor, level))
        })
    };
    let disabled = buckets.iter().find_map(of_bucket);
    (disabled, all_unread)
}

//! The switches by which an operator stops levels: one item for all of them, which every process
//! reads once per [`config_ttl`](crate::Builder::config_ttl), wherever its limits are from.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{ItemError, ItemKey, Namespace, Switches, switches_key};
use weirgate_store::{Consistency, Item};

use crate::queue::ShardState;
use crate::session::{Moment, Session, deadline};
use crate::values::{Error, count};

/// Returns the switches of the namespace, and reads them if they are due. `first` is the first shard
/// of the bucket that is asked next; if it is not known, the same request reads it.
///
/// Switches that cannot be read within `wait` stop nothing: the last ones stay, or there are none.
/// The read goes on, so a stop is known to the next request even where every request has less time
/// than a read takes. The take that follows finds whether DynamoDB is unavailable.
pub(crate) async fn read_switches(
    session: &Arc<Session>,
    first: Option<&Arc<ShardState>>,
    wait: Duration,
) -> Arc<Switches> {
    let cache = &session.config_cache.switches;
    if let Some(known) = cache.fresh(session) {
        return known;
    }
    let first = first.cloned();
    let known = tokio::time::timeout(wait, async {
        let turn = Arc::clone(&cache.loading).lock_owned().await;
        if let Some(known) = cache.fresh(session) {
            return Some(known);
        }
        let session = Arc::clone(session);
        // Only a runtime that shuts down drops the task.
        tokio::spawn(async move {
            let switches = read_now(&session, first.as_deref()).await;
            drop(turn);
            switches
        })
        .await
        .ok()
    });
    let known = known.await.ok().flatten();
    known.unwrap_or_else(|| cache.known(session).latest.unwrap_or_default())
}

async fn read_now(session: &Session, first: Option<&ShardState>) -> Arc<Switches> {
    let generation = session.config_cache.generation();
    let sent = session.ages.sent();
    let read = read(session, first, session.settings.timeout).await;
    record_switches(session, generation, sent.at, read)
}

/// Caches switches that were read at `read_at`, or the failure. Returns those in force.
pub(super) fn record_switches(
    session: &Session,
    generation: u64,
    read_at: Moment,
    read: Result<Switches, Error>,
) -> Arc<Switches> {
    let cache = &session.config_cache;
    match read {
        Ok(read) => {
            for (level, error) in &read.unreadable {
                let stopped = level.as_ref().map(tracing::field::display);
                tracing::warn!(%error, stopped, "a switch cannot be read: its level is stopped");
            }
            cache.insert_switches(generation, read_at, read)
        }
        Err(error) => {
            tracing::warn!(%error, "switches could not be read: using the last ones");
            cache.switches.record_failure(session.ages.now())
        }
    }
}

/// Returns the key of the switches, if they are due to be read.
pub(super) fn due_key(session: &Session) -> Option<ItemKey> {
    let is_due = session.config_cache.switches.fresh(session).is_none();
    is_due.then(|| switches_key(&session.namespace))
}

async fn read(
    session: &Session,
    first: Option<&ShardState>,
    timeout: Duration,
) -> Result<Switches, Error> {
    let key = switches_key(&session.namespace);
    let bucket = first.filter(|first| first.is_unknown());
    let of_bucket = bucket.map(|first| first.key.item_key());
    let keys: Vec<_> = [key.clone()].into_iter().chain(of_bucket.clone()).collect();
    count(&session.config_cache.counters.loads, 1);
    let _permit = session.breaker.admit()?;
    let (sent, until) = (session.ages.sent(), deadline(timeout));
    // A process reads its own change.
    let consistency = match session.config_cache.generation() {
        0 => Consistency::Eventual,
        _ => Consistency::Strong,
    };
    let read = session.read_with(&keys, consistency, None);
    let Ok(items) = tokio::time::timeout_at(until, read).await else {
        let error = session.timeout_error("BatchGetItem of switches", timeout);
        return Err(error.into());
    };
    let items = items?;
    let find = |key: &ItemKey| items.iter().find(|item| item.key().as_ref() == Some(key));
    if let Some((first, key)) = bucket.zip(of_bucket) {
        first.record_item(find(&key), sent, session);
    }
    stored_switches(&key, find(&key))
}

/// Returns the switches in an item.
pub(crate) fn stored_switches(key: &ItemKey, item: Option<&Item>) -> Result<Switches, Error> {
    let read = item
        .map(|item| weirgate_shared::read_switches(item.attributes()))
        .transpose();
    let unreadable = |error: ItemError| Error::UnreadableItem {
        pk: key.pk.clone(),
        sk: key.sk.clone(),
        error,
    };
    read.map(Option::unwrap_or_default).map_err(unreadable)
}

/// Returns the error of a part of the switches that cannot be read.
pub(crate) fn unreadable_switches(namespace: &Namespace, error: &ItemError) -> Error {
    let ItemKey { pk, sk } = switches_key(namespace);
    let error = error.clone();
    Error::UnreadableItem { pk, sk, error }
}

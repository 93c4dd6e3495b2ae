//! The switches by which an operator stops levels: one item for all of them, which every process
//! reads once per [`config_ttl`](crate::Builder::config_ttl), wherever its limits are from.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{ItemKey, Switches, switches_key};
use weirgate_store::Item;

use super::stored::{read_items, unreadable};
use crate::queue::ShardState;
use crate::session::{Session, SwitchRequest, deadline};
use crate::values::Error;

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
    let (reading, first, until) = (Arc::clone(session), first.cloned(), deadline(wait));
    let read = async move |_| read(&reading, first.as_deref()).await;
    let known = cache.loading.share(session, until, || cache.fresh(session), read);
    let known = known.await.ok().flatten();
    known.unwrap_or_else(|| cache.known(session).latest.unwrap_or_default())
}

async fn read(session: &Arc<Session>, first: Option<&ShardState>) -> Arc<Switches> {
    let key = switches_key(&session.namespace);
    let bucket = first.filter(|first| first.is_unknown());
    let of_bucket = bucket.map(|first| first.key.item_key());
    let keys: Vec<_> = [key.clone()].into_iter().chain(of_bucket.clone()).collect();
    let (sent, cache) = (session.env.ages.sent(), &session.config_cache.switches);
    let request = cache.begin(sent.at, false);
    let (consistency, until) = (request.consistency(), deadline(session.settings.timeout));
    let items = read_items(session, &keys, consistency, until, None, "switches").await;
    let find = |items: &[Item], key: &ItemKey| {
        let item = items.iter().find(|item| item.key().as_ref() == Some(key));
        item.cloned()
    };
    if let (Ok(items), Some((first, key))) = (&items, bucket.zip(of_bucket)) {
        first.record_item(find(items, &key).as_ref(), sent, session);
    }
    let read = items.and_then(|items| stored_switches(&key, find(&items, &key).as_ref()));
    record_switches(session, request, read)
}

/// Caches switches that were read, or the failure. Returns those in force.
pub(super) fn record_switches(
    session: &Session,
    request: SwitchRequest,
    read: Result<Switches, Error>,
) -> Arc<Switches> {
    let cache = &session.config_cache;
    match read {
        Ok(read) => {
            for (level, error) in &read.unreadable {
                let stopped = level.as_ref().map(tracing::field::display);
                tracing::warn!(%error, stopped, "a switch cannot be read: its level is stopped");
            }
            cache.record_switches(request, read)
        }
        Err(error) => {
            tracing::warn!(%error, "switches could not be read: using the last ones");
            cache.switches.record_failure(session.env.ages.now())
        }
    }
}
/// Returns the switches in an item.
pub(crate) fn stored_switches(key: &ItemKey, item: Option<&Item>) -> Result<Switches, Error> {
    let read = item.map(|item| weirgate_shared::read_switches(item.attributes())).transpose();
    let read = read.map(Option::unwrap_or_default);
    read.map_err(|error| unreadable(key, error))
}

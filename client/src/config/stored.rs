//! Where a configuration is stored, and how it is read.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use weirgate_shared::{
    Config, ConfigKey, ConfigLevel, ItemError, ItemKey, Namespace, Versioned, read_config,
};
use weirgate_store::{Consistency, Item};

use crate::session::Session;
use crate::values::{Error, count};

/// Returns the key of a level's configuration.
pub(crate) fn key(namespace: &Namespace, level: &ConfigLevel) -> ConfigKey {
    ConfigKey { namespace: namespace.clone(), level: level.clone() }
}

/// Returns the configuration among `items`, or the default if it was never created.
pub(crate) fn stored(key: &ItemKey, items: &[Item]) -> Result<Versioned<Config>, Error> {
    let item = items.iter().find(|item| item.key().as_ref() == Some(key));
    let stored = item.map(|item| read_config(item.attributes())).transpose();
    let stored = stored.map(Option::unwrap_or_default);
    stored.map_err(|error| unreadable(key, error))
}

/// Returns the error of an item that cannot be read.
pub(crate) fn unreadable(key: &ItemKey, error: ItemError) -> Error {
    let ItemKey { pk, sk } = key.clone();
    Error::UnreadableItem { pk, sk, error }
}

/// Reads up to 100 items of a configuration. A throttled read is repeated until `repeat_until`.
pub(super) async fn read_items(
    session: &Arc<Session>,
    keys: &[ItemKey],
    consistency: Consistency,
    until: Instant,
    repeat_until: Option<Instant>,
    what: &str,
) -> Result<Vec<Item>, Error> {
    count(&session.config_cache.counters.loads, 1);
    let sent = Instant::now();
    let read = async {
        let _permit = session.breaker.admit()?;
        Ok(session.read_with(keys, consistency, repeat_until).await?)
    };
    timeout_at(until, read).await.unwrap_or_else(|_| {
        let request = format!("BatchGetItem of {what}");
        Err(session.given_up(&request, sent.elapsed(), &keys[0]).into())
    })
}

//! Where a configuration is stored.

use weirgate_shared::{Config, ConfigKey, ConfigLevel, ItemKey, Namespace, Versioned, read_config};
use weirgate_store::Item;

use crate::values::Error;

/// Returns the key of a level's configuration.
pub(crate) fn key(namespace: &Namespace, level: &ConfigLevel) -> ConfigKey {
    ConfigKey {
        namespace: namespace.clone(),
        level: level.clone(),
    }
}

/// Returns the configuration among `items`, or the default if it was never created.
pub(crate) fn stored(key: &ItemKey, items: &[Item]) -> Result<Versioned<Config>, Error> {
    let item = items.iter().find(|item| item.key().as_ref() == Some(key));
    let stored = item.map(|item| read_config(item.attributes())).transpose();
    let unreadable = |error| Error::UnreadableItem {
        pk: key.pk.clone(),
        sk: key.sk.clone(),
        error,
    };
    stored.map(Option::unwrap_or_default).map_err(unreadable)
}

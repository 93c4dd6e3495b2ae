//! Checks the schema version of a namespace.

use std::sync::atomic::Ordering;

use weirgate_shared::{SCHEMA_VERSION, read_schema, schema_key};
use weirgate_store::Item;

use super::stored::unreadable;
use crate::session::Session;
use crate::values::Error;

/// Returns whether the namespace has a schema version. Requires that it is this code's version.
pub(crate) fn check<'a>(
    session: &Session,
    mut items: impl Iterator<Item = &'a Item>,
) -> Result<bool, Error> {
    let key = schema_key(&session.namespace);
    let Some(item) = items.find(|item| item.key().as_ref() == Some(&key)) else {
        return Ok(false);
    };
    let found = read_schema(item.attributes());
    let found = found.map_err(|error| unreadable(&key, error))?;
    if found != SCHEMA_VERSION {
        let namespace = session.namespace.to_string();
        return Err(Error::UnsupportedSchema { namespace, found, supported: SCHEMA_VERSION });
    }
    session.config_cache.has_schema.store(true, Ordering::Relaxed);
    Ok(true)
}

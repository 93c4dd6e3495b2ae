//! Whether the table is one that this code can use.

use std::sync::atomic::Ordering;

use weirgate_shared::{SCHEMA_VERSION, read_schema, schema_key};
use weirgate_store::Item;

use crate::inner::Inner;
use crate::{Error, RateLimiter};

/// Whether the namespace says which version of the schema it is written in, if it is the one this
/// code knows.
pub(super) fn check<'a>(
    inner: &Inner,
    mut items: impl Iterator<Item = &'a Item>,
) -> Result<bool, Error> {
    let key = schema_key(&inner.namespace);
    let Some(item) = items.find(|item| item.key().as_ref() == Some(&key)) else {
        return Ok(false);
    };
    let found = read_schema(item.attributes());
    let found = found.map_err(|error| Error::UnreadableItem {
        pk: key.pk,
        sk: key.sk,
        error,
    })?;
    if found != SCHEMA_VERSION {
        let namespace = inner.namespace.to_string();
        return Err(Error::UnsupportedSchema {
            namespace,
            found,
            supported: SCHEMA_VERSION,
        });
    }
    inner.config_cache.has_schema.store(true, Ordering::Relaxed);
    Ok(true)
}

impl RateLimiter {
    /// Whether this limiter can work: one read tells if the table is there, may be read, and is
    /// written in the version of the schema that this code knows. A namespace in which nothing was
    /// configured yet is good.
    ///
    /// # Errors
    /// [`Error::Store`] and [`Error::UnsupportedSchema`]: why not.
    pub async fn check(&self) -> Result<(), Error> {
        let inner = &self.inner;
        let items = inner.read(&[schema_key(&inner.namespace)]).await?;
        check(inner, items.iter()).map(|_| ())
    }
}

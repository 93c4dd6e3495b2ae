//! Checks the schema version of a namespace.

use std::sync::atomic::Ordering;

use weirgate_shared::{SCHEMA_VERSION, read_schema, schema_key};
use weirgate_store::Item;

use crate::inner::Inner;
use crate::{Error, RateLimiter};

/// Returns whether the namespace has a schema version. Requires that it is this code's version.
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
    /// Checks with one read that the table exists, may be read, and has the schema version of this
    /// code. A namespace without any configuration passes.
    ///
    /// # Errors
    /// [`Error::Store`] and [`Error::UnsupportedSchema`]: the reason that the limiter cannot work.
    pub async fn check(&self) -> Result<(), Error> {
        let inner = &self.inner;
        let items = inner.read(&[schema_key(&inner.namespace)]).await?;
        check(inner, items.iter()).map(|_| ())
    }
}

//! Changes the configuration: read, plan, write if nothing changed in between, until the outcome is
//! known.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use weirgate_shared::write::{Action, write_audit_event, write_schema_version};
use weirgate_shared::{AuditChange, AuditEvent, ItemKey, schema_key};
use weirgate_store::{ErrorKind, Item, TransactOutcome};

use super::cache::CacheKey;
use super::schema;
use crate::Error;
use crate::clock::deadline;
use crate::inner::Inner;
use crate::queue::backoff;

/// One change of the configuration.
pub(super) struct ConfigEdit<'a> {
    inner: &'a Inner,
    /// Description of the changed item, for errors.
    what: String,
    changed: CacheKey,
    until: Instant,
    races: u32,
}

impl<'a> ConfigEdit<'a> {
    pub(super) fn new(inner: &'a Inner, what: String, changed: CacheKey) -> Self {
        Self {
            inner,
            what,
            changed,
            until: deadline(inner.settings.timeout),
            races: 0,
        }
    }

    /// Reads items. Also returns the write of the schema version, if the namespace has none yet.
    pub(super) async fn read(
        &self,
        keys: &[ItemKey],
    ) -> Result<(Vec<Item>, Option<Action>), Error> {
        let asks_schema = !self.inner.config_cache.has_schema.load(Ordering::Relaxed);
        let schema = asks_schema.then(|| schema_key(&self.inner.namespace));
        let keys: Vec<_> = keys.iter().cloned().chain(schema).collect();
        let items = self.inner.read(&keys).await?;
        let is_marked = !asks_schema || schema::check(self.inner, items.iter())?;
        Ok((
            items,
            (!is_marked).then(|| write_schema_version(&self.inner.namespace)),
        ))
    }

    /// Returns the write of the change's audit event.
    pub(super) fn record(&self, change: AuditChange) -> Action {
        let Inner {
            namespace,
            settings,
            config_cache: known,
            ..
        } = self.inner;
        let event = AuditEvent {
            id: known.next_event(self.inner.now()),
            principal: settings.principal.to_string(),
            change,
        };
        write_audit_event(namespace, &event, settings.audit_retention.into())
    }

    /// Writes all actions or none. Returns whether they were applied; if not, the change must be
    /// planned again.
    pub(super) async fn write(&mut self, actions: &[Action]) -> Result<bool, Error> {
        if self.transact(actions).await? {
            return Ok(true);
        }
        if Instant::now() >= self.until {
            return Err(Error::Contended {
                what: self.what.clone(),
                after: self.inner.settings.timeout,
            });
        }
        self.races += 1;
        tokio::time::sleep(backoff(self.races)).await;
        Ok(false)
    }

    /// Sends the transaction. With the same token, an unconfirmed one is applied only once.
    async fn transact(&self, actions: &[Action]) -> Result<bool, Error> {
        // On drop, so that it also happens if the future is dropped or the transaction fails.
        let _forgetting = InvalidateOnDrop(self);
        let token = weirgate_store::random_id();
        let (mut failures, mut doubt) = (0, None);
        loop {
            match self.inner.transact(actions, &token).await {
                Ok(TransactOutcome::Applied) => return Ok(true),
                Ok(TransactOutcome::ConditionFailed(_)) => return Ok(false),
                Err(error) => {
                    let kind = error.kind;
                    let error = Arc::new(error);
                    if kind == ErrorKind::Unconfirmed {
                        doubt = Some(Arc::clone(&error));
                    }
                    if !kind.is_transient() || Instant::now() >= self.until {
                        // An earlier unconfirmed write stays unconfirmed.
                        return Err(Error::Store(doubt.unwrap_or(error)));
                    }
                    failures += 1;
                    tokio::time::sleep(backoff(failures)).await;
                }
            }
        }
    }
}

/// Invalidates the changed entry when the write has ended in any way.
struct InvalidateOnDrop<'a, 'i>(&'a ConfigEdit<'i>);

impl Drop for InvalidateOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.inner.config_cache.invalidate(&self.0.changed);
    }
}

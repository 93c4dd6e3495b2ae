//! Changes the configuration, or a bucket for an operator: read, plan, write if nothing changed in between, until the outcome is
//! known.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use weirgate_shared::write::{Action, write_audit_event, write_schema_version};
use weirgate_shared::{AuditChange, AuditEvent, ItemKey, schema_key};
use weirgate_store::{ActionOutcome, ErrorKind, Item, StoreError, TransactOutcome};

use super::schema;
use crate::session::{CacheKey, Session, backoff, deadline};
use crate::values::Error;

/// One change, with its audit event.
pub(crate) struct ConfigEdit<'a> {
    session: &'a Session,
    /// Description of the changed item, for errors.
    what: String,
    changed: CacheKey,
    /// Author of the audit event; by default the limiter's principal.
    author: Option<String>,
    until: Instant,
    races: u32,
}

impl<'a> ConfigEdit<'a> {
    pub(crate) fn new(session: &'a Session, what: String, changed: CacheKey) -> Self {
        Self {
            session,
            what,
            changed,
            author: None,
            until: deadline(session.settings.timeout),
            races: 0,
        }
    }

    /// Records another author, if there is one.
    pub(crate) fn by(self, author: Option<String>) -> Self {
        Self { author, ..self }
    }

    /// Returns until when the change is attempted.
    pub(crate) const fn deadline(&self) -> Instant {
        self.until
    }

    /// Reads items. Also returns the write of the schema version, if the namespace has none yet.
    pub(crate) async fn read(
        &self,
        keys: &[ItemKey],
    ) -> Result<(Vec<Item>, Option<Action>), Error> {
        let namespace = &self.session.namespace;
        let schema = schema_key(namespace);
        let keys: Vec<_> = keys.iter().cloned().chain([schema]).collect();
        let read = timeout_at(self.until, self.session.read(&keys)).await;
        let items = read.unwrap_or_else(|_| Err(self.no_answer("BatchGetItem")))?;
        // Read each time, because a purge deletes it.
        let is_marked = schema::check(self.session, items.iter())?;
        Ok((items, (!is_marked).then(|| write_schema_version(namespace))))
    }

    /// Returns the error of a request that has no answer by the deadline.
    fn no_answer(&self, request: &str) -> StoreError {
        let Session { env, settings, .. } = self.session;
        env.no_answer(request, settings.timeout)
    }

    /// Returns the error of a transaction that has no answer by the deadline, with what the one before it
    /// was answered.
    fn no_answer_after(&self, last: Option<&StoreError>) -> StoreError {
        let error = self.no_answer("TransactWriteItems");
        let reason = match last {
            Some(last) => format!("{}; before: {last}", error.reason),
            None => return error,
        };
        StoreError { reason, ..error }
    }

    /// Returns the write of the change's audit event.
    pub(crate) fn record(&self, change: AuditChange) -> Action {
        self.record_operation(change, None, None)
    }

    /// As [`record`](Self::record), of what an operator asked for.
    pub(crate) fn record_operation(
        &self,
        change: AuditChange,
        operation: Option<String>,
        key: Option<String>,
    ) -> Action {
        let Session { namespace, settings, config_cache: known, .. } = self.session;
        let event = AuditEvent {
            id: known.next_event(self.session.now()),
            principal: (self.author.clone()).unwrap_or_else(|| settings.principal.to_string()),
            operation,
            key,
            change,
        };
        write_audit_event(namespace, &event, settings.audit_retention.map(Into::into))
    }

    /// Writes the audit event of a change that follows in writes of its own.
    pub(crate) async fn announce(
        session: &'a Session,
        what: String,
        change: AuditChange,
    ) -> Result<(), Error> {
        let mut edit = Self::new(session, what, CacheKey::Nothing);
        let event = edit.record(change);
        loop {
            let (_, mark) = edit.read(&[]).await?;
            let actions: Vec<_> = [event.clone()].into_iter().chain(mark).collect();
            if edit.write(&actions).await? {
                return Ok(());
            }
        }
    }

    /// Writes all actions or none. Returns whether they were applied; if not, the change must be
    /// planned again.
    pub(crate) async fn write(&mut self, actions: &[Action]) -> Result<bool, Error> {
        Ok(self.attempt(actions).await?.is_none())
    }

    /// Writes all actions or none. If none, returns the outcome of each; the change must be planned
    /// again.
    pub(crate) async fn attempt(
        &mut self,
        actions: &[Action],
    ) -> Result<Option<Vec<ActionOutcome>>, Error> {
        let TransactOutcome::ConditionFailed(outcomes) = self.transact(actions).await? else {
            return Ok(None);
        };
        if Instant::now() >= self.until {
            return Err(Error::Contended {
                what: self.what.clone(),
                after: self.session.settings.timeout,
            });
        }
        self.races += 1;
        tokio::time::sleep(backoff(self.races)).await;
        Ok(Some(outcomes))
    }

    /// Sends the transaction. With the same token, an unconfirmed one is applied only once.
    async fn transact(&self, actions: &[Action]) -> Result<TransactOutcome, Error> {
        // On drop, so that it also happens if the future is dropped or the transaction fails.
        let _forgetting = InvalidateOnDrop(self);
        let token = weirgate_store::random_id();
        let (mut failures, mut unconfirmed, mut last) = (0, None, None);
        loop {
            let transacted = timeout_at(self.until, self.session.transact(actions, &token)).await;
            match transacted.unwrap_or_else(|_| Err(self.no_answer_after(last.as_deref()))) {
                Ok(outcome) => return Ok(outcome),
                Err(error) => {
                    let kind = error.kind;
                    let error = Arc::new(error);
                    last = Some(Arc::clone(&error));
                    if kind == ErrorKind::Unconfirmed {
                        unconfirmed = Some(Arc::clone(&error));
                    }
                    if !kind.is_transient() || Instant::now() >= self.until {
                        // An earlier unconfirmed write stays unconfirmed.
                        return Err(Error::Store(unconfirmed.unwrap_or(error)));
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
        self.0.session.config_cache.invalidate(&self.0.changed);
    }
}

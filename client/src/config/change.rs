//! Changing what is configured: read, plan, write if nobody else did in between, until the outcome is known.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use weirgate_shared::write::{Action, mark_schema, record};
use weirgate_shared::{AuditEvent, Change, ItemKey, WriteId, schema_key};
use weirgate_store::{ErrorKind, Item, Transacted};

use super::known::Changed;
use super::schema;
use crate::Error;
use crate::clock::deadline;
use crate::limiter::Inner;
use crate::line::backoff;

/// What a look at the table amounts to.
pub(super) enum Planned<T> {
    /// There is nothing to change.
    Done(T),
    /// This is to be written, if everything still is as it was seen.
    Write(Vec<Action>, T),
}

/// One change of what is configured.
pub(super) struct Editing<'a> {
    pub(super) inner: &'a Inner,
    /// What is changed, for errors.
    pub(super) what: &'a str,
    pub(super) changed: Changed,
}

impl Editing<'_> {
    /// Plans and writes, again where others were faster.
    pub(super) async fn run<T>(&self, plan: impl AsyncFn() -> Result<Planned<T>, Error>) -> Result<T, Error> {
        let until = deadline(self.inner.settings.timeout);
        let mut races = 0;
        loop {
            let (actions, done) = match plan().await? {
                Planned::Done(done) => return Ok(done),
                Planned::Write(actions, done) => (actions, done),
            };
            if self.write(&actions, until).await? {
                return Ok(done);
            }
            if Instant::now() >= until {
                return Err(Error::Contended { what: self.what.to_owned(), after: self.inner.settings.timeout });
            }
            races += 1;
            tokio::time::sleep(backoff(races)).await;
        }
    }

    /// Items, and the write that says which version of the schema they are of, if nobody has said so yet.
    pub(super) async fn read(&self, keys: &[ItemKey]) -> Result<(Vec<Item>, Option<Action>), Error> {
        let asks_schema = !self.inner.known.has_schema.load(Ordering::Relaxed);
        let schema = asks_schema.then(|| schema_key(&self.inner.namespace));
        let keys: Vec<_> = keys.iter().cloned().chain(schema).collect();
        let items = self.inner.read(&keys).await?;
        let is_marked = !asks_schema || schema::check(self.inner, items.iter())?;
        Ok((items, (!is_marked).then(|| mark_schema(&self.inner.namespace))))
    }

    /// The event that tells of the change.
    pub(super) fn record(&self, change: Change) -> Action {
        let Inner { namespace, settings, known, .. } = self.inner;
        let event = AuditEvent { id: known.next_event(self.inner.now()), principal: settings.principal.to_string(), change };
        record(namespace, &event, settings.audit_kept.into())
    }

    /// Writes all or nothing; whether it was all. The same token makes a write of unknown outcome happen once.
    async fn write(&self, actions: &[Action], until: Instant) -> Result<bool, Error> {
        // Also if nobody waits for the answer any more, or there is none.
        let _forgetting = Forgetting(self);
        let token = WriteId::from_bits(fastrand::u64(..));
        let (mut failures, mut doubt) = (0, None);
        loop {
            match self.inner.transact(actions, &token).await {
                Ok(Transacted::Applied) => return Ok(true),
                Ok(Transacted::LostRace(_)) => return Ok(false),
                Err(error) => {
                    let is_transient = error.kind.is_transient();
                    let is_unknown = error.kind == ErrorKind::Unknown;
                    let error = Arc::new(error);
                    if is_unknown {
                        doubt = Some(Arc::clone(&error));
                    }
                    if !is_transient || Instant::now() >= until {
                        // What was in doubt before stays so.
                        return Err(Error::Store(doubt.unwrap_or(error)));
                    }
                    failures += 1;
                    tokio::time::sleep(backoff(failures)).await;
                }
            }
        }
    }
}

/// Forgets what a write has changed, or may have, when it is over.
struct Forgetting<'a>(&'a Editing<'a>);

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.0.inner.known.forget(&self.0.changed);
    }
}

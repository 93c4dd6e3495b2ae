//! One change of an operator: planned, written once, and recorded.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::write::{Action, record_operation};
use weirgate_shared::{
    AuditChange, BucketEdit, EditChange, EditId, EpochMillis, EpochSeconds, IdempotencyKey,
    ItemKey, Operation, Shard, operation_key, read_edit, read_operation,
};
use weirgate_store::{ActionOutcome, Item};

use super::edit::finished;
use crate::bucket::BucketState;
use crate::config::{ConfigEdit, unreadable};
use crate::session::{CacheKey, Refusals, Session};
use crate::values::Error;

/// Time for which a change without an idempotency key of the caller is remembered, a day. Only the
/// call that makes the change repeats it.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// What became of an operator's change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum OperationOutcome {
    /// It was made.
    Applied,
    /// Nothing had to be changed.
    Unchanged,
    /// It was planned and not made, as asked.
    DryRun,
    /// It was not made again: an earlier call with the same idempotency key made it at this time. Or it
    /// began it, and no call finished it within a day: then some shards may have it.
    #[cfg_attr(feature = "serde", serde(rename = "applied_before_ms"))]
    AppliedBefore(EpochMillis),
}

/// How to make a change.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    pub(super) key: Option<String>,
    pub(super) is_dry_run: bool,
}

/// Adds the options of an operator's change to its builder, which has them as `options`.
macro_rules! operation_options {
    () => {
        /// Makes the change at most once for this key, ever: 1 to 128 of `A-Z a-z 0-9 _ . - / : @`.
        pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
            self.options.key = Some(key.into());
            self
        }

        /// Reads and reports, and changes nothing.
        pub const fn dry_run(mut self) -> Self {
            self.options.is_dry_run = true;
            self
        }
    };
}
pub(super) use operation_options;

/// A planned change; `None` if nothing has to be changed.
pub(super) type Plan = Option<(Vec<Action>, AuditChange)>;

/// What was read for a change.
pub(super) struct Read {
    pub(super) items: Vec<Item>,
    /// Outcome, if an earlier call made the change.
    pub(super) known: Option<OperationOutcome>,
    /// Write of the schema version, if the namespace has none.
    pub(super) mark: Option<Action>,
}

/// A change in progress.
pub(super) struct Operating<'a> {
    session: &'a Session,
    edit: ConfigEdit<'a>,
    what: String,
    key: Option<IdempotencyKey>,
    /// Key of the call's own, if it has no other: it shows whether a repeated write was applied.
    own_key: IdempotencyKey,
    is_dry_run: bool,
}

impl<'a> Operating<'a> {
    /// Checks the options. `what` describes the change in full, and is what its key stands for.
    pub(super) fn new(
        session: &'a Session,
        what: String,
        changed: CacheKey,
        options: &Options,
    ) -> Result<Self, Error> {
        let key = options.key.as_deref().map(IdempotencyKey::new).transpose()?;
        Ok(Self {
            edit: ConfigEdit::new(session, what.clone(), changed),
            session,
            what,
            key,
            own_key: IdempotencyKey::new(weirgate_store::random_id().as_str())?,
            is_dry_run: options.is_dry_run,
        })
    }

    fn key(&self) -> &IdempotencyKey {
        self.key.as_ref().unwrap_or(&self.own_key)
    }

    /// Reads items, and the idempotency key's.
    pub(super) async fn read(&self, keys: &[ItemKey]) -> Result<Read, Error> {
        let key = operation_key(&self.session.namespace, self.key());
        let keys: Vec<_> = keys.iter().chain([&key]).cloned().collect();
        let (items, mark) = self.edit.read(&keys).await?;
        let used = items.iter().find(|item| item.key().as_ref() == Some(&key));
        let known = used.map(|item| self.of_used_key(item)).transpose()?;
        Ok(Read { items, known, mark })
    }

    /// Reads the idempotency key's item and all shards, after the bucket's change that is under way
    /// was finished. A dry run finishes nothing, and sees the shards as they will be then.
    pub(super) async fn read_bucket(
        &self,
        bucket: &BucketState,
    ) -> Result<(Read, Vec<Arc<Shard>>), Error> {
        let key = BucketEdit::key(&bucket.key);
        let mut refusals = Refusals::default();
        loop {
            let read = self.read(std::slice::from_ref(&key)).await?;
            let item = read.items.iter().find(|item| item.key().as_ref() == Some(&key));
            let under_way = item.map(|item| read_edit(item.attributes())).transpose();
            let now = self.session.now();
            match under_way.map_err(|error| unreadable(&key, error))?.flatten() {
                Some(edit) if !self.is_dry_run => {
                    if edit.id.may_be_under_way(now) {
                        let until = self.edit.deadline();
                        bucket.finish_edit(self.session, &edit, until).await?;
                    } else {
                        // Merges took it for over. What is left of it would change what others made since:
                        // another life of the bucket, or another window of a quota.
                        let end = edit.end(&bucket.key, now);
                        tracing::warn!(
                            pk = key.pk,
                            "a change that no call finished within a day is not made"
                        );
                        self.session.update_idempotent(&end).await?;
                    }
                    refusals.record(&bucket.key, Some(edit.id.0))?;
                }
                left => {
                    let shards = bucket.read_whole(self.session, self.is_dry_run).await?;
                    let Some(edit) = left.filter(|edit| edit.id.may_be_under_way(now)) else {
                        return Ok((read, shards));
                    };
                    let shards = shards.into_iter().map(|shard| finished(shard, &edit, now));
                    return Ok((read, shards.collect()));
                }
            }
        }
    }

    /// Writes a change of all `shards` of a bucket: first its plan, with the audit event, then its
    /// part to each shard. Returns `None` if it must be planned again.
    pub(super) async fn write_bucket(
        &mut self,
        bucket: &BucketState,
        shards: &[Arc<Shard>],
        change: Option<(EditChange, AuditChange)>,
        mark: Option<Action>,
    ) -> Result<Option<OperationOutcome>, Error> {
        let last = shards.iter().filter_map(|shard| shard.edit).max();
        let id = EditId::new(self.session.now(), weirgate_store::random_bits(), last);
        let (change, event) = change.unzip();
        let edit = change.map(|change| BucketEdit { id, change });
        let begin = edit.as_ref().map(|edit| vec![Action::Update(edit.begin(&bucket.key))]);
        let outcome = self.write(begin.zip(event), mark).await?;
        if let (Some(OperationOutcome::Applied), Some(edit)) = (outcome, &edit) {
            let until = self.edit.deadline();
            bucket.finish_edit(self.session, edit, until).await?;
        }
        Ok(outcome)
    }

    /// Writes the plan. Returns `None` if it must be planned again.
    pub(super) async fn write(
        &mut self,
        plan: Plan,
        mark: Option<Action>,
    ) -> Result<Option<OperationOutcome>, Error> {
        if self.is_dry_run {
            let planned = plan.map_or(OperationOutcome::Unchanged, |_| OperationOutcome::DryRun);
            return Ok(Some(planned));
        }
        if plan.is_none() && self.key.is_none() {
            return Ok(Some(OperationOutcome::Unchanged));
        }
        let done = match plan {
            Some(_) => OperationOutcome::Applied,
            None => OperationOutcome::Unchanged,
        };
        let now = self.session.now();
        let ends = EpochSeconds::not_before(now.plus(REMEMBERED.into()));
        let operation = Operation { at: now, what: self.what.clone() };
        let kept_until = self.key.is_none().then_some(ends);
        // First, so that its outcome is found.
        let namespace = &self.session.namespace;
        let mut actions = vec![record_operation(namespace, self.key(), &operation, kept_until)];
        if let Some((changes, event)) = plan {
            actions.extend(changes);
            let (what, key) = (self.what.clone(), self.key.as_ref().map(ToString::to_string));
            actions.push(self.edit.record_operation(event, Some(what), key));
        }
        actions.extend(mark);
        let Some(outcomes) = self.edit.attempt(&actions).await? else {
            return Ok(Some(done));
        };
        match outcomes.first() {
            // An earlier attempt of this call, whose answer was lost.
            Some(ActionOutcome::ConditionFailed(Some(_))) if self.key.is_none() => Ok(Some(done)),
            // The next read finds what the caller's key was used for.
            _ => Ok(None),
        }
    }

    /// Returns the outcome that the item of a used key stands for.
    fn of_used_key(&self, item: &Item) -> Result<OperationOutcome, Error> {
        let key = self.key();
        let item_key = operation_key(&self.session.namespace, key);
        let used = read_operation(item.attributes());
        let used = used.map_err(|error| unreadable(&item_key, error))?;
        if self.key.is_none() {
            return Ok(OperationOutcome::Applied);
        }
        if used.what == self.what {
            return Ok(OperationOutcome::AppliedBefore(used.at));
        }
        Err(Error::Invalid(format!(
            "idempotency key {key:?} was used for another change, {:?}: use a new key for {:?}",
            used.what, self.what
        )))
    }
}

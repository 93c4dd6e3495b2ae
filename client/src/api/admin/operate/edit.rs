//! A change of an operator over all shards of a bucket: one conditional write for each shard, until
//! all have it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio::time::Instant;
use weirgate_shared::write::{BalanceChange, Take, Update, change_balances, pause_ordered};
use weirgate_shared::{
    BalanceStep, BucketEdit, EditChange, EpochMillis, LimitName, LimitState, Pause, Shard,
    VersionedLimits,
};
use weirgate_store::WriteOutcome;

use crate::bucket::BucketState;
use crate::session::{Refusals, Session, backoff, decode_shard};
use crate::values::{CALENDAR, Error, check_bucket_limits};

impl BucketState {
    /// Finishes a change that was begun, by this process or another. A bucket without an item needs
    /// nothing: it is full, or created with the configured limits.
    ///
    /// # Errors
    /// [`Error::Contended`] or [`Error::Store`] if shards are left at the deadline. Some have the
    /// change then; another call within a day finishes it, and changes none twice.
    pub(super) async fn finish_edit(
        &self,
        session: &Session,
        edit: &BucketEdit,
        until: Instant,
    ) -> Result<(), Error> {
        // A shard that is split or merged meanwhile fails its write. Then all are read again.
        let mut failures = 0;
        loop {
            let shards = self.read_whole(session, false).await?;
            let writes = shards.iter().map(|shard| self.write_edit(session, edit, shard, until));
            if try_join_all(writes).await?.into_iter().all(|is_done| is_done) {
                break;
            }
            if Instant::now() >= until {
                return Err(self.contended(session));
            }
            failures += 1;
            tokio::time::sleep(backoff(failures)).await;
        }
        if let Some(void) = self.void_stamp(session.now()) {
            session.update_idempotent(&void).await?;
        }
        let end = edit.end(&self.key, session.now());
        session.update_idempotent(&end).await?;
        self.view_again(session).await;
        Ok(())
    }

    fn contended(&self, session: &Session) -> Error {
        Error::Contended {
            what: format!("bucket {}", self.key.item_key().pk),
            after: session.settings.timeout,
        }
    }

    /// Writes the change to one shard, unless it has it. Returns whether it has; if not, the bucket
    /// must be read again.
    async fn write_edit(
        &self,
        session: &Session,
        edit: &BucketEdit,
        shard: &Arc<Shard>,
        until: Instant,
    ) -> Result<bool, Error> {
        let (mut shard, mut failures) = (Arc::clone(shard), 0);
        let mut refusals = Refusals::default();
        loop {
            if has_edit(&shard, edit, session.now()) {
                return Ok(true);
            }
            let Some(update) = part(&shard, edit, session.now()) else {
                return Ok(false);
            };
            let error = match session.update_idempotent(&update).await {
                Ok(WriteOutcome::Applied(_)) => return Ok(true),
                Ok(WriteOutcome::ConditionFailed(None)) => return Ok(false),
                Ok(WriteOutcome::ConditionFailed(Some(item))) => {
                    let next = decode_shard(&item)?;
                    if next.shard() != shard.shard() {
                        return Ok(false);
                    }
                    refusals.record(&next.key, Some(next.write_seq))?;
                    shard = Arc::new(next);
                    None
                }
                Err(error) if error.kind.is_transient() => Some(error),
                Err(error) => return Err(error.into()),
            };
            if Instant::now() >= until {
                return Err(error.map_or_else(|| self.contended(session), Error::from));
            }
            failures += 1;
            tokio::time::sleep(backoff(failures)).await;
        }
    }
}

fn has_edit(shard: &Shard, edit: &BucketEdit, now: EpochMillis) -> bool {
    match &edit.change {
        EditChange::Balances(_) | EditChange::Pause(_) => {
            shard.edit.is_some_and(|last| last >= edit.id)
        }
        // A shard that another process made since, and that cannot have the limits, keeps its own.
        EditChange::Limits { limits, .. } => {
            shard.matches_rules(limits_of(edit), now) || check_bucket_limits(shard, limits).is_err()
        }
    }
}

/// Returns the limits of a change of limits.
fn limits_of(edit: &BucketEdit) -> VersionedLimits<'_> {
    match &edit.change {
        EditChange::Limits { limits, version, is_own } => {
            VersionedLimits { limits, version: *version, is_own: *is_own, calendar: CALENDAR }
        }
        EditChange::Balances(_) | EditChange::Pause(_) => VersionedLimits::default(),
    }
}

/// Returns the shard as it is once the change is finished.
pub(super) fn finished(shard: Arc<Shard>, edit: &BucketEdit, now: EpochMillis) -> Arc<Shard> {
    if has_edit(&shard, edit, now) {
        return shard;
    }
    let mut next = Shard::clone(&shard);
    let steps = match &edit.change {
        EditChange::Balances(steps) => steps,
        EditChange::Limits { .. } => return Arc::new(shard.projected(limits_of(edit), now)),
        EditChange::Pause(until) => {
            next.pause = until.map(Pause::ordered);
            return Arc::new(next);
        }
    };
    next.refilled_at = next.refilled_at.max(now);
    let is_held = |state: &LimitState| state.rule.kind().is_held();
    for (name, state) in next.limits.iter_mut().filter(|(_, state)| !is_held(state)) {
        let (balance, share) = (shard.balance(state, now), shard.share(state));
        let part = steps.get(name).map(|step| step.part(shard.shard(), share));
        state.available = match part {
            None => balance,
            Some(BalanceChange::SetTo(amount)) => amount,
            Some(BalanceChange::Raise(more)) if state.rule.kind().has_window() => balance + more,
            Some(BalanceChange::Raise(more)) => (balance + more).min(share),
        };
    }
    Arc::new(next)
}

/// Returns the write of a shard's part; `None` if the shard cannot have it as it is.
fn part(shard: &Shard, edit: &BucketEdit, now: EpochMillis) -> Option<Update> {
    match &edit.change {
        EditChange::Balances(steps) => {
            let part = |(name, step): (&LimitName, &BalanceStep)| {
                // A limit that is gone since, or has slots, has no balance.
                let state = shard.limits.get(name)?;
                if state.rule.kind().is_held() {
                    return None;
                }
                Some((name.clone(), step.part(shard.shard(), shard.share(state))))
            };
            let parts: BTreeMap<_, _> = steps.iter().filter_map(part).collect();
            change_balances(shard, edit.id, &parts, CALENDAR, now)
        }
        EditChange::Pause(until) => pause_ordered(shard, edit.id, *until),
        EditChange::Limits { .. } => {
            let id = weirgate_store::random_id();
            Some(Take::nothing(&shard.key, limits_of(edit), id, now).plan(shard, now))
        }
    }
}

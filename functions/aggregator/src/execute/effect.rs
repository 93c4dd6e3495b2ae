//! Effects of planned writes. Refused writes and splits that are put off are logged.

use std::collections::BTreeMap;

use weirgate_runtime::{LogBudget, SHOWN, shorten};

use super::failure::{Failure, FailureReason};
use crate::plan::{Write, WriteKind};
use crate::split::Split;

/// The effect of a planned write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The write copied usage.
    Copied,
    /// The write copied usage, and the earlier life of the shard had no final copy: its last usage is
    /// missing.
    CopiedAfterGap,
    /// The snapshot has a newer copy, or this one.
    Superseded,
    /// An interim copy was put off: a later one includes it.
    CopyPutOff,
    /// The write credited refill to a shard.
    Refilled,
    /// Another process had credited the shard, or it needs no refill any more.
    RefillLost,
    /// The refill was put off. Clients compute refill themselves.
    RefillPutOff,
    /// The write split a hot shard.
    Split,
    /// Another process had split the shard, or the split is no longer needed.
    SplitLost,
    /// The split was put off. The shard stays hot, so the next batch tries again; this one need not
    /// wait.
    SplitPutOff,
    /// The item's content does not allow the write (it is full, or damaged), its item stayed
    /// throttled, or a write that later ones repeat is not permitted. A log line has the write's
    /// content; no other records wait for it.
    Refused,
}

/// Puts off a write that may succeed later, and that a later batch makes anyway.
pub(super) fn put_off(kind: &WriteKind<'_>, reason: &FailureReason, budget: &LogBudget) -> Effect {
    match kind {
        WriteKind::Copy(_) => Effect::CopyPutOff,
        WriteKind::Refill(_) => Effect::RefillPutOff,
        WriteKind::Split(split) => split_put_off(split, &reason.to_string(), budget),
    }
}

/// Logs that a shard was split: the log then names the buckets that are hot.
pub(super) fn split_made(split: &Split<'_>, budget: &LogBudget) {
    let shard = split.image.key.item_key().pk;
    if budget.allows(&shard, &[&shard]) {
        tracing::info!(shard, "hot shard split");
    }
}

/// Logs that a split is put off.
pub(super) fn split_put_off(split: &Split<'_>, why: &str, budget: &LogBudget) -> Effect {
    let (shard, why) = (split.image.key.item_key().pk, shorten(why, SHOWN));
    if budget.allows(&shard, &[&shard, &why]) {
        tracing::warn!(shard, %why, "hot shard not split");
    }
    Effect::SplitPutOff
}

/// The refused writes of an invocation, which are logged with their content as long as the log has
/// room.
pub(super) struct Refusals<'b> {
    budget: &'b LogBudget,
    /// Number of writes without room in the log, by namespace.
    left_out: BTreeMap<String, usize>,
}

impl<'b> Refusals<'b> {
    pub(super) const fn new(budget: &'b LogBudget) -> Self {
        Self { budget, left_out: BTreeMap::new() }
    }

    /// Logs the content of a write that is refused.
    ///
    /// Without room in the log, a required copy of a throttled item fails its record instead, because
    /// its numbers are nowhere else. What an item contains fails no record: a tenant could otherwise keep
    /// the records of all others from being done.
    pub(super) fn refuse(
        &mut self,
        write: &Write<'_>,
        reason: FailureReason,
    ) -> Result<Effect, Failure> {
        let (what, pk) = match &write.kind {
            WriteKind::Copy(copy) => (copy.to_string(), copy.key.item_key().pk),
            WriteKind::Refill(update) => {
                (format!("refill of {}", update.key.pk), update.key.pk.clone())
            }
            WriteKind::Split(split) => {
                let pk = split.image.key.item_key().pk;
                (format!("split of {pk}"), pk)
            }
        };
        // Large enough for the amounts of all limits of a bucket.
        let (what, why) = (shorten(&what, 4 * SHOWN), reason.to_string());
        let why = shorten(&why, SHOWN);
        let is_required = matches!(&write.kind, WriteKind::Copy(copy) if copy.is_required);
        if self.budget.allows(&pk, &[&what, &why]) {
            // A saved query looks for this text.
            tracing::error!(%what, %why, "refused write");
        } else if is_required && !reason.is_lasting() {
            let record = write.record;
            return Err(Failure { record, reason });
        } else {
            let namespace = write.kind.namespace().to_owned();
            *self.left_out.entry(namespace).or_default() += 1;
        }
        Ok(Effect::Refused)
    }

    /// Logs how many writes of each namespace the log had no room for, in one line.
    pub(super) fn log_left_out(self) {
        let counts = self.left_out.iter();
        let counts = counts.map(|(namespace, count)| format!("{count} of namespace {namespace}"));
        let what = counts.collect::<Vec<_>>().join(", ");
        if !what.is_empty() {
            let what = shorten(&what, 32 * SHOWN);
            let why = "the log has no room for them; the stream has their records for 24 hours";
            tracing::error!(%what, why, "refused write");
        }
    }
}

//! A line that knows nothing of its shard reads it before it writes: a write that fails costs ten
//! times as much, and takes one of the thousand writes a second of the shard's partition.

use weirgate_shared::{EpochMillis, Millis, Shard};
use weirgate_store::Consistency;

use super::ShardQueue;
use super::hour::expected_acquires;
use crate::Error;
use crate::ages::Moment;
use crate::inner::Inner;

/// How old the answer of an eventually consistent read is at most, as a rule, with the time that it
/// takes.
const MAX_READ_AGE: Millis = Millis(10);
/// So many acquires by others within [`MAX_READ_AGE`] are a crowd, in which a plan by what was read
/// must expect their writes.
const CONTENDED_ACQUIRES: i64 = 2;

impl ShardQueue {
    /// Whether the shard was seen, or is known to be missing where it may be made.
    pub(super) fn is_known(&self) -> bool {
        self.view().is_some() || self.may_be_created()
    }

    /// Whether the shard has probably been split since it was seen, as others were.
    pub(super) fn is_outgrown(&self) -> bool {
        self.view().is_some_and(|view| {
            self.summary
                .is_outgrown(view.shard.shard().count, view.seen_at)
        })
    }

    /// Whether the shard is missing, and is the only one: then a take creates the bucket.
    pub(super) fn may_be_created(&self) -> bool {
        self.view().is_none() && self.is_missing() && self.is_only()
    }

    /// Whether the shard is missing, and is one of several: its tokens are elsewhere.
    pub(super) fn was_merged_away(&self) -> bool {
        self.view().is_none() && self.is_missing() && !self.is_only()
    }

    /// Whether it is the only shard of its bucket, as far as is known.
    pub(super) fn is_only(&self) -> bool {
        self.key.shard == 0 && self.summary.max_shards_seen() == 1
    }

    /// Reads the shard. An eventually consistent read is enough, because every write is
    /// conditional.
    ///
    /// # Errors
    /// The store's; [`Error::Unreadable`] if the item is damaged.
    pub(super) async fn read_shard(&self, inner: &Inner) -> Result<(), Error> {
        let at = self.summary.ages.now();
        self.request_started("BatchGetItem");
        let found = inner
            .read_once(&self.key.item_key(), Consistency::Eventual)
            .await;
        self.request_finished(&found);
        let unreadable = |error| Error::Unreadable {
            bucket: self.key.item_key().pk,
            error,
        };
        let shard = found?
            .map(|item| item.bucket())
            .transpose()
            .map_err(unreadable)?;
        self.record_read(shard, at, inner.now());
        Ok(())
    }

    /// Keeps what a read showed that was sent at `at`, unless something newer is known: the shard,
    /// or that it is missing.
    pub(crate) fn record_read(&self, shard: Option<Shard>, at: Moment, now: EpochMillis) {
        match shard {
            Some(shard) => {
                let is_crowded = expected_acquires(&shard, now, MAX_READ_AGE) >= CONTENDED_ACQUIRES;
                self.record_view_at(shard, at);
                self.state().is_crowded = Some(is_crowded);
            }
            None if self.view().is_none() => self.mark_missing(),
            None => {}
        }
    }

    /// Whether nothing is known of the bucket.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_only() && !self.is_known()
    }
}

//! What a read of a shard shows, and whether one is needed.

use weirgate_shared::{EpochMillis, Millis, Shard};
use weirgate_store::Item;

use super::hour::expected_acquires;
use super::shard_state::ShardState;
use crate::session::{Sent, Session};

/// Usual greatest age of an eventually consistent response, latency included, 10 ms.
const CROWDED_WITHIN: Millis = Millis(10);
/// Acquires within [`CROWDED_WITHIN`] from which a plan on a read expects writes of other processes,
/// 2.
const CROWDED_ACQUIRES: i64 = 2;

impl ShardState {
    /// Returns whether there is a view, or the shard is missing where a take may create it.
    pub(super) fn is_known(&self) -> bool {
        self.view().is_some() || self.may_be_created()
    }

    /// Returns whether the shard has probably been split since the view, as other shards were.
    pub(super) fn is_outgrown(&self) -> bool {
        self.view().is_some_and(|view| {
            self.summary
                .is_outgrown(view.shard.shard().count, view.seen_at)
        })
    }

    /// Returns whether the shard is missing and is the only one: a take then creates the bucket, by a
    /// time that a response has confirmed.
    pub(super) fn may_be_created(&self) -> bool {
        let is_missing = self.view().is_none() && self.is_missing() && self.is_only();
        is_missing && self.summary.ages.is_confirmed()
    }

    /// Returns whether the shard is missing and is one of several: its tokens are in other shards.
    pub(super) fn was_merged_away(&self) -> bool {
        self.view().is_none() && self.is_missing() && !self.is_only()
    }

    /// Returns whether this is the bucket's only shard, as far as this process has seen.
    pub(super) fn is_only(&self) -> bool {
        self.key.shard == 0 && self.summary.max_shards_seen() == 1
    }

    /// Records the result of a read, unless the view is newer. The shard may be
    /// missing.
    pub(crate) fn record_read(&self, shard: Option<Shard>, sent: Sent, now: EpochMillis) {
        match shard {
            Some(shard) => {
                let is_crowded = expected_acquires(&shard, now, CROWDED_WITHIN) >= CROWDED_ACQUIRES;
                self.record_read_response(shard, sent);
                self.record_others(|others| others.record_read(is_crowded));
            }
            None if self.view().is_none() => self.mark_missing(),
            None => {}
        }
    }

    /// Records the item of a read that other items were the reason for. A take that follows reports
    /// an item that cannot be read.
    pub(crate) fn record_item(&self, item: Option<&Item>, sent: Sent, session: &Session) {
        match item.map(Item::bucket).transpose() {
            Ok(shard) => self.record_read(shard, sent, session.now()),
            Err(error) => {
                tracing::debug!(%error, bucket = self.key.item_key().pk, "bucket unreadable");
            }
        }
    }

    /// Returns whether nothing was seen of the bucket yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_only() && !self.is_known()
    }
}

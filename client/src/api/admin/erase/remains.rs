//! What is left of shards when they are erased or purged: tombstones.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use weirgate_shared::write::{Update, erase_shard};
use weirgate_shared::{BucketKey, EpochMillis, ItemError, read_leases};
use weirgate_store::Item;

/// A shard to be erased: its item, or only its part of an unfinished split.
#[derive(Debug)]
pub(in crate::api::admin) struct Remains {
    pub(in crate::api::admin) key: BucketKey,
    /// `v` of the item, if there is one.
    pub(in crate::api::admin) seen: Option<i64>,
    /// Highest `v` of the item and of a split that makes the shard.
    highest: i64,
    /// Whether the item is the tombstone of an erasure, and no split can make the shard.
    pub(in crate::api::admin) is_erased: bool,
    /// Names of the item's attributes, in order: equal erasures send equal requests.
    names: BTreeSet<String>,
}

impl Remains {
    /// Returns the shard of an item, and the half that its unfinished split makes.
    ///
    /// # Errors
    /// [`ItemError`] if it is no shard that can be read.
    pub(in crate::api::admin) fn of(item: &Item) -> Result<(Self, Option<Self>), ItemError> {
        let names = item.attributes().map(|(name, _)| name.to_owned());
        let own = |key, v, is_erased| Self {
            key,
            seen: Some(v),
            highest: v,
            is_erased,
            names: names.collect(),
        };
        if item.is_merged() {
            let meter = item.live()?;
            let is_erased = meter.is_erased();
            return Ok((own(meter.key, meter.write_seq, is_erased), None));
        }
        let shard = item.bucket()?;
        let half = shard.escrow.map(|half| Self {
            key: half.key,
            seen: None,
            highest: half.write_seq,
            is_erased: false,
            names: BTreeSet::new(),
        });
        Ok((own(shard.key, shard.write_seq, false), half))
    }

    /// Returns each shard of a bucket once, in the order in which they are erased: halves before the
    /// shard that has their escrow, and shard 0 last. While it exists, a missing shard is a hole
    /// without tokens.
    pub(in crate::api::admin) fn in_order(mut all: Vec<Self>) -> Vec<Self> {
        all.sort_by_key(|one| (Reverse(one.key.shard), one.seen.is_none()));
        all.dedup_by(|half, shard| {
            let is_same = half.key == shard.key;
            if is_same {
                shard.is_erased &= shard.highest >= half.highest;
                shard.highest = shard.highest.max(half.highest);
            }
            is_same
        });
        all
    }

    /// Returns the `v` of the tombstones of these shards of a bucket: above every `v` of theirs, also
    /// of a split that another process finishes late, and not before `now`.
    pub(in crate::api::admin) fn tombstone_v(all: &[Self], now: EpochMillis) -> i64 {
        let highest = all.iter().map(|shard| shard.highest).max();
        let above = highest.unwrap_or_default().saturating_add(1);
        above.max(now.0.saturating_mul(1000))
    }

    /// Returns the write that leaves the tombstone.
    pub(in crate::api::admin) fn erase(&self, v: i64, now: EpochMillis) -> Update {
        let names = self.names.iter().map(String::as_str);
        erase_shard(&self.key, self.seen, names, v, now)
    }
}

/// Returns how many leases of an item have not expired. Leases that cannot be read hold nothing.
pub(in crate::api::admin) fn live_leases(item: &Item, now: EpochMillis) -> usize {
    let leases = read_leases(item.attributes()).unwrap_or_default();
    let live = leases.values().filter(|lease| lease.expires_at > now);
    live.count()
}

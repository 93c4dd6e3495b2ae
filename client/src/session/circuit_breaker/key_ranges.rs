//! Throttles of key ranges: those of one bucket show a hot bucket, those of several a saturated table.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::session::ages::Moment;

/// Buckets that must be throttled before the table counts as saturated.
const SEVERAL: usize = 3;
/// Time within which they must be throttled: two calls with the default timeout.
const WINDOW: Duration = Duration::from_secs(10);
/// Writes that are remembered.
const MOST: usize = 256;

/// The last writes since a throttle: none while nothing is throttled, so nothing is remembered then.
#[derive(Debug)]
pub(super) struct KeyRangeThrottles {
    /// The first one is a throttle.
    writes: VecDeque<Write>,
    /// Throttles since the last accepted write.
    in_a_row: u32,
}

#[derive(Debug)]
struct Write {
    at: Moment,
    /// Bucket of the item, without its shard; for items of other kinds, the item.
    bucket: String,
    is_throttled: bool,
}

impl KeyRangeThrottles {
    pub(super) const NONE: Self = Self {
        writes: VecDeque::new(),
        in_a_row: 0,
    };

    /// Records a throttled write of an item, and returns its bucket.
    pub(super) fn throttled(&mut self, pk: &str, now: Moment) -> String {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let bucket = bucket_of(pk);
        self.push(Write {
            at: now,
            bucket: bucket.to_owned(),
            is_throttled: true,
        });
        bucket.to_owned()
    }

    /// Records an accepted write of an item, or of several items if there is none. The clock is read
    /// only while something is remembered.
    pub(super) fn accepted(&mut self, pk: Option<&str>, now: impl FnOnce() -> Moment) {
        self.in_a_row = 0;
        if let Some(pk) = pk.filter(|_| !self.writes.is_empty()) {
            self.push(Write {
                at: now(),
                bucket: bucket_of(pk).to_owned(),
                is_throttled: false,
            });
        }
    }

    fn push(&mut self, write: Write) {
        let now = write.at;
        self.writes.push_back(write);
        while let Some(first) = self.writes.front() {
            let is_old = now.since(first.at) >= WINDOW || self.writes.len() > MOST;
            if first.is_throttled && !is_old {
                return;
            }
            self.writes.pop_front();
        }
    }

    /// Forgets all writes.
    pub(super) fn clear(&mut self) {
        *self = Self::NONE;
    }

    /// Returns the number of throttles since the last accepted write.
    pub(super) const fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Returns whether the table is saturated: several buckets are throttled, at least half of all
    /// that were written, and at least half of the writes.
    pub(super) fn are_of_the_table(&self, now: Moment) -> bool {
        let recent = || {
            let writes = self.writes.iter();
            writes.filter(|write| now.since(write.at) < WINDOW)
        };
        let throttled = || recent().filter(|write| write.is_throttled);
        let buckets: HashSet<_> = throttled().map(|write| &write.bucket).collect();
        let all: HashSet<_> = recent().map(|write| &write.bucket).collect();
        buckets.len() >= SEVERAL
            && buckets.len() * 2 >= all.len()
            && throttled().count() * 2 >= recent().count()
    }
}

/// Returns the partition key without the index of a shard, which follows the last `#`.
fn bucket_of(pk: &str) -> &str {
    match pk.rsplit_once('#') {
        Some((bucket, _)) if pk.contains("/BUCKET#") => bucket,
        _ => pk,
    }
}

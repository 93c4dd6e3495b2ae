//! How often the copies of a shard were throttled in a row, over the invocations of one process.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::Resource;
use weirgate_shared::write::UsageCopy;

/// Throttled invocations in a row after which a copy counts as throttled permanently, 10. With
/// 2 s each, these are 20 s.
pub const ENOUGH: u32 = 10;
/// Maximum number of copies that are counted.
const MOST: usize = 10_000;
/// Longest time between two invocations in a row, 5 minutes: a failed batch comes again sooner.
/// Copies that another process made meanwhile are forgotten after it.
const MAX_GAP: Duration = Duration::from_secs(300);

/// Counts of the copies that stayed throttled.
///
/// The age of a record does not show this: after a pause of the stream all records are old, and a
/// copy that is throttled for a moment must not be refused.
#[derive(Debug, Default)]
pub struct Throttles(Mutex<HashMap<Key, Count>>);

/// Partition key of the snapshots, the resource, and the shard. Copies of a shard are made one after
/// the other, so one that stays throttled is counted for those behind it.
type Key = (String, Resource, u32);

/// The invocations in a row in which a copy stayed throttled.
#[derive(Debug)]
struct Count {
    invocations: u32,
    last: Instant,
}

impl Throttles {
    fn counts(&self) -> MutexGuard<'_, HashMap<Key, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more invocation in which a copy stayed throttled. Returns whether those were
    /// enough. A copy above `MOST` counts as throttled permanently, or a tenant with many snapshots
    /// could keep all records from being done.
    pub(super) fn count(&self, copy: &UsageCopy) -> bool {
        let (key, mut counts, now) = (key(copy), self.counts(), Instant::now());
        if counts.len() >= MOST && !counts.contains_key(&key) {
            counts.retain(|_, count| now - count.last <= MAX_GAP);
            if counts.len() >= MOST {
                return true;
            }
        }
        let count = counts.entry(key).or_insert(Count { invocations: 0, last: now });
        if now - count.last > MAX_GAP {
            count.invocations = 0;
        }
        count.invocations += 1;
        count.last = now;
        count.invocations >= ENOUGH
    }

    /// Forgets the throttles of a shard of which all copies of a batch were made. A refusal leaves them:
    /// copies that the log had no room for, and those that follow, are refused at once.
    pub(super) fn forget(&self, copy: &UsageCopy) {
        let mut counts = self.counts();
        if !counts.is_empty() {
            counts.remove(&key(copy));
        }
    }
}

fn key(copy: &UsageCopy) -> Key {
    (copy.key.item_key().pk, copy.key.resource.clone(), copy.shard)
}

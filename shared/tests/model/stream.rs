//! The records of a table's stream, the copies that they lead to, and a process that makes these.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use weirgate_shared::write::{Update, UsageCopy};
use weirgate_shared::{BucketKey, EpochMillis, ItemKey, Meter, Snapshot, SnapshotKey, Window};

use super::{Item, bucket_key};

/// An item before or after a write, as the stream shows it.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    pub meter: Meter,
    pub is_merged: bool,
}

/// A write to an item.
#[derive(Debug, Clone)]
pub struct Record {
    pub before: Option<Rc<Image>>,
    pub after: Option<Rc<Image>>,
}

/// An image is copied before its window ends when `v` is a multiple of this.
const INTERIM: i64 = 3;

/// The copies that records of one item lead to, in the order in which they must be made: the newest
/// of each window, once for each life.
pub fn copies<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<UsageCopy> {
    let mut copies: Vec<UsageCopy> = vec![];
    for copy in records.into_iter().flat_map(Record::copies) {
        if !copies.iter().any(|known| known.supersedes(&copy)) {
            copies.retain(|known| !copy.supersedes(known));
            copies.push(copy);
        }
    }
    copies.sort_by_key(|copy| copy.birth);
    copies
}

impl Record {
    /// The copies of this record alone.
    pub fn copies(&self) -> Vec<UsageCopy> {
        let of = |meter: &Meter, is_final: [bool; 2]| -> Vec<UsageCopy> {
            Window::ALL
                .into_iter()
                .zip(is_final)
                .map(|(window, is_final)| UsageCopy::of(meter, window, is_final, 1))
                .collect()
        };
        match (&self.before, &self.after) {
            (Some(before), None) => {
                let last = |copy| UsageCopy {
                    ends_life: true,
                    ..copy
                };
                of(&before.meter, [true; 2]).into_iter().map(last).collect()
            }
            // A split may make the shard again within the window.
            (_, Some(after)) if after.is_merged => of(&after.meter, [false; 2]),
            (before, Some(after)) => {
                let mut copies = vec![];
                if let Some(before) = before
                    .as_ref()
                    .filter(|before| before.meter.hour < after.meter.hour)
                {
                    let is_new_day = !before.meter.hour.is_same_day(after.meter.hour);
                    copies.extend(of(&before.meter, [true, is_new_day]));
                }
                if after.meter.write_seq % INTERIM == 0 {
                    copies.extend(of(&after.meter, [false; 2]));
                }
                copies
            }
            (None, None) => unreachable!("a record of nothing"),
        }
    }
}

/// All snapshots of a bucket.
#[derive(Debug, Clone, Default)]
pub struct Snapshots(BTreeMap<ItemKey, Item>);

impl Snapshots {
    /// Returns the copied usage of a window.
    pub fn read(&self, window: Window, start: EpochMillis) -> Snapshot {
        let BucketKey {
            namespace,
            entity,
            resource,
            ..
        } = bucket_key(0);
        let key = SnapshotKey {
            namespace,
            entity,
            resource,
            window,
            start,
        };
        self.0
            .get(&key.item_key())
            .map(Item::snapshot)
            .unwrap_or_default()
    }

    /// The items as they are stored.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.0.values()
    }
}

/// A process that makes copies one after the other, one write at a time.
#[derive(Debug)]
pub struct Writer {
    copies: VecDeque<UsageCopy>,
    next: Option<Update>,
    refused: usize,
}

impl Writer {
    pub fn new(copies: Vec<UsageCopy>) -> Self {
        Self {
            copies: copies.into(),
            next: None,
            refused: 0,
        }
    }

    /// Makes one write: the first of the next copy, or what a refusal showed to be needed. Says
    /// whether it had any to make.
    pub fn step(&mut self, snapshots: &mut Snapshots) -> bool {
        let Some(copy) = self.copies.front() else {
            return false;
        };
        let update = self.next.take().unwrap_or_else(|| copy.first());
        let item = snapshots.0.entry(copy.key.item_key()).or_default();
        if !item.apply(&update) {
            self.next = copy.after(&item.snapshot());
            self.refused += 1;
            assert!(self.refused < 1000, "I3: this can never be copied: {copy}");
        }
        if self.next.is_none() {
            self.copies.pop_front();
        }
        true
    }

    pub fn finish(&mut self, snapshots: &mut Snapshots) {
        while self.step(snapshots) {}
    }
}

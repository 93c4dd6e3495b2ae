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
/// of each window, once for each life, and hours before days.
pub fn copies<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<UsageCopy> {
    let mut copies: Vec<UsageCopy> = vec![];
    for mut copy in records.into_iter().flat_map(Record::copies) {
        if !copies.iter().any(|known| known.supersedes(&copy)) {
            copies.retain(|known| {
                let is_older = copy.supersedes(known);
                copy.is_required |= is_older && known.is_required;
                !is_older
            });
            copies.push(copy);
        }
    }
    copies.sort_by_key(|copy| (copy.key.window, copy.birth));
    copies
}

impl Record {
    /// The copies of this record alone.
    pub fn copies(&self) -> Vec<UsageCopy> {
        let (before, after) = (self.before.as_ref(), self.after.as_ref());
        let of =
            |image: &Image, window, is_final| UsageCopy::of(&image.meter, window, is_final, 90);
        let hour = after.map(|after| after.meter.hour);
        let is_same_day = before
            .is_some_and(|before| hour.is_some_and(|hour| before.meter.hour.is_same_day(hour)));
        let mut copies = vec![];
        if let Some(before) =
            before.filter(|before| hour.is_none_or(|hour| before.meter.hour < hour))
        {
            copies.push(of(before, Window::Hourly, true));
            copies.extend((!is_same_day).then(|| of(before, Window::Daily, true)));
        }
        let Some(after) = after else { return copies };
        if !is_same_day {
            copies.push(UsageCopy {
                is_required: true,
                ..of(after, Window::Daily, false)
            });
        } else if after.is_merged || after.meter.write_seq % INTERIM == 0 {
            // A split may make a merged shard again within the window.
            copies.extend(Window::ALL.map(|window| of(after, window, false)));
        }
        copies
    }
}

/// All snapshots of a bucket.
#[derive(Debug, Clone, Default)]
pub struct Snapshots(BTreeMap<ItemKey, Item>);

impl Snapshots {
    /// Returns the copied usage of all windows.
    pub fn all(&self) -> weirgate_shared::Snapshots {
        let read = |(key, item): (&ItemKey, &Item)| {
            let key = SnapshotKey::parse(key).unwrap();
            ((key.window, key.start), item.snapshot())
        };
        self.0.iter().map(read).collect()
    }

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

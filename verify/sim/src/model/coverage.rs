//! Events that were reached in some state: a model without faults proves nothing.

use std::collections::HashSet;
use std::sync::RwLock;

use crate::model::guard::Kind;

/// Something that must happen at least once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A write of this kind.
    Done(Kind),
    /// A write of this kind whose condition did not hold.
    Lost(Kind),
    /// A take from the available tokens.
    Plain,
    /// A take from the refill since `refilled_at`.
    Credit,
    /// A take of a shard that was full, and was cut.
    Full,
    /// A take that began the next window of a quota.
    Begun,
    /// A return of tokens of a window that had ended.
    ReturnedToNoWindow,
    /// A merge of a shard in an open window with one that has not begun it.
    MergedBehind,
    /// A take that returned the tokens of expired leases.
    Reclaimed,
    /// A split of a shard that had been split and merged before.
    Revived,
    /// A client met a shard that is gone.
    Missing,
    /// A request was applied after its client had given up.
    LateDone,
    /// A request that came late or twice did nothing.
    LateLost,
    /// A client found its own id in the item: its request had been applied.
    FoundById,
    /// A client found its own lease in the item.
    FoundLease,
    /// A copy was made before the window was over.
    Interim,
    /// The last copy of a window was made.
    Final,
    /// A copy replaced an older one of the same life.
    Replaced,
    /// A copy was not made, because there was a newer one.
    Superseded,
    /// Usage of an earlier life went to the carry.
    Carried,
    /// Another function carried it first.
    CarryLost,
}

/// The events so far.
#[derive(Debug, Default)]
pub(crate) struct Coverage(RwLock<HashSet<Event>>);

impl Coverage {
    pub(crate) fn note(&self, event: Event) {
        if !self.has(event) {
            self.0.write().expect("no thread panics with it").insert(event);
        }
    }

    fn has(&self, event: Event) -> bool {
        self.0.read().expect("no thread panics with it").contains(&event)
    }

    /// Returns those of `events` that have not happened.
    pub(crate) fn missing(&self, events: &[Event]) -> Vec<Event> {
        events.iter().filter(|event| !self.has(**event)).copied().collect()
    }
}

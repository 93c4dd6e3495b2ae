//! What has happened in some state: a model in which nothing goes wrong proves nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that must happen at least once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A bucket was made.
    Created,
    /// A take of what `tk` says.
    Plain,
    /// A take of the credit since `rf`.
    Credit,
    /// A take of a shard that was full, and was cut.
    Full,
    /// A take whose condition did not hold.
    TakeLost,
    /// A write began an hour.
    Rolled,
    /// A take gave back what expired leases held.
    Reclaimed,
    /// The reconciler did.
    Expired,
    /// Another write came before the reconciler's.
    ExpireLost,
    /// A lease was released.
    Released,
    /// Tokens were given back unused.
    RolledBack,
    /// A lease had ended before it was released.
    EndLost,
    /// A lease was renewed.
    Renewed,
    /// A lease had ended before it was renewed.
    RenewLost,
    /// The aggregator credited a shard.
    Refilled,
    /// Another write had credited it before.
    RefillLost,
    /// A shard became two.
    Split,
    /// It could not, because another write had changed it.
    SplitLost,
    /// It became two again after a merge.
    Revived,
    /// Two shards became one.
    Merged,
    /// They could not, because another write had changed them.
    MergeLost,
    /// A look at a shard.
    Looked,
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
pub(crate) struct Reached(AtomicU64);

impl Reached {
    pub(crate) fn note(&self, event: Event) {
        self.0.fetch_or(bit(event), Ordering::Relaxed);
    }

    /// Returns those of `events` that have not happened.
    pub(crate) fn missing(&self, events: &[Event]) -> Vec<Event> {
        let reached = self.0.load(Ordering::Relaxed);
        events.iter().filter(|event| reached & bit(**event) == 0).copied().collect()
    }
}

#[expect(clippy::as_conversions, reason = "the number of a variant")]
const fn bit(event: Event) -> u64 {
    1 << event as u32
}

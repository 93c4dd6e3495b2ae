//! What has happened in some state: a model in which nothing goes wrong proves nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that must happen at least once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A bucket was made.
    Created,
    /// A take of what `tk` says.
    TakenPlain,
    /// A take of what has flowed in since.
    TakenOfCredit,
    /// A take of a shard that was full, and was cut.
    TakenOfFull,
    /// A take whose condition did not hold.
    TakeRefused,
    /// A client that ran dry gave back what expired leases held.
    ReclaimedByClient,
    /// The reconciler did.
    ReclaimedByReconciler,
    /// Somebody was faster than the reconciler.
    ReclaimRefused,
    /// A lease was released.
    Released,
    /// It had ended before.
    ReleaseRefused,
    /// What was taken was given back unused.
    RolledBack,
    /// A lease was made to last longer.
    Renewed,
    /// It had ended before.
    RenewRefused,
    /// The aggregator credited a shard.
    Refilled,
    /// Somebody had credited it before.
    RefillRefused,
    /// A shard became two.
    Split,
    /// It could not, as it was not what it was.
    SplitRefused,
    /// It became two again after a merge.
    SplitAgain,
    /// Two shards became one.
    Merged,
    /// They could not, as they were not what they were.
    MergeRefused,
    /// A look at a shard.
    Looked,
    /// A client met a shard that is gone.
    Missing,
    /// A request was applied that nobody waited for any more.
    AppliedLate,
    /// A request that came late or twice did nothing.
    RefusedLate,
    /// A client found its own id in the item: its request had been applied.
    FoundById,
    /// A client found its own lease in the item.
    FoundByLease,
    /// A batch had been counted before.
    Dropped,
    /// Records were counted that had been left out.
    GapFilled,
    /// Somebody else had counted meanwhile.
    CountRefused,
}

/// The events so far.
#[derive(Debug, Default)]
pub(crate) struct Reached(AtomicU64);

impl Reached {
    pub(crate) fn note(&self, event: Event) {
        self.0.fetch_or(bit(event), Ordering::Relaxed);
    }

    pub(crate) fn has(&self, event: Event) -> bool {
        self.0.load(Ordering::Relaxed) & bit(event) != 0
    }
}

#[expect(clippy::as_conversions, reason = "the number of a variant")]
const fn bit(event: Event) -> u64 {
    1 << event as u32
}

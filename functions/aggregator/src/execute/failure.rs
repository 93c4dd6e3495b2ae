//! Failed writes, and what their reason allows.

use weirgate_shared::{ItemError, ItemKey};
use weirgate_store::{ErrorKind, StoreError};

/// A write that failed or is unconfirmed.
#[derive(Debug)]
pub struct Failure {
    /// Index in the event of its first record.
    pub record: usize,
    /// Reason.
    pub reason: FailureReason,
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum FailureReason {
    /// DynamoDB refused the write, or did not respond.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The snapshot cannot be read.
    #[error("the snapshot {} {} cannot be read: {error}", key.pk, key.sk)]
    Snapshot {
        /// Which.
        key: ItemKey,
        /// Decoding error.
        error: ItemError,
    },
    /// The snapshot has the maximum number of earlier lives, or of their limits.
    #[error("the snapshot {} {} has no room for another life of a shard", key.pk, key.sk)]
    Full {
        /// Which.
        key: ItemKey,
    },
    /// Other processes copied other lives of the shard at the same time.
    #[error("lost {0} races for the snapshot")]
    Races(usize),
    /// The invocation had no time left.
    #[error("no time left before the deadline")]
    OutOfTime,
}

impl FailureReason {
    /// Returns whether the item's content prevents the write permanently.
    pub(super) const fn is_lasting(&self) -> bool {
        let is_invalid = matches!(self, Self::Store(StoreError { kind: ErrorKind::Invalid, .. }));
        is_invalid || matches!(self, Self::Snapshot { .. } | Self::Full { .. })
    }

    /// Returns whether the item's own key range, or a transaction on the item, prevented the write.
    /// Other items are written in the meantime.
    pub(super) const fn is_of_item(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError {
                kind: ErrorKind::Throttled { key_range: true } | ErrorKind::Conflict,
                ..
            })
        )
    }

    /// Returns whether the same write may succeed later. Includes unknown responses, whose cause
    /// may pass too.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient() || error.kind == ErrorKind::Rejected,
            Self::OutOfTime | Self::Races(_) => true,
            Self::Snapshot { .. } | Self::Full { .. } => false,
        }
    }
}

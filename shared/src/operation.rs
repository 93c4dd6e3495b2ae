//! An operator's change, as its idempotency key remembers it.

use crate::EpochMillis;

/// A change that was made under an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Time of the change.
    pub at: EpochMillis,
    /// What was changed. The same text under the same key is the same change.
    pub what: String,
}

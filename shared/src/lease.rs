//! A lease as a value, and the tokens that it returns.

use std::collections::BTreeMap;

use crate::{EpochMillis, LimitName, MilliTokens};

/// Tokens held under an id until an expiry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lease {
    /// Instant of expiry.
    pub expires_at: EpochMillis,
    /// Held tokens, by limit.
    pub tokens: BTreeMap<LimitName, MilliTokens>,
    /// End of the window that the tokens of a quota are from, by limit. Tokens of a window that has
    /// ended return to none.
    pub windows: BTreeMap<LimitName, EpochMillis>,
    /// Free-text owner, for operators. The protocol ignores it.
    pub owner: String,
}

/// Tokens that an expired or rolled back lease returns to one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseReturn {
    /// Amount added to the balance.
    pub available: MilliTokens,
    /// Amount subtracted from the consumption: unused tokens of a rate. Zero for slots, which count
    /// when they are taken.
    pub consumed: MilliTokens,
}

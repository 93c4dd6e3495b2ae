//! Outcome of a settlement.

use super::error::Error;

/// Outcome of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[must_use = "a lease that has ended settles nothing"]
pub enum Settlement {
    /// Applied exactly once.
    Applied,
    /// The lease had already ended: it was released, or it expired and its tokens returned. Nothing
    /// changed.
    LeaseGone,
}

impl Settlement {
    /// Combines several outcomes: `Applied` only if all were applied.
    pub(crate) fn all(
        settled: impl IntoIterator<Item = Result<Self, Error>>,
    ) -> Result<Self, Error> {
        // None stops the others; the worst outcome is returned.
        settled
            .into_iter()
            .reduce(|one, other| match (one, other) {
                (Err(error), _) | (Ok(_), Err(error)) => Err(error),
                (Ok(Self::LeaseGone), _) | (_, Ok(Self::LeaseGone)) => Ok(Self::LeaseGone),
                _ => Ok(Self::Applied),
            })
            .unwrap_or(Ok(Self::Applied))
    }
}

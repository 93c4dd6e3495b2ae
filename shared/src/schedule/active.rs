//! What a schedule says at an instant.

use super::Scale;
use crate::EpochMillis;

/// The scale of a schedule between two boundaries: instants at which a rule begins or ends to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveScale {
    /// Scale of the limit.
    pub scale: Scale,
    /// Last boundary, from which on it is in force: `i64::MIN` if that was before the year -9999.
    pub since: EpochMillis,
    /// Next boundary: until then nothing changes. `i64::MAX` if that is after the year 9999.
    pub until: EpochMillis,
}

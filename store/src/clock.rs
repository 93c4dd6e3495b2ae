//! The clock of the machine, which may be off.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use weirgate_shared::EpochMillis;

/// The clock of one machine. [`crate::CorrectedClock`] corrects it by the dates of DynamoDB's
/// responses.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the current time.
    fn now(&self) -> EpochMillis;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> EpochMillis {
        // A time before 1970 counts as 1970; buckets then do not refill.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        EpochMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

//! The clock of the machine, which may be off.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use weirgate_shared::EpochMillis;

/// Tells the time of one machine. [`crate::CorrectedClock`] corrects it by what DynamoDB's answers
/// say.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The time now.
    fn now(&self) -> EpochMillis;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> EpochMillis {
        // A clock before 1970 is no clock; buckets then wait.
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        EpochMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

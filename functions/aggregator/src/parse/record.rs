//! One write to a shard, as the stream reports it.

use weirgate_shared::{EpochMillis, Hour, Meter, Shard};

/// One write to a bucket shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Index in the event, from 0.
    pub index: usize,
    /// Time of the write, to the second or better.
    pub at: EpochMillis,
    /// Usage counters before the write; `None` if there was no item.
    pub before: Option<Meter>,
    /// Shard after the write.
    pub after: After,
}

/// A shard after a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// A live shard, without its leases.
    Live(Box<Shard>),
    /// Usage counters of a shard that was merged away.
    Merged(Meter),
    /// No item: it was deleted.
    Gone,
}

impl After {
    /// Returns the hour that the shard counts; `None` if it was deleted.
    pub const fn hour(&self) -> Option<Hour> {
        match self {
            Self::Live(shard) => Some(shard.hour),
            Self::Merged(meter) => Some(meter.hour),
            Self::Gone => None,
        }
    }
}

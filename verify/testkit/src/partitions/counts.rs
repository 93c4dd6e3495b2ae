//! What arrived, and what became of it.

use std::ops::Sub;

/// What arrived, and what became of it. The difference of two counts is what arrived between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of any kind.
    pub requests: u64,
    /// Those of them that write; a transaction is one.
    pub writes: u64,
    /// Writes that were refused because a partition of theirs was spent.
    pub throttled: u64,
    /// Those of them whose spent partition was an index's.
    pub index_throttled: u64,
    /// Writes, transactions among them, that were refused because a transaction was in the way.
    pub conflicts: u64,
    /// Write units of the table, without its indexes.
    pub units: u64,
    /// Write units of the indexes.
    pub index_units: u64,
    /// Reads that were refused as a whole because all their partitions were spent.
    pub reads_throttled: u64,
    /// Keys that a `BatchGetItem` returned unprocessed.
    pub kept_back: u64,
    /// Read units, of the table and its indexes, in halves.
    pub half_reads: u64,
}

impl Counts {
    /// Throttled writes among all writes, 0 to 1; 0 if there were none.
    pub fn throttled_share(&self) -> f64 {
        let count = |writes| f64::from(u32::try_from(writes).unwrap_or(u32::MAX));
        if self.writes == 0 { 0.0 } else { count(self.throttled) / count(self.writes) }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            writes: self.writes - before.writes,
            throttled: self.throttled - before.throttled,
            index_throttled: self.index_throttled - before.index_throttled,
            conflicts: self.conflicts - before.conflicts,
            units: self.units - before.units,
            index_units: self.index_units - before.index_units,
            reads_throttled: self.reads_throttled - before.reads_throttled,
            kept_back: self.kept_back - before.kept_back,
            half_reads: self.half_reads - before.half_reads,
        }
    }
}

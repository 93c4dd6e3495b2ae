//! Adds up the capacity that DynamoDB reports: for tests, benchmarks and the demo.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::types::ConsumedCapacity;
use weirgate_shared::write_units;

use crate::Item;

/// Counts requests and capacity; clones share the count.
#[derive(Debug, Clone, Default)]
pub struct CapacityMeter(Arc<Mutex<ConsumedUnits>>);

/// Consumed capacity.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConsumedUnits {
    /// Number of requests for which DynamoDB reported the capacity.
    pub requests: u64,
    /// Write units of the table and its indexes.
    pub total: f64,
    /// Write units of the table alone.
    pub table: f64,
    /// Read units of `BatchGetItem` and `Query`.
    pub read: f64,
    /// Write units of each index.
    pub indexes: BTreeMap<String, f64>,
}

impl CapacityMeter {
    /// Returns the capacity consumed since the last call.
    #[must_use]
    pub fn take(&self) -> ConsumedUnits {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a failed condition: DynamoDB reports no capacity for it, but bills the write units of
    /// the existing item.
    pub(crate) fn count_lost(&self, old: Option<&Item>) {
        let cost = f64::from(old.map_or(1, |item| write_units(item.attributes())));
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        units.requests += 1;
        units.total += cost;
        units.table += cost;
    }

    /// Counts a cancelled transaction, for which DynamoDB reports no capacity: it costs twice the
    /// write units of each item. An item that was not returned counts as 1 KB.
    pub(crate) fn count_cancelled<'a>(&self, items: impl Iterator<Item = Option<&'a Item>>) {
        let cost: f64 = items
            .map(|old| 2.0 * f64::from(old.map_or(1, |item| write_units(item.attributes()))))
            .sum();
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        units.requests += 1;
        units.total += cost;
        units.table += cost;
    }

    /// Counts a read, which is not among the requests.
    pub(crate) fn count_read(&self, consumed: &ConsumedCapacity) {
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        units.read += consumed.capacity_units().unwrap_or_default();
    }

    /// Counts a write. A transaction repeated with its token costs reads, which are not counted.
    pub(crate) fn count(&self, consumed: Option<&ConsumedCapacity>) {
        let Some(consumed) = consumed else { return };
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        units.requests += 1;
        let written = |all: Option<f64>, read: Option<f64>| {
            all.unwrap_or_default() - read.unwrap_or_default()
        };
        units.total += written(consumed.capacity_units(), consumed.read_capacity_units());
        units.table += consumed
            .table()
            .map_or(0.0, |table| written(table.capacity_units(), table.read_capacity_units()));
        for (index, capacity) in consumed.global_secondary_indexes().into_iter().flatten() {
            *units.indexes.entry(index.clone()).or_default() +=
                capacity.capacity_units().unwrap_or_default();
        }
    }
}

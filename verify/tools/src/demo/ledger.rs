//! The driver's own record of its consumption, which the report compares with the table.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use weirgate::{MilliTokens, MilliTotal};

/// Entity and resource.
pub(super) type Bucket = (String, String);

/// Consumption of one bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Consumed {
    /// By limit.
    pub tokens: BTreeMap<String, MilliTotal>,
    /// Granted acquires.
    pub events: i128,
}

/// Consumption by bucket.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<BTreeMap<Bucket, Consumed>>);

impl Ledger {
    /// Counts one granted acquire and what it used in the end.
    pub(super) fn count(&self, entity: &str, resource: &str, used: &[(&str, i64)]) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let consumed = buckets
            .entry((entity.to_owned(), resource.to_owned()))
            .or_default();
        consumed.events += 1;
        for (limit, tokens) in used {
            *consumed.tokens.entry((*limit).to_owned()).or_default() +=
                MilliTokens::from_tokens(*tokens);
        }
    }

    /// All of it.
    pub(super) fn read(&self) -> BTreeMap<Bucket, Consumed> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

//! The items of a table, page by page.

use std::ops::Bound;

use aws_sdk_dynamodb::operation::scan::ScanOutput;
use weirgate_shared::ItemKey;

use super::{MemoryTable, item};
use crate::attribute;

impl MemoryTable {
    /// Returns one page of the whole table, after the item with this key. As in DynamoDB, a page
    /// that reaches the limit has a next one, even if that is empty.
    pub(crate) fn scan(&self, prefix: &str, limit: i32, after: Option<ItemKey>) -> ScanOutput {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let limit = usize::try_from(limit).unwrap_or_default();
        let items = self.locked();
        let read: Vec<_> = items.range((start, Bound::Unbounded)).take(limit).collect();
        let last = read.last().filter(|_| read.len() == limit);
        let found = read.iter().filter(|(key, _)| key.pk.starts_with(prefix));
        ScanOutput::builder()
            .set_items(Some(found.map(|(_, found)| item(found).0).collect()))
            .scanned_count(i32::try_from(read.len()).unwrap_or(i32::MAX))
            .set_last_evaluated_key(last.map(|(key, _)| attribute::key(key)))
            .build()
    }
}

//! The items of a table, page by page.

use std::ops::Bound;

use super::{MemoryTable, item};
use crate::request::position;
use crate::{Item, ScanPage, StoreError, attribute};

impl MemoryTable {
    /// Returns one page of the whole table, after the item with this key. As in DynamoDB, a page
    /// that reaches the limit has a next one, even if that is empty.
    pub(crate) async fn scan(
        &self,
        prefix: &str,
        limit: i32,
        after: Option<&Item>,
    ) -> Result<ScanPage, StoreError> {
        self.reach("Scan")?;
        let start = after.and_then(Item::key);
        let start = start.map_or(Bound::Unbounded, Bound::Excluded);
        let limit = usize::try_from(limit).unwrap_or_default();
        let items = self.locked();
        let read: Vec<_> = items.range((start, Bound::Unbounded)).take(limit).collect();
        let last = read.last().filter(|_| read.len() == limit);
        let found = read.iter().filter(|(key, _)| key.pk.starts_with(prefix));
        Ok(ScanPage {
            items: found.map(|(_, found)| item(found)).collect(),
            scanned: read.len(),
            next: last.map(|(key, _)| position(attribute::key(key))),
        })
    }
}

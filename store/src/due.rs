//! Lists the due items of the index, page by page.

use weirgate_shared::{Attr, EpochMillis, ItemKey, attr, read_key};

use crate::index::DUE;
use crate::request::{Listed, Listing, Range};
use crate::{Consistency, Item, StoreError, Table};

/// An item that the reconciler must process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The item.
    pub key: ItemKey,
    /// Instant since which it is due.
    pub due_at: EpochMillis,
}

/// The end of a partition of `DueIndex` at which reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Longest due first.
    OldestFirst,
    /// Longest due last.
    NewestFirst,
}

/// One page of due items.
#[derive(Debug, Clone, PartialEq)]
pub struct DuePage {
    /// Due items.
    pub due: Vec<Due>,
    /// Start of the next page; `None` after the last one.
    pub next: Option<Item>,
}

impl Table {
    /// Returns one page of items due at `now` in one partition of `DueIndex`, in this order: at
    /// most `limit`, `after` the previous page. Continuing from a page terminates even if items
    /// stay due.
    ///
    /// # Errors
    /// [`StoreError`] of the last of four attempts.
    pub async fn query_due(
        &self,
        due_shard: &str,
        now: EpochMillis,
        order: Order,
        limit: i32,
        after: Option<&Item>,
    ) -> Result<DuePage, StoreError> {
        let listing = Listing {
            index: Some(DUE),
            partition: due_shard,
            keys: Range::UpTo(now.0),
            is_descending: order == Order::NewestFirst,
            limit: Some(limit),
            consistency: Consistency::Eventual,
            after: after.cloned(),
        };
        let Listed { items, last } = self.list(&listing).await?;
        let read = |item: Item| {
            // Ignores a fractional `due`; the shard's decoder reports it.
            let due = item.attributes().find_map(|(name, value)| match value {
                Attr::N(due) if name == attr::DUE => due.split('.').next()?.parse().ok(),
                _ => None,
            });
            Some(Due {
                key: read_key(item.attributes())?,
                due_at: EpochMillis(due.unwrap_or_default()),
            })
        };
        Ok(DuePage { due: items.into_iter().filter_map(read).collect(), next: last })
    }
}

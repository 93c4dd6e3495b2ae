//! Lists the due items of the index, page by page.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::{Attr, EpochMillis, ItemKey, attr, read_key};

#[cfg(feature = "memory")]
use crate::memory::{Listing, Range};
use crate::{ErrorKind, Item, StoreError, Table};

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
        let query = || async {
            #[cfg(feature = "memory")]
            if let Some(memory) = &self.memory {
                memory.reach("Query")?;
                return Ok(memory.query(&Listing {
                    hash: attr::DUE_SHARD,
                    range: attr::DUE,
                    is_index: true,
                    partition: due_shard,
                    keys: Range::UpTo(now.0),
                    is_descending: order == Order::NewestFirst,
                    limit: Some(limit),
                    after: after.map(|item| item.0.clone()),
                }));
            }
            let request = self
                .client
                .query()
                .table_name(&self.name)
                .index_name(attr::DUE_INDEX)
                .key_condition_expression("#shard = :shard AND #due <= :now")
                .expression_attribute_names("#shard", attr::DUE_SHARD)
                .expression_attribute_names("#due", attr::DUE)
                .expression_attribute_values(":shard", AttributeValue::S(due_shard.to_owned()))
                .expression_attribute_values(":now", AttributeValue::N(now.0.to_string()))
                .scan_index_forward(order == Order::OldestFirst)
                .set_exclusive_start_key(after.map(|item| item.0.clone()))
                .limit(limit);
            let found = request.send().await;
            found.map_err(|error| self.failed(format!("Query of {due_shard}"), error))
        };
        let found = self.again(ErrorKind::is_transient, query).await?;
        let read = |item: HashMap<String, AttributeValue>| {
            let item = Item(item);
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
        let due = found
            .items
            .unwrap_or_default()
            .into_iter()
            .filter_map(read)
            .collect();
        Ok(DuePage {
            due,
            next: found.last_evaluated_key.map(Item),
        })
    }
}

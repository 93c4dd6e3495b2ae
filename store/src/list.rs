//! Lists the items of one partition of the table, or of an index, page by page.

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::attr;

use crate::{ErrorKind, Index, Item, StoreError, Table};

/// Which items to list.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Index to list; `None` for the table itself, which also lists the latest writes.
    pub index: Option<Index>,
    /// Partition key.
    pub partition: &'a str,
    /// Prefix of the sort keys.
    pub prefix: &'a str,
    /// Whether the largest sort key comes first.
    pub is_descending: bool,
    /// Maximum number of items in a page, from 1.
    pub limit: i32,
}

/// One page of items.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// Items; of an index, only their keys.
    pub items: Vec<Item>,
    /// Start of the next page; `None` after the last one.
    pub next: Option<Item>,
}

impl Table {
    /// Returns one page of a listing, `after` the previous page.
    ///
    /// # Errors
    /// [`StoreError`] of the last of four attempts.
    pub async fn query(
        &self,
        listing: Query<'_>,
        after: Option<&Item>,
    ) -> Result<Page, StoreError> {
        let (hash, range) = listing
            .index
            .map_or((attr::PK, attr::SK), |index| (index.hash, index.range.0));
        let query = || async {
            let request = self
                .client
                .query()
                .table_name(&self.name)
                .set_index_name(listing.index.map(|index| index.name.to_owned()))
                .key_condition_expression("#hash = :hash AND begins_with(#range, :prefix)")
                .expression_attribute_names("#hash", hash)
                .expression_attribute_names("#range", range)
                .expression_attribute_values(
                    ":hash",
                    AttributeValue::S(listing.partition.to_owned()),
                )
                .expression_attribute_values(
                    ":prefix",
                    AttributeValue::S(listing.prefix.to_owned()),
                )
                .consistent_read(listing.index.is_none())
                .scan_index_forward(!listing.is_descending)
                .set_exclusive_start_key(after.map(|item| item.0.clone()))
                .limit(listing.limit);
            let found = Box::pin(request.send()).await;
            found.map_err(|error| {
                StoreError::new(&self.name, format!("Query of {}", listing.partition), error)
            })
        };
        let found = self.again(ErrorKind::is_transient, query).await?;
        let items = found
            .items
            .unwrap_or_default()
            .into_iter()
            .map(Item)
            .collect();
        Ok(Page {
            items,
            next: found.last_evaluated_key.map(Item),
        })
    }
}

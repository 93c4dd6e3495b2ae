//! Lists the items of one partition of the table, or of an index, page by page.

use aws_sdk_dynamodb::types::AttributeValue;

use crate::dynamo::DynamoTable;
use crate::request::{Listed, Listing, Position, Range, item, position};
use crate::table::on_backend;
use crate::{Consistency, ErrorKind, Index, Item, StoreError, Table};

/// Which items to list.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Index to list; `None` for the table itself.
    pub index: Option<Index>,
    /// Partition key.
    pub partition: &'a str,
    /// Sort keys.
    pub keys: SortKeys<'a>,
    /// Whether the largest sort key comes first.
    pub is_descending: bool,
    /// Maximum number of items in a page, from 1; `None` for as many as fit in 1 MB.
    pub limit: Option<i32>,
    /// Consistency of a listing of the table; an index has only [`Consistency::Eventual`].
    pub consistency: Consistency,
}

impl<'a> Query<'a> {
    /// Returns the query of a partition of the table, in ascending order, with
    /// [`Consistency::Strong`].
    #[must_use]
    pub const fn new(partition: &'a str, keys: SortKeys<'a>) -> Self {
        Self {
            index: None,
            partition,
            keys,
            is_descending: false,
            limit: None,
            consistency: Consistency::Strong,
        }
    }

    /// Returns the query of a partition of an index, in ascending order.
    #[must_use]
    pub const fn of_index(index: Index, partition: &'a str, keys: SortKeys<'a>) -> Self {
        Self {
            index: Some(index),
            consistency: Consistency::Eventual,
            ..Self::new(partition, keys)
        }
    }
}

/// Range of sort keys.
#[derive(Debug, Clone, Copy)]
pub enum SortKeys<'a> {
    /// Those with this prefix.
    StartingWith(&'a str),
    /// Those from the first to the second, both included.
    Between(&'a str, &'a str),
}

/// One page of items.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// Items; of an index, only their keys.
    pub items: Vec<Item>,
    /// Position of the next page; `None` after the last one.
    pub next: Option<Position>,
}

impl Table {
    /// Returns one page of a listing, `after` the previous page.
    ///
    /// # Errors
    /// [`StoreError`] of the last of four attempts.
    pub async fn query(
        &self,
        query: Query<'_>,
        after: Option<&Position>,
    ) -> Result<Page, StoreError> {
        let listing = Listing {
            index: query.index,
            partition: query.partition,
            keys: match query.keys {
                SortKeys::StartingWith(prefix) => Range::StartingWith(prefix),
                SortKeys::Between(first, last) => Range::Between(first, last),
            },
            is_descending: query.is_descending,
            limit: query.limit,
            consistency: query.consistency,
            after: after.map(item),
        };
        let Listed { items, last } = self.list(&listing).await?;
        Ok(Page { items, next: last.map(|Item(key)| position(key)) })
    }

    pub(crate) async fn list(&self, listing: &Listing<'_>) -> Result<Listed, StoreError> {
        let list = || async { on_backend!(self, table => table.list(listing)) };
        self.again(ErrorKind::is_transient, list).await
    }
}

impl DynamoTable {
    pub(crate) async fn list(&self, listing: &Listing<'_>) -> Result<Listed, StoreError> {
        let (hash, range) = listing.names();
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let request = self
            .client
            .query()
            .table_name(&self.name)
            .set_index_name(listing.index.map(|index| index.name.to_owned()))
            .expression_attribute_names("#hash", hash)
            .expression_attribute_names("#range", range)
            .expression_attribute_values(":hash", text(listing.partition))
            .consistent_read(listing.index.is_none() && listing.consistency == Consistency::Strong)
            .scan_index_forward(!listing.is_descending)
            .set_exclusive_start_key(listing.after.clone().map(|item| item.0))
            .set_limit(listing.limit)
            .set_return_consumed_capacity(self.report());
        let request = match listing.keys {
            Range::StartingWith(prefix) => request
                .key_condition_expression("#hash = :hash AND begins_with(#range, :prefix)")
                .expression_attribute_values(":prefix", text(prefix)),
            Range::Between(first, last) => request
                .key_condition_expression("#hash = :hash AND #range BETWEEN :first AND :last")
                .expression_attribute_values(":first", text(first))
                .expression_attribute_values(":last", text(last)),
            Range::UpTo(last) => request
                .key_condition_expression("#hash = :hash AND #range <= :last")
                .expression_attribute_values(":last", AttributeValue::N(last.to_string())),
        };
        let found = request.send().await;
        let found =
            found.map_err(|error| self.failed(format!("Query of {}", listing.partition), error))?;
        if let (Some(meter), Some(capacity)) = (&self.meter, &found.consumed_capacity) {
            meter.count_read(capacity);
        }
        let items = found.items.unwrap_or_default();
        Ok(Listed {
            items: items.into_iter().map(Item).collect(),
            last: found.last_evaluated_key.map(Item),
        })
    }
}

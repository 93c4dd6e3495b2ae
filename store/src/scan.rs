//! Reads the whole table page by page, for what no index can find.

use aws_sdk_dynamodb::types::AttributeValue;

use crate::dynamo::DynamoTable;
use crate::request::{Position, ScanPage, item, position};
use crate::table::on_backend;
use crate::{ErrorKind, Item, StoreError, Table};

impl Table {
    /// Reads the next items of the whole table, at most `limit` (from 1) and 1 MB, and returns those
    /// whose partition key begins with `prefix`. Eventually consistent: half a read unit for each
    /// 4 KB read, whatever is returned.
    ///
    /// # Errors
    /// [`StoreError`] of the last of four attempts.
    pub async fn scan(
        &self,
        prefix: &str,
        limit: i32,
        after: Option<&Position>,
    ) -> Result<ScanPage, StoreError> {
        let after = after.map(item);
        let scan =
            || async { on_backend!(self, table => table.scan(prefix, limit, after.as_ref())) };
        self.again(ErrorKind::is_transient, scan).await
    }
}

impl DynamoTable {
    pub(crate) async fn scan(
        &self,
        prefix: &str,
        limit: i32,
        after: Option<&Item>,
    ) -> Result<ScanPage, StoreError> {
        let request = self
            .client
            .scan()
            .table_name(&self.name)
            .filter_expression("begins_with(PK, :prefix)")
            .expression_attribute_values(":prefix", AttributeValue::S(prefix.to_owned()))
            .limit(limit)
            .set_exclusive_start_key(after.map(|item| item.0.clone()))
            .set_return_consumed_capacity(self.report());
        let found = request.send().await;
        let found = found.map_err(|error| self.failed("Scan".to_owned(), error))?;
        if let (Some(meter), Some(capacity)) = (&self.meter, &found.consumed_capacity) {
            meter.count_read(capacity);
        }
        let items = found.items.unwrap_or_default();
        Ok(ScanPage {
            items: items.into_iter().map(Item).collect(),
            scanned: usize::try_from(found.scanned_count).unwrap_or_default(),
            next: found.last_evaluated_key.map(position),
        })
    }
}

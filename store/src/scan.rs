//! Reads the whole table page by page, for what no index can find.

use aws_sdk_dynamodb::types::AttributeValue;
#[cfg(feature = "memory")]
use weirgate_shared::{ItemKey, attr};

use crate::list::{Position, position};
use crate::table::boxed;
use crate::{ErrorKind, Item, StoreError, Table};

/// One page of a scan.
#[derive(Debug, Clone, PartialEq)]
pub struct ScanPage {
    /// Items whose partition key has the prefix.
    pub items: Vec<Item>,
    /// Number of items read, with any key.
    pub scanned: usize,
    /// Position of the next page; `None` after the last one.
    pub next: Option<Position>,
}

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
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let scan = || async {
            #[cfg(feature = "memory")]
            if let Some(memory) = &self.memory {
                memory.reach("Scan")?;
                let key = |position: &'_ Position| {
                    let [pk, sk] = [attr::PK, attr::SK].map(|name| position.get(name).cloned());
                    Some(ItemKey { pk: pk?, sk: sk? })
                };
                return Ok(memory.scan(prefix, limit, after.and_then(key)));
            }
            let start = after.map(|position| {
                let keys = position.iter();
                keys.map(|(name, key)| (name.clone(), text(key))).collect()
            });
            let request = self
                .client
                .scan()
                .table_name(&self.name)
                .filter_expression("begins_with(PK, :prefix)")
                .expression_attribute_values(":prefix", text(prefix))
                .limit(limit)
                .set_exclusive_start_key(start)
                .set_return_consumed_capacity(self.report());
            let found = boxed(request.send()).await;
            found.map_err(|error| self.failed("Scan".to_owned(), error))
        };
        let found = self.again(ErrorKind::is_transient, scan).await?;
        if let (Some(meter), Some(capacity)) = (&self.meter, &found.consumed_capacity) {
            meter.count_read(capacity);
        }
        Ok(ScanPage {
            items: found
                .items
                .unwrap_or_default()
                .into_iter()
                .map(Item)
                .collect(),
            scanned: usize::try_from(found.scanned_count).unwrap_or_default(),
            next: found.last_evaluated_key.map(position),
        })
    }
}

//! Writes that a condition refuses.

use weirgate_shared::BucketKey;

use crate::values::Error;

/// Refusals in a row by an item that did not change, from which on the next write would be refused
/// too: 4. A plan may guess once what other processes did since its view.
const MAX_REFUSALS: u32 = 4;

/// Refused writes of one call, or of one queue.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Version of the item that refused the last one; `None` if there was no item.
    version: Option<i64>,
    in_a_row: u32,
}

impl Refusals {
    /// Records a refusal by the item of this version, which each write raises.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the item has not changed for [`MAX_REFUSALS`]: a write is planned on
    /// the item as it is, so it would be planned in the same way again. The count begins again then.
    pub(crate) fn record(&mut self, key: &BucketKey, version: Option<i64>) -> Result<(), Error> {
        if self.version != version {
            self.in_a_row = 0;
        }
        (self.version, self.in_a_row) = (version, self.in_a_row + 1);
        if self.in_a_row < MAX_REFUSALS {
            return Ok(());
        }
        *self = Self::default();
        let bucket = key.item_key().pk;
        Err(Error::Invalid(format!(
            "bucket {bucket} must accept writes that are planned on it, got {MAX_REFUSALS} refusals without a \
             change: its item was written by other means, correct or delete it"
        )))
    }
}

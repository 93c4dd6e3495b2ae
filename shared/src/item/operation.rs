//! The item that remembers a change under its idempotency key.

use super::parse::integer;
use super::{Attr, ItemError};
use crate::{EpochMillis, Operation, attr};

/// Reads the change that an idempotency key was used for.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_operation<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<Operation, ItemError> {
    let (mut at, mut what) = (None, None);
    for (name, value) in item {
        match (name, &value) {
            (attr::AT, _) => at = Some(integer(attr::AT, &value)?),
            (attr::WHAT, Attr::S(text)) => what = Some((*text).to_owned()),
            (attr::WHAT, _) => return Err(ItemError::new(attr::WHAT, &value, "a string")),
            _ => {}
        }
    }
    Ok(Operation {
        at: EpochMillis(at.ok_or_else(|| ItemError::missing(attr::AT, "a whole number"))?),
        what: what.ok_or_else(|| ItemError::missing(attr::WHAT, "a string"))?,
    })
}

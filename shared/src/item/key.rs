//! The key of an item.

use super::attribute::Attr;
use crate::{ItemKey, attr};

/// Returns the key of an item; `None` if an attribute is missing or no string.
#[must_use]
pub fn read_key<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> Option<ItemKey> {
    let (mut pk, mut sk) = (None, None);
    for (name, value) in item {
        match (name, value) {
            (attr::PK, Attr::S(text)) => pk = Some(text.to_owned()),
            (attr::SK, Attr::S(text)) => sk = Some(text.to_owned()),
            _ => {}
        }
    }
    Some(ItemKey { pk: pk?, sk: sk? })
}

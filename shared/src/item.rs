//! Item codec: attributes to [`Shard`](crate::Shard) or [`Snapshot`](crate::Snapshot), and back.
//! Never guesses: an error names the wrong attribute.

mod audit;
mod bucket;
mod config;
mod escrow;
mod lease;
mod snapshot;
mod stamp;

use crate::attr;
use crate::{ItemKey, NameError};

pub use audit::{read_audit, write_audit};
pub(crate) use bucket::write_limit;
pub use bucket::{BucketReader, is_merged, read_bucket, read_live, write_bucket};
pub use config::{read_config, read_entity, read_schema, write_config, write_entity};
pub(crate) use escrow::write_escrow;
pub(crate) use lease::write_held;
pub use lease::{write_lease, write_leases};
pub use snapshot::read_snapshot;
pub use stamp::read_stamp;

/// An attribute as DynamoDB stores it, borrowed from its source.
#[derive(Debug, Clone, PartialEq)]
pub enum Attr<'a> {
    /// A number, in its decimal text.
    N(&'a str),
    /// A string.
    S(&'a str),
    /// A boolean.
    Bool(bool),
    /// A map.
    M(Vec<(&'a str, Attr<'a>)>),
    /// A set of numbers, each in its decimal text.
    Numbers(Vec<&'a str>),
    /// Anything this crate never writes.
    Other,
}

/// An undecodable item: the wrong attribute, its value, and the permitted values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("attribute {attribute} is {value}, it takes {takes}")]
pub struct ItemError {
    /// Name of the attribute.
    pub attribute: String,
    /// Value of the attribute.
    pub value: String,
    /// Permitted values.
    pub takes: &'static str,
}

impl ItemError {
    fn new(attribute: &str, value: &Attr<'_>, takes: &'static str) -> Self {
        // An item can have 400 KB, and the beginning of a value shows the mistake.
        const SHOWN: usize = 200;
        let mut value = match value {
            Attr::N(text) | Attr::S(text) => format!("{text:?}"),
            other => format!("{other:?}"),
        };
        if value.len() > SHOWN {
            value.truncate(value.floor_char_boundary(SHOWN));
            value.push_str("...");
        }
        Self {
            attribute: attribute.to_owned(),
            value,
            takes,
        }
    }

    fn missing(attribute: &str, takes: &'static str) -> Self {
        Self {
            attribute: attribute.to_owned(),
            value: "missing".to_owned(),
            takes,
        }
    }
}

fn integer(name: &str, value: &Attr<'_>) -> Result<i64, ItemError> {
    match value {
        Attr::N(text) => text.parse().ok(),
        _ => None,
    }
    .ok_or_else(|| ItemError::new(name, value, "a whole number within 64 bits"))
}

/// Parses a name that an attribute has.
fn name<'a, T: TryFrom<&'a str, Error = NameError>>(
    name: &str,
    value: &Attr<'a>,
) -> Result<T, ItemError> {
    match value {
        Attr::S(text) => T::try_from(text).map_err(|error| ItemError::new(name, value, error.rule)),
        other => Err(ItemError::new(name, other, "a name")),
    }
}

/// Returns the size of a value as DynamoDB bills it: text by its bytes, a number by about two
/// digits a byte.
fn size_bytes(value: &Attr<'_>) -> usize {
    match value {
        Attr::N(text) => text.len().div_ceil(2) + 1,
        Attr::S(text) => text.len(),
        Attr::Bool(_) | Attr::Other => 1,
        Attr::Numbers(numbers) => numbers
            .iter()
            .map(|number| size_bytes(&Attr::N(number)))
            .sum(),
        Attr::M(entries) => {
            3 + entries
                .iter()
                .map(|(name, value)| 1 + name.len() + size_bytes(value))
                .sum::<usize>()
        }
    }
}

/// Returns the write units that DynamoDB bills for one write of this item: one for each KB begun,
/// also if its condition fails.
#[must_use]
pub fn write_units<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> u32 {
    let bytes: usize = item
        .map(|(name, value)| name.len() + size_bytes(&value))
        .sum();
    u32::try_from(bytes.div_ceil(1024))
        .unwrap_or(u32::MAX)
        .max(1)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_as_large_as_dynamodb_says() {
        let map = |entries| Attr::M(entries);
        for (value, bytes) in [
            (Attr::N("12345"), 4),
            (Attr::N("1234"), 3),
            (Attr::S("abc"), 3),
            (Attr::Bool(true), 1),
            (Attr::Other, 1),
            (map(vec![]), 3),
            (
                map(vec![("ab", Attr::N("12")), ("c", Attr::S("xyz"))]),
                3 + (1 + 2 + 2) + (1 + 1 + 3),
            ),
        ] {
            assert_eq!(size_bytes(&value), bytes, "{value:?}");
        }
    }

    #[test]
    fn an_error_shows_the_beginning_of_what_is_long() {
        let long = "ö".repeat(1000);
        for value in [Attr::S(&long), Attr::M(vec![(&long, Attr::Other)])] {
            let shown = ItemError::new("q0", &value, "a number").value;
            assert!(shown.len() < 210 && shown.ends_with("ö..."), "{shown}");
        }
        assert_eq!(
            ItemError::new("q0", &Attr::S("far"), "a number").value,
            "\"far\""
        );
    }

    #[test]
    fn an_item_costs_a_unit_for_each_kilobyte_begun() {
        for (text, units) in [(0, 1), (1020, 1), (1021, 2), (2044, 2), (2045, 3)] {
            let text = "x".repeat(text);
            assert_eq!(write_units([("name", Attr::S(&text))].into_iter()), units);
        }
    }
}

//! An attribute's value as DynamoDB stores it, and its size as DynamoDB bills it.

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

/// Returns the size of a value as DynamoDB bills it: text by its bytes, a number by about two
/// digits a byte.
pub(super) fn size_bytes(value: &Attr<'_>) -> usize {
    match value {
        Attr::N(text) => text.len().div_ceil(2) + 1,
        Attr::S(text) => text.len(),
        Attr::Bool(_) | Attr::Other => 1,
        Attr::Numbers(numbers) => numbers.iter().map(|number| size_bytes(&Attr::N(number))).sum(),
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
    let bytes: usize = item.map(|(name, value)| name.len() + size_bytes(&value)).sum();
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).max(1)
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
    fn an_item_costs_a_unit_for_each_kilobyte_begun() {
        for (text, units) in [(0, 1), (1020, 1), (1021, 2), (2044, 2), (2045, 3)] {
            let text = "x".repeat(text);
            assert_eq!(write_units([("name", Attr::S(&text))].into_iter()), units);
        }
    }
}

//! Undecodable items.

use super::attribute::Attr;

/// An undecodable item: the wrong attribute, its value, and the permitted values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("attribute {attribute} is {value}, must be {takes}")]
pub struct ItemError {
    /// Name of the attribute.
    pub attribute: String,
    /// Value of the attribute.
    pub value: String,
    /// Permitted values.
    pub takes: &'static str,
}

impl ItemError {
    pub(super) fn new(attribute: &str, value: &Attr<'_>, takes: &'static str) -> Self {
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
        Self { attribute: attribute.to_owned(), value, takes }
    }

    pub(super) fn missing(attribute: &str, takes: &'static str) -> Self {
        Self { attribute: attribute.to_owned(), value: "missing".to_owned(), takes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_beginning_of_what_is_long() {
        let long = "ö".repeat(1000);
        for value in [Attr::S(&long), Attr::M(vec![(&long, Attr::Other)])] {
            let shown = ItemError::new("q0", &value, "a number").value;
            assert!(shown.len() < 210 && shown.ends_with("ö..."), "{shown}");
        }
        assert_eq!(ItemError::new("q0", &Attr::S("far"), "a number").value, "\"far\"");
    }
}

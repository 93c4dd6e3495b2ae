//! What people call an entity, and how they group it.

use std::collections::BTreeMap;

/// Maximum size of a display name, a label's name and a label's value, in bytes.
const MAX_DISPLAY_NAME: usize = 256;
const MAX_LABEL_NAME: usize = 64;
const MAX_LABEL_VALUE: usize = 256;
/// Maximum size of all labels of an entity with their names, in bytes: with all else, its item stays
/// within the 4 KB that half a read unit reads.
const MAX_LABELS: usize = 2048;

/// Display name and labels of an entity. No decision depends on them.
///
/// ```
/// use weirgate_shared::EntityDescription;
/// let acme = EntityDescription::default().named("Acme Inc.")?.labelled("plan", "pro")?;
/// assert_eq!(acme.labels()["plan"], "pro");
/// # Ok::<(), weirgate_shared::DescriptionError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "crate::json::DescriptionFields")
)]
pub struct EntityDescription {
    display_name: Option<String>,
    labels: BTreeMap<String, String>,
}

/// A display name or label that cannot be stored; nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not valid: must be {rule}")]
pub struct DescriptionError {
    /// What was rejected, with its value.
    pub what: String,
    /// Rule for it.
    pub rule: &'static str,
}

impl EntityDescription {
    /// Sets the display name: 1 to 256 bytes of UTF-8 without control characters.
    ///
    /// # Errors
    /// [`DescriptionError`] with the rule, if the name breaks it.
    pub fn named(mut self, display_name: impl Into<String>) -> Result<Self, DescriptionError> {
        let name = display_name.into();
        if name.is_empty() || !is_text(&name, MAX_DISPLAY_NAME) {
            return Err(DescriptionError {
                what: format!("display name {name:?}"),
                rule: "1 to 256 bytes of UTF-8 without control characters",
            });
        }
        self.display_name = Some(name);
        Ok(self)
    }

    /// Removes the display name.
    #[must_use]
    pub fn unnamed(mut self) -> Self {
        self.display_name = None;
        self
    }

    /// Adds a label, or replaces its value. A name is 1 to 64 of `A-Z a-z 0-9 _ . - /`, a value at
    /// most 256 bytes of UTF-8 without control characters; all labels with their names are at most
    /// 2,048 bytes.
    ///
    /// # Errors
    /// [`DescriptionError`] with the rule, if the label breaks it.
    pub fn labelled(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, DescriptionError> {
        let (name, value) = (name.into(), value.into());
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte);
        let refused = |what, rule| Err(DescriptionError { what, rule });
        if name.is_empty() || name.len() > MAX_LABEL_NAME || !name.bytes().all(is_name) {
            let what = format!("name {name:?} of a label");
            return refused(what, "1 to 64 of A-Z a-z 0-9 _ . - /");
        }
        if !is_text(&value, MAX_LABEL_VALUE) {
            let what = format!("value {value:?} of label {name}");
            return refused(what, "at most 256 bytes of UTF-8 without control characters");
        }
        let what = format!("label {name}");
        self.labels.insert(name, value);
        let bytes = self.labels.iter().map(|(name, value)| name.len() + value.len());
        if bytes.sum::<usize>() > MAX_LABELS {
            return refused(
                what,
                "at most 2,048 bytes together with all labels and their names: remove or shorten some",
            );
        }
        Ok(self)
    }

    /// Removes a label, if it is there.
    #[must_use]
    pub fn without_label(mut self, name: &str) -> Self {
        self.labels.remove(name);
        self
    }

    /// Returns the display name.
    #[must_use]
    pub fn display_name(&self) -> Option<&str> {
        self.display_name.as_deref()
    }

    /// Returns the labels by their names.
    #[must_use]
    pub const fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }
}

fn is_text(text: &str, max: usize) -> bool {
    text.len() <= max && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(result: Result<EntityDescription, DescriptionError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn each_bound_holds_to_the_byte_and_its_error_names_the_value() {
        let none = EntityDescription::default;
        assert!(none().named("ä".repeat(128)).is_ok());
        for bad in [String::new(), "ä".repeat(128) + "x", "a\nb".to_owned()] {
            assert!(refused(none().named(bad.clone())).contains(&format!("{bad:?}")));
        }
        assert!(none().labelled("n".repeat(64), "v".repeat(256)).is_ok());
        assert!(none().labelled("team/a-b_c.d", "").is_ok());
        for bad in ["", "a b", "ä", "a=b", &"n".repeat(65)] {
            assert!(refused(none().labelled(bad, "v")).contains(&format!("{bad:?}")));
        }
        for bad in ["v".repeat(257), "a\tb".to_owned()] {
            assert!(refused(none().labelled("plan", bad)).contains("of label plan"));
        }
    }

    #[test]
    fn all_labels_together_have_a_bound_too() {
        let mut full = EntityDescription::default();
        for at in 0..8 {
            full = full.labelled(format!("{at}"), "v".repeat(255)).unwrap();
        }
        let error = refused(full.clone().labelled("x", ""));
        assert!(error.contains("label x") && error.contains("2,048"), "{error}");
        let again = full.clone().labelled("0", "w".repeat(255)).unwrap();
        assert_eq!(again.labels().len(), 8);
        assert!(full.without_label("0").labelled("x", "").is_ok());
    }
}

//! Environment variables, looked up through a closure so that tests need no environment.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A variable that prevents a function from starting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} must be {takes}, got {value}; set the environment variable")]
pub struct ConfigError {
    /// Name of the variable.
    pub name: &'static str,
    /// Value, quoted, or `nothing`.
    pub value: String,
    /// Permitted values.
    pub takes: String,
}

impl ConfigError {
    /// Returns the error for the variable `name` with `value`, which is not what it `takes`.
    #[must_use]
    pub fn new(name: &'static str, value: Option<&str>, takes: impl Into<String>) -> Self {
        let value = value.map_or_else(|| "nothing".to_owned(), |value| format!("{value:?}"));
        Self { name, value, takes: takes.into() }
    }
}

/// Returns a lookup that takes an empty variable for one that is not set.
pub fn not_empty(lookup: impl Fn(&str) -> Option<String>) -> impl Fn(&str) -> Option<String> {
    move |name| lookup(name).filter(|value| !value.is_empty())
}

/// Returns the value of a required variable, which must not be empty.
///
/// # Errors
/// [`ConfigError`] with what it takes.
pub fn required(
    lookup: impl Fn(&str) -> Option<String>,
    name: &'static str,
    takes: &str,
) -> Result<String, ConfigError> {
    match lookup(name) {
        Some(value) if !value.trim().is_empty() => Ok(value),
        value => Err(ConfigError::new(name, value.as_deref(), takes)),
    }
}

/// Returns a whole number within `range`; `default` if the variable is missing.
///
/// # Errors
/// [`ConfigError`] with the range.
pub fn number<T>(
    lookup: impl Fn(&str) -> Option<String>,
    name: &'static str,
    default: T,
    range: RangeInclusive<T>,
) -> Result<T, ConfigError>
where
    T: FromStr + PartialOrd + Display,
{
    let Some(value) = lookup(name) else {
        return Ok(default);
    };
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let takes = format!("a whole number from {} to {}", range.start(), range.end());
        ConfigError::new(name, Some(&value), takes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(value: &'static str) -> impl Fn(&str) -> Option<String> {
        move |name| (name == "PAGE").then(|| value.to_owned())
    }

    #[test]
    fn a_number_is_within_its_range_or_named() {
        assert_eq!(number(|_| None, "PAGE", 100, 1..=1000), Ok(100));
        assert_eq!(number(holds("1000"), "PAGE", 100, 1..=1000), Ok(1000));
        for bad in ["0", "1001", "ten", "1.5", "-1", " 7", "a\nb", "99999999999999999999"] {
            let error = number(holds(bad), "PAGE", 100, 1..=1000).unwrap_err().to_string();
            let expected = format!(
                "PAGE must be a whole number from 1 to 1000, got {bad:?}; set the environment variable"
            );
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn a_required_variable_is_there_and_not_empty() {
        assert_eq!(required(holds("t"), "PAGE", "a name"), Ok("t".to_owned()));
        let missing = required(|_| None, "PAGE", "a name").unwrap_err().to_string();
        assert_eq!(missing, "PAGE must be a name, got nothing; set the environment variable");
        assert!(required(holds(" "), "PAGE", "a name").is_err());
    }
}

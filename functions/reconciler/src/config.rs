//! Settings from the environment.

use weirgate_runtime::{ConfigError, not_empty, number, required};

/// The function's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `TABLE_NAME`: table whose leases are released.
    pub table_name: String,
    /// `RECONCILE_PAGE`: number of due shards read from the index at a time, 1 to 1000; default
    /// 100.
    pub page: i32,
}

impl Config {
    /// Name of the table; required.
    pub const TABLE_NAME: &str = "TABLE_NAME";
    /// Due shards read from the index at a time.
    pub const RECONCILE_PAGE: &str = "RECONCILE_PAGE";

    /// Reads the variables through `lookup`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the variable that is missing or wrong.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let lookup = not_empty(lookup);
        Ok(Self {
            table_name: required(&lookup, Self::TABLE_NAME, "the name of a DynamoDB table")?,
            page: number(&lookup, Self::RECONCILE_PAGE, 100, 1..=1000)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_has_no_default_and_a_page_has_a_range() {
        let with = |table: &'static str, page: &'static str| {
            Config::read(move |name| {
                Some(if name == "TABLE_NAME" { table } else { page }.to_owned())
            })
        };
        assert_eq!(with("t", ""), Ok(Config { table_name: "t".to_owned(), page: 100 }));
        assert_eq!(with("t", "1000").unwrap().page, 1000);
        let wrong = ConfigError::new("RECONCILE_PAGE", Some("0"), "a whole number from 1 to 1000");
        assert_eq!(with("t", "0"), Err(wrong));
        let missing = ConfigError::new("TABLE_NAME", None, "the name of a DynamoDB table");
        assert_eq!(with("", "0"), Err(missing));
    }
}

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
    fn only_the_table_has_no_default_and_a_wrong_value_is_one_line() {
        let with = |table: Option<&str>, page: Option<&str>| {
            let (table, page) = (table.map(str::to_owned), page.map(str::to_owned));
            Config::read(
                move |name| {
                    if name == "TABLE_NAME" { table.clone() } else { page.clone() }
                },
            )
        };
        assert_eq!(with(Some("t"), None), Ok(Config { table_name: "t".to_owned(), page: 100 }));
        assert_eq!(with(Some("t"), Some("")), with(Some("t"), None));
        assert_eq!(with(Some("t"), Some("1000")).unwrap().page, 1000);
        for (table, page, line) in [
            (
                None,
                None,
                "TABLE_NAME must be the name of a DynamoDB table, got nothing; set the environment variable",
            ),
            (
                Some(""),
                None,
                "TABLE_NAME must be the name of a DynamoDB table, got nothing; set the environment variable",
            ),
            (
                Some("t"),
                Some("0"),
                "RECONCILE_PAGE must be a whole number from 1 to 1000, got \"0\"; set the environment variable",
            ),
            (
                Some("t"),
                Some("a\nb"),
                "RECONCILE_PAGE must be a whole number from 1 to 1000, got \"a\\nb\"; set the environment variable",
            ),
        ] {
            assert_eq!(with(table, page).unwrap_err().to_string(), line);
        }
    }
}

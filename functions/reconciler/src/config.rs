//! What the environment says.

use std::ops::RangeInclusive;

use weirgate_runtime::{ConfigError, number, required};

/// The variables that [`Config`] reads.
pub const VARIABLES: [&str; 2] = [TABLE_NAME, RECONCILE_PAGE];

const TABLE_NAME: &str = "TABLE_NAME";
const RECONCILE_PAGE: &str = "RECONCILE_PAGE";
const PAGES: RangeInclusive<i32> = 1..=1000;

/// What an operator chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `TABLE_NAME`: the table whose leases are looked after.
    pub table_name: String,
    /// `RECONCILE_PAGE`: how many due buckets are read from the index at a time, 1 to 1000; 100 if not given.
    pub page: i32,
}

impl Config {
    /// Reads the variables through `lookup`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the variable that is missing or wrong.
    pub fn from(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Ok(Self {
            table_name: required(&lookup, TABLE_NAME, "the name of a DynamoDB table")?,
            page: number(&lookup, RECONCILE_PAGE, 100, PAGES)?,
        })
    }
}

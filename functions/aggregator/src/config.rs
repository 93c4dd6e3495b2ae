//! What the environment says.

use weirgate_runtime::{ConfigError, number, required};
use weirgate_shared::{MAX_SHARDS, Window};

/// The function's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The table whose stream is read and whose snapshots are written.
    pub table_name: String,
    /// Which snapshots are written, and for how long.
    pub snapshots: Snapshots,
    /// How many writes may be under way at once.
    pub write_concurrency: usize,
    /// The most shards that a hot bucket is split into: a power of two, 1 to 64. 1 splits none.
    pub max_shards: u32,
}

/// Which snapshots are written, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshots {
    /// Every record is counted once in each of these windows.
    pub windows: Vec<Window>,
    /// How long after its window a snapshot is kept.
    pub ttl_days: i64,
}

impl Config {
    /// The name of the table; there is no default.
    pub const TABLE_NAME: &str = "TABLE_NAME";
    /// The windows usage is counted in.
    pub const SNAPSHOT_WINDOWS: &str = "SNAPSHOT_WINDOWS";
    /// Days a snapshot is kept after its window has ended.
    pub const SNAPSHOT_TTL_DAYS: &str = "SNAPSHOT_TTL_DAYS";
    /// Writes under way at once.
    pub const WRITE_CONCURRENCY: &str = "WRITE_CONCURRENCY";
    /// The most shards of a bucket.
    pub const MAX_SHARDS: &str = "MAX_SHARDS";

    /// Reads the variables through `lookup`.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one that is missing or wrong.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let windows = lookup(Self::SNAPSHOT_WINDOWS);
        let windows = windows.as_deref().unwrap_or("hourly,daily");
        Ok(Self {
            table_name: required(&lookup, Self::TABLE_NAME, "the name of a DynamoDB table")?,
            snapshots: Snapshots {
                windows: parse_windows(windows).ok_or_else(|| {
                    let takes = "one or more of hourly, daily and monthly, each once, with commas between";
                    ConfigError::new(Self::SNAPSHOT_WINDOWS, Some(windows), takes)
                })?,
                ttl_days: number(&lookup, Self::SNAPSHOT_TTL_DAYS, 90, 1..=3650)?,
            },
            write_concurrency: number(&lookup, Self::WRITE_CONCURRENCY, 32, 1..=256)?,
            max_shards: max_shards(lookup(Self::MAX_SHARDS).as_deref())?,
        })
    }
}

fn max_shards(value: Option<&str>) -> Result<u32, ConfigError> {
    let Some(value) = value else { return Ok(MAX_SHARDS) };
    let count = value.parse().ok().filter(|count: &u32| count.is_power_of_two() && *count <= MAX_SHARDS);
    count.ok_or_else(|| ConfigError::new(Config::MAX_SHARDS, Some(value), "a power of two from 1 to 64"))
}

/// The windows that a list such as `hourly,daily` names, each once.
#[must_use]
pub fn parse_windows(list: &str) -> Option<Vec<Window>> {
    let windows = list.split(',').map(|name| name.trim().parse().ok()).collect::<Option<Vec<Window>>>()?;
    let once = Window::ALL.iter().all(|kind| windows.iter().filter(|window| *window == kind).count() <= 1);
    once.then_some(windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::read(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn only_the_table_has_no_default() {
        let config = with(&[("TABLE_NAME", "limits")]).unwrap();
        assert_eq!(config.table_name, "limits");
        assert_eq!(config.snapshots, Snapshots { windows: vec![Window::Hourly, Window::Daily], ttl_days: 90 });
        assert_eq!((config.write_concurrency, config.max_shards), (32, 64));
        for count in ["1", "2", "4", "8", "16", "32", "64"] {
            let config = with(&[("TABLE_NAME", "limits"), ("MAX_SHARDS", count)]).unwrap();
            assert_eq!(config.max_shards.to_string(), count);
        }
        let all = [("TABLE_NAME", "t.1"), ("SNAPSHOT_WINDOWS", "monthly, hourly"), ("SNAPSHOT_TTL_DAYS", "7")];
        let config = with(&all).unwrap();
        assert_eq!(config.snapshots, Snapshots { windows: vec![Window::Monthly, Window::Hourly], ttl_days: 7 });
    }

    #[test]
    fn a_wrong_variable_is_named_with_its_value_and_what_it_takes_in_one_line() {
        for (variable, value, takes) in [
            ("TABLE_NAME", "", "the name of a DynamoDB table"),
            ("TABLE_NAME", " ", "the name of a DynamoDB table"),
            ("SNAPSHOT_WINDOWS", "hourly,weekly", "hourly, daily and monthly"),
            ("SNAPSHOT_WINDOWS", "hourly,hourly", "each once"),
            ("SNAPSHOT_WINDOWS", "", "hourly, daily and monthly"),
            ("SNAPSHOT_TTL_DAYS", "0", "from 1 to 3650"),
            ("SNAPSHOT_TTL_DAYS", "1.5", "a whole number from 1 to 3650"),
            ("WRITE_CONCURRENCY", "many\nlines", "from 1 to 256"),
            ("WRITE_CONCURRENCY", "257", "from 1 to 256"),
            ("MAX_SHARDS", "0", "a power of two from 1 to 64"),
            ("MAX_SHARDS", "12", "a power of two from 1 to 64"),
            ("MAX_SHARDS", "128", "a power of two from 1 to 64"),
            ("MAX_SHARDS", "", "a power of two from 1 to 64"),
        ] {
            let error = with(&[("TABLE_NAME", "limits"), (variable, value)].map(|pair| {
                // The wrong value of TABLE_NAME must win over the right one.
                if pair.0 == variable { (variable, value) } else { pair }
            }));
            let line = error.unwrap_err().to_string();
            assert!(line.contains(&format!("{variable} is {value:?}; it takes ")), "{line}");
            assert!(line.contains(takes) && !line.contains('\n'), "{line}");
        }
        let line = with(&[]).unwrap_err().to_string();
        assert!(line.contains("TABLE_NAME is missing; it takes the name of"), "{line}");
    }
}

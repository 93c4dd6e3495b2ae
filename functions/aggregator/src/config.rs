//! Settings from the environment.

use weirgate_runtime::{ConfigError, not_empty, number, required};
use weirgate_shared::MAX_SHARDS;

/// The function's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Table whose stream is read and whose snapshots are written.
    pub table_name: String,
    /// Days that a snapshot is kept after its window; default 90.
    pub snapshot_ttl_days: i64,
    /// Maximum number of concurrent writes.
    pub write_concurrency: usize,
    /// Maximum number of shards that a bucket is split into: a power of two, 1 to 64. 1 disables
    /// splits.
    pub max_shards: u32,
    /// Minimum number of writes to a shard in one batch for a refill: [`REFILL_WRITES`], except in
    /// tests.
    pub refill_writes: usize,
    /// Write units a second from which on a shard's throttles count as its own: [`HOT_UNITS`],
    /// except in tests.
    pub hot_units: i64,
}

/// Write units a second from which on a shard's throttles count as its own, a tenth of what a
/// partition accepts. A throttle is a partition's, which other keys share.
pub const HOT_UNITS: i64 = 100;

/// Minimum number of writes to a shard in one batch for a refill. Clients with a view compute
/// refill themselves; a refill saves a client without a view a failed write.
pub const REFILL_WRITES: usize = 64;

/// Default number of days that a snapshot is kept after its window.
pub const DEFAULT_TTL_DAYS: i64 = 90;
/// Permitted number of days that a snapshot is kept. With two, that of the first hour of a day would
/// end in the instant in which it becomes final.
pub const TTL_DAYS: std::ops::RangeInclusive<i64> = 3..=3650;

impl Config {
    /// Name of the table; required.
    pub const TABLE_NAME: &str = "TABLE_NAME";
    /// Days a snapshot is kept after its window has ended.
    pub const SNAPSHOT_TTL_DAYS: &str = "SNAPSHOT_TTL_DAYS";
    /// Maximum number of concurrent writes.
    pub const WRITE_CONCURRENCY: &str = "WRITE_CONCURRENCY";
    /// Maximum number of shards of a bucket.
    pub const MAX_SHARDS: &str = "MAX_SHARDS";

    /// Reads the variables through `lookup`.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one that is missing or wrong.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let lookup = not_empty(lookup);
        Ok(Self {
            table_name: required(&lookup, Self::TABLE_NAME, "the name of a DynamoDB table")?,
            snapshot_ttl_days: number(
                &lookup,
                Self::SNAPSHOT_TTL_DAYS,
                DEFAULT_TTL_DAYS,
                TTL_DAYS,
            )?,
            write_concurrency: number(&lookup, Self::WRITE_CONCURRENCY, 32, 1..=256)?,
            max_shards: max_shards(lookup(Self::MAX_SHARDS).as_deref())?,
            refill_writes: REFILL_WRITES,
            hot_units: HOT_UNITS,
        })
    }
}

fn max_shards(value: Option<&str>) -> Result<u32, ConfigError> {
    let Some(value) = value else {
        return Ok(MAX_SHARDS);
    };
    let count =
        value.parse().ok().filter(|count: &u32| count.is_power_of_two() && *count <= MAX_SHARDS);
    count.ok_or_else(|| {
        ConfigError::new(Config::MAX_SHARDS, Some(value), "a power of two from 1 to 64")
    })
}

#[cfg(test)]
mod tests {
    use weirgate_shared::{DELIVERY, EpochMillis, Millis, Window};

    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::read(|name| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn only_the_table_has_no_default() {
        let config = with(&[("TABLE_NAME", "limits")]).unwrap();
        assert_eq!(config.table_name, "limits");
        assert_eq!(
            (config.snapshot_ttl_days, config.write_concurrency, config.max_shards),
            (90, 32, 64)
        );
        for count in ["1", "2", "4", "8", "16", "32", "64"] {
            let config = with(&[("TABLE_NAME", "limits"), ("MAX_SHARDS", count)]).unwrap();
            assert_eq!(config.max_shards.to_string(), count);
        }
        let names = [Config::SNAPSHOT_TTL_DAYS, Config::WRITE_CONCURRENCY, Config::MAX_SHARDS];
        let empty = [("TABLE_NAME", "limits")].into_iter().chain(names.map(|name| (name, "")));
        assert_eq!(with(&empty.collect::<Vec<_>>()), with(&[("TABLE_NAME", "limits")]));
        assert_eq!(with(&[("TABLE_NAME", "")]), with(&[]));
        let config = with(&[("TABLE_NAME", "t.1"), ("SNAPSHOT_TTL_DAYS", "7")]).unwrap();
        assert_eq!(config.snapshot_ttl_days, 7);
    }

    /// Nothing reads a snapshot that has expired, and no window is final before its day is.
    #[test]
    fn a_snapshot_is_kept_for_a_day_at_least_after_its_window_is_final() {
        let day = Window::Daily.start(EpochMillis(1_795_198_200_000));
        let first_hour = Window::Hourly.end(day);
        let final_from = Window::Daily.end(day).plus(DELIVERY);
        for window in [first_hour, Window::Daily.end(day)] {
            let ends = |days| window.plus(Millis(days * 86_400_000));
            let kept = ends(*TTL_DAYS.start()).since(final_from);
            assert!(kept >= Millis(86_400_000), "{kept:?}");
        }
        // A day less is not enough.
        let days = *TTL_DAYS.start() - 1;
        assert!(first_hour.plus(Millis(days * 86_400_000)) <= final_from);
    }

    #[test]
    fn a_wrong_variable_is_named_with_its_value_and_what_it_takes() {
        for (variable, value, takes) in [
            ("TABLE_NAME", " ", "the name of a DynamoDB table"),
            ("SNAPSHOT_TTL_DAYS", "2", "a whole number from 3 to 3650"),
            ("WRITE_CONCURRENCY", "257", "a whole number from 1 to 256"),
            ("MAX_SHARDS", "0", "a power of two from 1 to 64"),
            ("MAX_SHARDS", "12", "a power of two from 1 to 64"),
            ("MAX_SHARDS", "128", "a power of two from 1 to 64"),
        ] {
            // The first value of a name is read.
            let error = with(&[(variable, value), ("TABLE_NAME", "limits")]).unwrap_err();
            assert_eq!(error, ConfigError::new(variable, Some(value), takes));
        }
    }
}

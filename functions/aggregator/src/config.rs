//! What the environment says.

use weirgate_shared::Window;

/// The function's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The table whose stream is read and whose snapshots are written.
    pub table_name: String,
    /// Which snapshots are written, and for how long.
    pub snapshots: Snapshots,
    /// How many writes may be under way at once.
    pub write_concurrency: usize,
}

/// Which snapshots are written, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshots {
    /// Every record is counted once in each of these windows.
    pub windows: Vec<Window>,
    /// How long after its window a snapshot is kept.
    pub ttl_days: i64,
}

/// A variable that is missing or wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {value}, it takes {takes}")]
pub struct ConfigError {
    /// The variable's name.
    pub variable: &'static str,
    /// Its value, quoted; or that it is missing.
    pub value: String,
    /// What it takes.
    pub takes: &'static str,
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

    /// Reads the variables through `lookup`.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one that is missing or wrong.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let is_name = |name: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            (3..=255).contains(&name.len()) && name.bytes().all(allowed)
        };
        let between = |low: i64, high: i64| {
            move |text: &str| text.parse().ok().filter(|number: &i64| (low..=high).contains(number))
        };
        let name = |text: &str| is_name(text).then(|| text.to_owned());
        Ok(Self {
            table_name: read(
                &lookup,
                Self::TABLE_NAME,
                None,
                "the name of a DynamoDB table, 3 to 255 of A-Z a-z 0-9 _ . -",
                name,
            )?,
            snapshots: Snapshots {
                windows: read(
                    &lookup,
                    Self::SNAPSHOT_WINDOWS,
                    Some("hourly,daily"),
                    "hourly, daily, monthly or several of them with commas between, each once",
                    windows,
                )?,
                ttl_days: read(
                    &lookup,
                    Self::SNAPSHOT_TTL_DAYS,
                    Some("90"),
                    "a whole number of days, 1 to 3650",
                    between(1, 3650),
                )?,
            },
            write_concurrency: read(
                &lookup,
                Self::WRITE_CONCURRENCY,
                Some("32"),
                "a whole number of writes, 1 to 256",
                |text| between(1, 256)(text).and_then(|number| usize::try_from(number).ok()),
            )?,
        })
    }
}

fn read<T>(
    lookup: &impl Fn(&str) -> Option<String>,
    variable: &'static str,
    default: Option<&str>,
    takes: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, ConfigError> {
    let found = lookup(variable);
    let value = || found.as_ref().map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"));
    let text = found.as_deref().or(default);
    text.and_then(parse).ok_or_else(|| ConfigError { variable, value: value(), takes })
}

fn windows(list: &str) -> Option<Vec<Window>> {
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
        assert_eq!(config.write_concurrency, 32);
        let all = [("TABLE_NAME", "t.1"), ("SNAPSHOT_WINDOWS", "monthly, hourly"), ("SNAPSHOT_TTL_DAYS", "7")];
        let config = with(&all).unwrap();
        assert_eq!(config.snapshots, Snapshots { windows: vec![Window::Monthly, Window::Hourly], ttl_days: 7 });
    }

    #[test]
    fn a_wrong_variable_is_named_with_its_value_and_what_it_takes_in_one_line() {
        for (variable, value, takes) in [
            ("TABLE_NAME", "", "the name of a DynamoDB table"),
            ("TABLE_NAME", "a b c", "the name of a DynamoDB table"),
            ("SNAPSHOT_WINDOWS", "hourly,weekly", "hourly, daily, monthly"),
            ("SNAPSHOT_WINDOWS", "hourly,hourly", "each once"),
            ("SNAPSHOT_WINDOWS", "", "hourly, daily, monthly"),
            ("SNAPSHOT_TTL_DAYS", "0", "1 to 3650"),
            ("SNAPSHOT_TTL_DAYS", "1.5", "a whole number of days"),
            ("WRITE_CONCURRENCY", "many\nlines", "1 to 256"),
            ("WRITE_CONCURRENCY", "257", "1 to 256"),
        ] {
            let error = with(&[("TABLE_NAME", "limits"), (variable, value)].map(|pair| {
                // The wrong value of TABLE_NAME must win over the right one.
                if pair.0 == variable { (variable, value) } else { pair }
            }));
            let line = error.unwrap_err().to_string();
            assert!(line.starts_with(&format!("{variable} is {value:?}, it takes ")), "{line}");
            assert!(line.contains(takes) && !line.contains('\n'), "{line}");
        }
        let line = with(&[]).unwrap_err().to_string();
        assert!(line.starts_with("TABLE_NAME is missing, it takes the name of"), "{line}");
    }
}

//! What all functions read from the environment, beside their own settings.

use crate::variable::{ConfigError, not_empty};

/// The settings of any function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name of the stack, a dimension of all metrics; default `local`.
    pub stack: String,
    /// Minimum level of log lines; default `INFO`.
    pub log_level: String,
}

/// Levels of log lines, the most detailed one first.
const LEVELS: [&str; 5] = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"];
/// Maximum length of a stack's name.
/// <https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html>
const NAME: usize = 128;

impl Settings {
    /// Name of the stack.
    pub const STACK_NAME: &str = "STACK_NAME";
    /// Minimum level of log lines. Lambda's own `AWS_LAMBDA_LOG_LEVEL` counts if it is missing.
    pub const LOG_LEVEL: &str = "LOG_LEVEL";

    /// Reads the variables through `lookup`.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one that is wrong.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let lookup = not_empty(lookup);
        let stack = lookup(Self::STACK_NAME).unwrap_or_else(|| "local".to_owned());
        // A dimension's value is ASCII, and not blank.
        let is_name =
            (1..=NAME).contains(&stack.len()) && stack.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_name {
            let takes = "the stack's name, 1 to 128 ASCII characters without spaces";
            return Err(ConfigError::new(Self::STACK_NAME, Some(&stack), takes));
        }
        let log_level = match lookup(Self::LOG_LEVEL) {
            Some(level) if LEVELS.contains(&level.as_str()) => level,
            Some(level) => {
                let takes = format!("one of {}", LEVELS.join(", "));
                return Err(ConfigError::new(Self::LOG_LEVEL, Some(&level), takes));
            }
            None => lookup("AWS_LAMBDA_LOG_LEVEL").unwrap_or_else(|| "INFO".to_owned()),
        };
        Ok(Self { stack, log_level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        Settings::read(|name| {
            let pair = pairs.iter().find(|(known, _)| *known == name);
            pair.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_stack_has_a_name_and_a_level_and_a_local_process_needs_neither() {
        let of = |stack: &str, log_level: &str| {
            Ok(Settings { stack: stack.to_owned(), log_level: log_level.to_owned() })
        };
        assert_eq!(with(&[]), of("local", "INFO"));
        assert_eq!(
            with(&[("STACK_NAME", "weirgate-prod"), ("LOG_LEVEL", "ERROR")]),
            of("weirgate-prod", "ERROR")
        );
        assert_eq!(with(&[("AWS_LAMBDA_LOG_LEVEL", "DEBUG")]), of("local", "DEBUG"));
        assert_eq!(
            with(&[("AWS_LAMBDA_LOG_LEVEL", "TRACE"), ("LOG_LEVEL", "WARN")]),
            of("local", "WARN"),
            "a stack's own level comes first"
        );
        let empty = [("STACK_NAME", ""), ("LOG_LEVEL", ""), ("AWS_LAMBDA_LOG_LEVEL", "")];
        assert_eq!(with(&empty), of("local", "INFO"));
    }

    #[test]
    fn a_wrong_name_or_level_is_named_in_one_line() {
        for (pair, takes) in [
            (
                &[("STACK_NAME", "a b")],
                "STACK_NAME must be the stack's name, 1 to 128 ASCII characters without spaces, got \"a b\"; set",
            ),
            (&[("STACK_NAME", "ä")], "without spaces, got \"ä\"; set"),
            (
                &[("LOG_LEVEL", "info")],
                "LOG_LEVEL must be one of TRACE, DEBUG, INFO, WARN, ERROR, got \"info\"; set",
            ),
        ] {
            let line = with(pair).unwrap_err().to_string();
            assert!(line.contains(takes) && !line.contains('\n'), "{line}");
        }
    }
}

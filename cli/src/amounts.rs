//! Amounts and limits as arguments: `tpm=500`, `tpm=100000/minute,burst=200000`, `slots=20`.

use std::fmt::Display;
use std::str::FromStr;

use weirgate::{Limit, LimitError};

/// An amount of a limit: `tpm=500`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount {
    /// Name of the limit.
    pub limit: String,
    /// Number of tokens.
    pub tokens: i64,
}

/// Parses `NAME=TOKENS`.
pub fn amount(text: &str) -> Result<Amount, String> {
    let (limit, tokens) = text
        .split_once('=')
        .ok_or("must be NAME=TOKENS, for example tpm=500")?;
    let tokens = whole(tokens)?;
    Ok(Amount {
        limit: limit.to_owned(),
        tokens,
    })
}

/// Parses a limit: `rpm=600/minute,burst=800`.
pub fn limit(text: &str) -> Result<Limit, String> {
    text.parse().map_err(|error| match error {
        // The argument is named with the value.
        LimitError::Text { must, .. } => must.to_owned(),
        error => error.to_string(),
    })
}

fn whole(text: &str) -> Result<i64, String> {
    number(text).map_err(|_| format!("{text:?} is no whole number of tokens"))
}

/// Parses a whole number, which may have `_`.
pub fn number<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    let number = text.replace('_', "").parse();
    number.map_err(|error: T::Err| format!("must be a whole number: {error}"))
}

/// Parses a whole number from `LEAST` to `MOST`.
pub fn within<const LEAST: i64, const MOST: i64, T: TryFrom<i64>>(text: &str) -> Result<T, String> {
    let number = number(text).ok();
    let number = number.filter(|number| (LEAST..=MOST).contains(number));
    let number = number.and_then(|number| number.try_into().ok());
    number.ok_or_else(|| format!("must be a whole number from {LEAST} to {MOST}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_a_whole_number_of_a_limit() {
        let expected = Amount {
            limit: "tpm".to_owned(),
            tokens: 500,
        };
        assert_eq!(amount("tpm=500"), Ok(expected));
        for text in ["tpm", "tpm=", "tpm=1.5", "tpm=x"] {
            assert!(amount(text).is_err(), "{text}");
        }
    }
}

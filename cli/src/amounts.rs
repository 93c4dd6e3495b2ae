//! Names, amounts and limits as arguments: `user-1`, `tpm=500`, `tpm=100000/minute,burst=200000`.

use std::str::FromStr;

use weirgate::{EntityId, Limit, LimitError, LimitName, NameError, PlanName, Resource};
use weirgate_shared::MAX_TOKENS;

/// Parses the name of an entity.
pub fn entity(text: &str) -> Result<EntityId, NameError> {
    EntityId::new(text)
}

/// Parses the name of a plan.
pub fn plan(text: &str) -> Result<PlanName, NameError> {
    PlanName::new(text)
}

/// Parses the name of a resource.
pub fn resource(text: &str) -> Result<Resource, NameError> {
    Resource::new(text)
}

/// Parses the name of a limit.
pub fn limit_name(text: &str) -> Result<LimitName, NameError> {
    LimitName::new(text)
}

/// An amount of a limit: `tpm=500`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount {
    /// Name of the limit.
    pub limit: LimitName,
    /// Number of tokens.
    pub tokens: i64,
}

/// Parses `NAME=TOKENS`.
pub fn amount(text: &str) -> Result<Amount, String> {
    let (limit, tokens) = text.split_once('=').ok_or("must be NAME=TOKENS, for example tpm=500")?;
    let tokens = whole(tokens)?;
    let limit = limit_name(limit).map_err(|error| error.to_string())?;
    Ok(Amount { limit, tokens })
}

/// As [`limit`], of a command whose level is named by options.
pub fn level_limit(text: &str) -> Result<Limit, String> {
    limit(text).map_err(|must| match text.contains('=') {
        true => must,
        false => format!("{must}; a level is named by --resource {text}, --entity or --system"),
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
    let number = text.replace('_', "").parse().ok();
    let number = number.filter(|number| (0..=MAX_TOKENS).contains(number));
    number.ok_or_else(|| format!("must be a whole number of tokens up to 10^12, got {text:?}"))
}

/// Parses a whole number from `LEAST` to `MOST`, which may have `_`.
pub fn within<const LEAST: i64, const MOST: i64, T: FromStr>(text: &str) -> Result<T, String> {
    let number = text.replace('_', "").parse::<i64>().ok();
    let number = number.filter(|number| (LEAST..=MOST).contains(number));
    let number = number.and_then(|number| number.to_string().parse().ok());
    number.ok_or_else(|| format!("must be a whole number from {LEAST} to {MOST}"))
}

/// Parses a port; 0 is any free one.
pub fn port(text: &str) -> Result<u16, String> {
    within::<0, 65_535, _>(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_a_whole_number_of_a_limit() {
        let expected = Amount { limit: limit_name("tpm").unwrap(), tokens: 500 };
        assert_eq!(amount("tpm=500"), Ok(expected));
        for text in ["tpm", "tpm=", "tpm=1.5", "tpm=x", "t/m=1", "=1"] {
            assert!(amount(text).is_err(), "{text}");
        }
    }
}

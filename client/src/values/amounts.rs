//! Amounts per limit.

use std::collections::BTreeMap;

use weirgate_shared::{LimitName, MAX_TOKENS, MilliTokens};

use super::error::Error;

/// Amount per limit.
pub(crate) type Amounts = BTreeMap<LimitName, MilliTokens>;

/// Merges the amounts that must be available with the soft amounts, which are taken in any case.
/// The two name different limits.
pub(crate) fn merge_amounts(amounts: &Amounts, soft_amounts: &Amounts) -> Amounts {
    amounts
        .iter()
        .chain(soft_amounts)
        .map(|(limit, need)| (limit.clone(), *need))
        .collect()
}

/// Converts whole tokens, from 0 to 10^12.
pub(crate) fn parse_amount(limit: &str, tokens: i64) -> Result<MilliTokens, Error> {
    match (0..=MAX_TOKENS).contains(&tokens) {
        true => Ok(MilliTokens::from_tokens(tokens)),
        false => Err(out_of_range(limit, &tokens)),
    }
}

/// Requires that an amount is 0 to 10^12 tokens.
pub(crate) fn check_amount(limit: &str, amount: MilliTokens) -> Result<(), Error> {
    match (MilliTokens::ZERO..=MilliTokens::from_tokens(MAX_TOKENS)).contains(&amount) {
        true => Ok(()),
        false => Err(out_of_range(limit, &amount)),
    }
}

fn out_of_range(limit: &str, amount: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!(
        "limit {limit:?}: amount must be 0 to 10^12 tokens, got {amount}: correct it"
    ))
}

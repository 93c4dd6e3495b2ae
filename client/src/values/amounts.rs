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
    if (0..=MAX_TOKENS).contains(&tokens) {
        Ok(MilliTokens::from_tokens(tokens))
    } else {
        Err(Error::Invalid(format!(
            "limit {limit:?}: amount must be 0 to 10^12 tokens, got {tokens}"
        )))
    }
}

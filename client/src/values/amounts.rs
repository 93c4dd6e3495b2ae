//! Amounts per limit.

use std::collections::BTreeMap;

use weirgate_shared::{Asks, LimitKind, LimitName, MAX_TOKENS, MilliTokens, RefillRule, Shard};

use super::error::Error;

/// How much refill an amount into debt can use up in advance: 30 days.
const DEBT_SPAN_MS: i128 = 30 * 86_400_000;

/// Amount per limit.
pub(crate) type Amounts = BTreeMap<LimitName, MilliTokens>;

/// Returns the amounts that are debited.
pub(crate) fn debited(asks: &Asks) -> Amounts {
    let debits = asks.debits();
    debits.map(|ask| (ask.limit.clone(), ask.amount)).collect()
}

/// Subtracts amounts from the balances of a shard.
pub(crate) fn subtract<'a>(
    shard: &mut Shard,
    amounts: impl IntoIterator<Item = (&'a LimitName, &'a MilliTokens)>,
) {
    for (limit, amount) in amounts {
        if let Some(state) = shard.limits.get_mut(limit) {
            state.available -= *amount;
        }
    }
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

/// Requires that an amount that goes into debt is at most what the limit refills in 30 days, or twice
/// what it holds, whichever is more: from a full bucket, no report denies a tenant for longer than 30
/// days or than the limit takes to fill. Slots return when their lease ends, within a day, and the
/// debt of a quota ends with its window.
pub(crate) fn check_debt(
    limit: &LimitName,
    rule: &RefillRule,
    amount: MilliTokens,
) -> Result<(), Error> {
    let refill = match rule.kind() {
        LimitKind::Rate => {
            i128::from(rule.refill_amount.0).saturating_mul(DEBT_SPAN_MS)
                / i128::from(rule.refill_period_ms.max(1))
        }
        LimitKind::Slots => return Ok(()),
        // The debt of a window ends with it.
        LimitKind::Quota => 0,
    };
    let most = i128::from(rule.capacity.0).saturating_mul(2).max(refill);
    let most = most.min(i128::from(MilliTokens::from_tokens(MAX_TOKENS).0));
    let most = MilliTokens(i64::try_from(most).unwrap_or(i64::MAX));
    match amount <= most {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "limit {limit:?}: an amount that can go into debt must be 0 to {most} tokens, the refill of 30 days or twice the capacity, got {amount}: report what was used, or raise the limit"
        ))),
    }
}

fn out_of_range(limit: &str, amount: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!(
        "limit {limit:?}: amount must be 0 to 10^12 tokens, got {amount}: correct it"
    ))
}

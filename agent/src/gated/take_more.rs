//! Takes more within the grants of one request.

use weirgate::{Decision, Grant, RateLimiter, Settlement};

use super::grants::restore;
use super::settlement::{
    Granted, SettleError, Settled, before, counts_twice, holders, may_be_applied, possible, targets,
};

/// More tokens within a grant, all or nothing.
#[derive(Debug, Clone, Default)]
pub struct TakeMore {
    /// The grant's token.
    pub grant: String,
    /// Place of the one bucket to take from. Default: each that has the limit.
    pub bucket: Option<usize>,
    /// Whole tokens per limit.
    pub amounts: Vec<(String, i64)>,
}

/// Takes more within a grant, all or nothing. If that fails, the grant is as before.
pub(super) async fn take_more(
    limiter: &RateLimiter,
    more: TakeMore,
) -> Result<Decision<Settled>, SettleError> {
    let mut grants = restore(limiter, &more.grant).map_err(before)?;
    let targets = targets(&grants, more.bucket).map_err(before)?;
    let mut all = vec![];
    for (limit, tokens) in &more.amounts {
        let holders = holders(&grants, &targets, limit);
        // Also if nothing is counted of the limit: more of an outage's grant is refused.
        let check = |grant: &Grant| grant.check_adjust(limit).map(|_| true);
        let places = possible(&grants, &holders, check);
        let places = places.map_err(before)?.into_iter();
        all.extend(places.map(|at| (at, limit.as_str(), *tokens)));
    }
    let decision = Grant::take_more_of(&mut grants, &all).await;
    let decision = decision.map_err(|error| {
        let may_be_applied = may_be_applied(&error);
        let mut changed = all.iter().map(|(at, ..)| &grants[*at]);
        let counts_twice = changed.any(|grant| counts_twice(&error, grant));
        SettleError {
            error: Box::new(error),
            may_be_applied,
            grant: (may_be_applied && !counts_twice).then_some(more.grant),
        }
    })?;
    let granted = Granted(grants);
    Ok(decision.map(|()| Settled {
        amounts: granted.amounts(),
        granted: Some(granted),
        settlement: Settlement::Applied,
        paused_until: None,
    }))
}

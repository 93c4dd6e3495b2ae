//! More tokens within a grant, all or nothing.

use weirgate::{Decision, Error, Grant, MilliTokens, RateLimiter, Settlement};

use super::grant_token;
use super::granted::Granted;
use super::settle::{SettleError, Settled, TakeMore, before, holders, possible, targets};

/// Takes more within a grant. If one limit of one bucket denies, returns what the others gave.
pub(super) async fn take_more(
    limiter: &RateLimiter,
    more: TakeMore,
) -> Result<Decision<Settled>, SettleError> {
    let mut grants = grant_token::restore(limiter, &more.grant).map_err(before)?;
    let targets = targets(&grants, more.bucket).map_err(before)?;
    let mut taken = vec![];
    let mut steps = vec![];
    for (limit, tokens) in &more.amounts {
        let holders = holders(&grants, &targets, limit);
        let places = possible(&grants, &holders, |grant| grant.check_adjust(limit));
        steps.push((limit, tokens, places.map_err(before)?));
    }
    for (limit, tokens, places) in steps {
        for at in places {
            let refused = match grants[at].take_more(limit, *tokens).await {
                Ok(Decision::Granted(())) => {
                    taken.push((at, limit.as_str(), *tokens));
                    continue;
                }
                Ok(refused) => refused,
                Err(error) => {
                    let may_be_applied = SettleError::of(error.clone(), false).may_be_applied;
                    let is_left = undo(&mut grants, &taken).await.is_err();
                    return Err(SettleError {
                        error: Box::new(error),
                        may_be_applied: may_be_applied || is_left,
                        grant: None,
                    });
                }
            };
            undo(&mut grants, &taken)
                .await
                .map_err(|error| SettleError::of(error, true))?;
            return Ok(match refused {
                Decision::Denied(denied) => Decision::Denied(denied),
                Decision::NeverFits(never) => Decision::NeverFits(never),
                Decision::Disabled(disabled) => Decision::Disabled(disabled),
                Decision::Granted(()) => continue,
            });
        }
    }
    if let Err(error) = grant_token::check_parts(&grants) {
        undo(&mut grants, &taken)
            .await
            .map_err(|error| SettleError::of(error, true))?;
        return Err(before(error));
    }
    let granted = Granted(grants);
    Ok(Decision::Granted(Settled {
        amounts: granted.amounts(),
        granted: Some(granted),
        settlement: Settlement::Applied,
    }))
}

/// Returns what was taken, newest first.
async fn undo(grants: &mut [Grant], taken: &[(usize, &str, i64)]) -> Result<(), Error> {
    for (at, limit, tokens) in taken.iter().rev() {
        let grant = &mut grants[*at];
        let rest = grant.amount(limit) - MilliTokens(tokens.saturating_mul(1000));
        let _ = grant.adjust_milli(limit, rest).await?;
    }
    Ok(())
}

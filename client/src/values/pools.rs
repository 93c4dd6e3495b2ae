//! Which pools of limits with classes a request takes from.

use weirgate_shared::{Ask, Asks, ClassName, Limit, MilliTokens, PoolChoice};

/// Returns what is asked of each pool of a limit from which a caller of this class can take; of a limit
/// without that class as others do. What is not denied takes from one pool.
pub(crate) fn by_pools(limit: &Limit, class: Option<&ClassName>, ask: Ask) -> Vec<Ask> {
    if limit.classes().is_empty() {
        return vec![ask];
    }
    let choices = limit.choices(class).or_else(|| limit.choices(None));
    let is_covered = ask.effect.must_be_covered();
    let most = if is_covered { usize::MAX } else { 1 };
    let choices = choices.into_iter().flatten().take(most);
    let choices = choices.map(|PoolChoice { pool, floor }| Ask {
        limit: pool,
        floor: if is_covered { floor } else { MilliTokens::ZERO },
        ..ask.clone()
    });
    choices.collect()
}

/// Returns the choices of pools, each for all limits: a limit with fewer takes its last one.
pub(crate) fn choices(by_limit: &[Vec<Ask>]) -> (Asks, Vec<Asks>) {
    let choice = |at: usize| {
        let mut asks = Asks::default();
        for pools in by_limit {
            if let Some(ask) = pools.get(at).or(pools.last()) {
                asks.add(ask.clone());
            }
        }
        asks
    };
    let count = by_limit.iter().map(Vec::len).max().unwrap_or_default();
    (choice(0), (1..count).map(choice).collect())
}

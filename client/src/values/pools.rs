//! Which pools of limits with classes a request takes from.

use weirgate_shared::{Ask, Asks, ClassName, Limit, MilliTokens, PoolChoice};

use super::error::Error;

/// Requires that a name is that of a limit, and not of a pool.
pub(crate) fn check_whole(name: &str) -> Result<(), Error> {
    let Some((whole, class)) = name.split_once('@') else {
        return Ok(());
    };
    Err(Error::Invalid(format!(
        "{name:?} is a pool of limit {whole:?}: take {whole:?} with the class {class:?}"
    )))
}

/// What is asked of limits, and the same of other pools of those with classes.
#[derive(Debug, Default)]
pub(crate) struct PoolAsks {
    pub(crate) asks: Asks,
    /// Further choices, each for all limits.
    pub(crate) others: Vec<Asks>,
}

impl PoolAsks {
    /// Adds what a caller of this class asks of a limit; of a limit without that class, as others do.
    /// What is not denied takes from one pool.
    pub(crate) fn add(&mut self, limit: &Limit, class: Option<&ClassName>, ask: Ask) {
        // Almost all limits.
        if limit.classes().is_empty() {
            self.others
                .iter_mut()
                .for_each(|asks| asks.add(ask.clone()));
            self.asks.add(ask);
            return;
        }
        let is_covered = ask.effect.must_be_covered();
        // An amount of 0 takes nothing that others could.
        let has_floor = is_covered && ask.most > MilliTokens::ZERO;
        let choices = limit.choices(class).or_else(|| limit.choices(None));
        let choices = choices.into_iter().flatten();
        let pools = choices.map(|PoolChoice { pool, floor }| Ask {
            limit: pool,
            floor: if has_floor { floor } else { MilliTokens::ZERO },
            ..ask.clone()
        });
        let pools: Vec<_> = pools
            .take(if is_covered { usize::MAX } else { 1 })
            .collect();
        // A limit with fewer pools takes its last one.
        while self.others.len() + 1 < pools.len() {
            let last = self.others.last().unwrap_or(&self.asks).clone();
            self.others.push(last);
        }
        let last = pools.len().saturating_sub(1);
        let all = std::iter::once(&mut self.asks).chain(&mut self.others);
        for (at, asks) in all.enumerate() {
            asks.add(pools[at.min(last)].clone());
        }
    }
}

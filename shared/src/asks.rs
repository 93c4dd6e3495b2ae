//! What is asked of limits: an amount of each, and what becomes of it.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use crate::{LimitName, MilliTokens, ShardIndex};

/// Returns amounts of whole limits: those of the pools of a limit's classes together.
pub fn by_limit<T: Default + AddAssign>(
    pools: impl IntoIterator<Item = (LimitName, T)>,
) -> BTreeMap<LimitName, T> {
    let mut limits = BTreeMap::<_, T>::new();
    for (pool, amount) in pools {
        *limits.entry(pool.whole()).or_default() += amount;
    }
    limits
}

/// What a take does with an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Debits the balance, which must cover it.
    Enforce,
    /// Debits the balance, even into debt.
    IntoDebt,
    /// Only counts the amount as consumed: no balance is debited.
    Count,
}

impl Effect {
    /// Returns whether the balance is debited.
    #[must_use]
    pub const fn debits(self) -> bool {
        match self {
            Self::Enforce | Self::IntoDebt => true,
            Self::Count => false,
        }
    }

    /// Returns whether the balance must cover the amount.
    #[must_use]
    pub const fn must_be_covered(self) -> bool {
        match self {
            Self::Enforce => true,
            Self::IntoDebt | Self::Count => false,
        }
    }
}

/// An amount of one limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The limit.
    pub limit: LimitName,
    /// The amount; the least, if less than `most`.
    pub amount: MilliTokens,
    /// The most that is useful: as much is taken as there is room for.
    pub most: MilliTokens,
    /// What becomes of it.
    pub effect: Effect,
    /// Balance of the whole bucket that stays, of which each shard has a share; of amounts that are
    /// added, the largest.
    pub floor: MilliTokens,
}

/// Amounts of limits, by limit: of each at most one that is debited, and one that only counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Asks(Vec<Ask>);

impl Asks {
    /// Returns these amounts, all with one effect.
    pub fn of(effect: Effect, amounts: impl IntoIterator<Item = (LimitName, MilliTokens)>) -> Self {
        Self::default().and(effect, amounts)
    }

    /// Adds amounts with one effect.
    #[must_use]
    pub fn and(
        mut self,
        effect: Effect,
        amounts: impl IntoIterator<Item = (LimitName, MilliTokens)>,
    ) -> Self {
        for (limit, amount) in amounts {
            self.add(Ask { limit, amount, most: amount, effect, floor: MilliTokens::ZERO });
        }
        self
    }

    /// Adds an amount to that of the same limit and kind. No two debits of a limit have different
    /// effects.
    pub fn add(&mut self, ask: Ask) {
        let counts = !ask.effect.debits();
        let place = |known: &Ask| (&known.limit, !known.effect.debits()).cmp(&(&ask.limit, counts));
        match self.0.binary_search_by(place) {
            Ok(at) => {
                self.0[at].amount += ask.amount;
                self.0[at].most += ask.most;
                self.0[at].floor = self.0[at].floor.max(ask.floor);
            }
            Err(at) => self.0.insert(at, ask),
        }
    }

    /// Iterates over all amounts, by limit.
    pub fn iter(&self) -> std::slice::Iter<'_, Ask> {
        self.0.iter()
    }

    /// Iterates over the amounts with one effect.
    pub fn with(&self, effect: Effect) -> impl Iterator<Item = (&LimitName, MilliTokens)> + Clone {
        let same = self.0.iter().filter(move |ask| ask.effect == effect);
        same.map(|ask| (&ask.limit, ask.amount))
    }

    /// Iterates over the amounts that are debited.
    pub fn debits(&self) -> impl Iterator<Item = &Ask> {
        self.0.iter().filter(|ask| ask.effect.debits())
    }

    /// Returns the amount of a limit that is debited.
    #[must_use]
    pub fn debit(&self, limit: &str) -> Option<&Ask> {
        self.debits().find(|ask| ask.limit.as_str() == limit)
    }

    /// Returns the amount of a limit that must be covered.
    #[must_use]
    pub fn enforced(&self, limit: &str) -> Option<MilliTokens> {
        let debit = self.debit(limit).filter(|ask| ask.effect.must_be_covered());
        debit.map(|ask| ask.amount)
    }

    /// Iterates over the least balances of a shard that cover the enforced amounts, and what stays.
    pub fn required(
        &self,
        shard: ShardIndex,
    ) -> impl Iterator<Item = (&LimitName, MilliTokens)> + Clone {
        let enforced = self.0.iter().filter(|ask| ask.effect.must_be_covered());
        enforced.map(move |ask| {
            let floor = match ask.floor {
                MilliTokens::ZERO => MilliTokens::ZERO,
                floor => shard.share(floor),
            };
            (&ask.limit, ask.amount + floor)
        })
    }

    /// Returns whether any amount leaves something to others.
    #[must_use]
    pub fn has_floor(&self) -> bool {
        self.0.iter().any(|ask| ask.floor > MilliTokens::ZERO)
    }

    /// Returns the balance of a limit that must stay in a shard.
    #[must_use]
    pub fn floor(&self, limit: &str, shard: ShardIndex) -> MilliTokens {
        let debit = self.debit(limit).filter(|ask| ask.floor > MilliTokens::ZERO);
        debit.map_or(MilliTokens::ZERO, |ask| shard.share(ask.floor))
    }

    /// Returns the amount of a limit that only counts.
    #[must_use]
    pub fn counted(&self, limit: &str) -> Option<MilliTokens> {
        let mut counted = self.with(Effect::Count);
        let found = counted.find(|(name, _)| name.as_str() == limit);
        found.map(|(_, amount)| amount)
    }

    /// Returns whether any amount has this effect.
    #[must_use]
    pub fn has(&self, effect: Effect) -> bool {
        self.0.iter().any(|ask| ask.effect == effect)
    }

    /// Returns whether nothing is asked.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps the amounts for which `keeps` holds; it may change them.
    pub fn retain(&mut self, keeps: impl FnMut(&mut Ask) -> bool) {
        self.0.retain_mut(keeps);
    }

    /// Sets what each amount leaves.
    pub fn set_floors(&mut self, floor: impl Fn(&Ask) -> MilliTokens) {
        for ask in &mut self.0 {
            ask.floor = floor(ask);
        }
    }
}

impl<'a> IntoIterator for &'a Asks {
    type Item = &'a Ask;
    type IntoIter = std::slice::Iter<'a, Ask>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

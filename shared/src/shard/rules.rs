//! The limits of an acquire against those of a shard: which of them overrule, and what the shard is
//! with them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::limit::{LimitKind, RefillRule};
use crate::{
    Calendar, EpochMillis, LeaseReturn, Limit, LimitName, LimitState, MilliTokens, RULES_STAND,
    Shard, VersionedLimits,
};

impl<'a> VersionedLimits<'a> {
    /// Returns whether these limits overrule those of `shard` at `now`.
    #[must_use]
    pub fn overrule(self, shard: &Shard, now: EpochMillis) -> bool {
        match self.order_against(shard, now) {
            Some(order) => order.is_gt(),
            // A fast clock or another writer may have stored an instant far in the future.
            None => shard
                .limits_changed_at
                .is_none_or(|at| now.0.abs_diff(at.0) >= RULES_STAND.0.unsigned_abs()),
        }
    }

    /// Compares their version with that of `shard` at `now`. `None` if neither is newer: not the same place
    /// counts both, or a server has lost the change that had this number of changes first.
    pub(crate) fn order_against(self, shard: &Shard, now: EpochMillis) -> Option<Ordering> {
        let order = self.order(shard.config_version, now)?;
        let differs = |limit: &Limit| {
            let known = shard.limits.get(limit.name());
            known.is_some_and(|state| state.rule != *limit.rule())
                && shard.other_kind(limit).is_none()
        };
        let is_changed = self.version.is_some_and(|version| version.changes().is_some());
        let is_repeated = is_changed && order.is_eq() && self.limits.iter().any(differs);
        (!is_repeated).then_some(order)
    }

    /// Returns the limits whose rules overrule those of `shard` at `now`: all, or none. A rate never
    /// overrules slots, or slots a rate: what is held or owed would be lost.
    pub fn overruling(self, shard: &Shard, now: EpochMillis) -> impl Iterator<Item = &'a Limit> {
        let overrules = self.overrule(shard, now);
        self.limits.iter().filter(move |limit| overrules && shard.other_kind(limit).is_none())
    }

    /// Returns whether these limits end the pool of a class, which they lack.
    fn ends_pool(self, shard: &Shard, name: &LimitName) -> bool {
        let has = |name: &str| self.limits.iter().any(|limit| limit.name().as_str() == name);
        name.is_pool() && !shard.is_gone(name) && has(name.base()) && !has(name.as_str())
    }

    /// Returns whether this limit is the pool of a class that a limit of the shard did not have.
    fn begins_pool(self, shard: &Shard, limit: &Limit) -> bool {
        limit.name().is_pool()
            && limit.rule().capacity > MilliTokens::ZERO
            && (!shard.limits.contains_key(limit.name()) || shard.is_gone(limit.name()))
            && (shard.limits.get(limit.name().base()))
                .is_some_and(|shared| !shared.rule.kind().is_held())
    }

    /// Returns whether these limits change the classes of a limit of `shard` at `now`.
    fn changes_pools(self, shard: &Shard, now: EpochMillis) -> bool {
        let has_pools = shard.limits.keys().any(LimitName::is_pool)
            || self.limits.iter().any(|limit| limit.name().is_pool());
        has_pools
            && self.overrule(shard, now)
            && (shard.limits.keys().any(|name| self.ends_pool(shard, name))
                || self.limits.iter().any(|limit| self.begins_pool(shard, limit)))
    }
}

impl Shard {
    /// Returns the balance that one write can take from at `now`: the balance, the tokens `back` of
    /// expired leases, and the change from the shard's rule to `rule`.
    ///
    /// A raised rate refills faster at once, up to the new capacity. A lowered one cuts the balance
    /// and makes no debt. A changed number of slots adds or removes free slots; held slots stay
    /// held. What was used of a quota stays used, in a changed window too. Between a rate and a quota,
    /// the balance stays, up to both capacities.
    fn takeable(
        &self,
        state: &LimitState,
        rule: RefillRule,
        back: LeaseReturn,
        now: EpochMillis,
    ) -> MilliTokens {
        let (old, new) = (self.share(state), self.shard().share(rule.capacity));
        match (state.rule.kind(), rule.kind()) {
            (LimitKind::Quota, LimitKind::Quota) if state.has_ended_by(&rule, now) => new,
            (LimitKind::Quota, LimitKind::Quota) | (LimitKind::Slots, _) => {
                state.available + back.available + (new - old)
            }
            (LimitKind::Rate | LimitKind::Quota, _) => {
                (self.balance(state, now) + back.available).min(old).min(new)
            }
        }
    }

    /// Returns the end of the window after the change from the shard's rule to `rule`. A window that
    /// is open goes on, unless it is another one; a session that has ended begins with its next use,
    /// and one that gets another length keeps its begin.
    fn window_end(
        state: &LimitState,
        rule: RefillRule,
        calendar: Calendar,
        now: EpochMillis,
    ) -> EpochMillis {
        let Some(code) = rule.window_code() else {
            return EpochMillis::default();
        };
        let is_same = state.rule.window_code() == Some(code);
        match code.session() {
            // A session begins with its next use.
            session if is_same && (session.is_some() || !state.has_ended(now)) => state.window_end,
            Some(_) if state.has_ended_by(&rule, now) => EpochMillis::default(),
            _ => {
                let kept = state.session_end(&rule);
                let end = kept.or_else(|| calendar.end_after(code, now));
                end.unwrap_or(state.window_end)
            }
        }
    }

    /// Returns the kind that the shard has under this name, if the limit cannot replace it: slots
    /// stay slots for as long as the item exists, and nothing else becomes slots.
    #[must_use]
    pub fn other_kind(&self, limit: &Limit) -> Option<LimitKind> {
        let known = self.limits.get(limit.name())?.rule.kind();
        (!known.may_become(limit.rule().kind())).then_some(known)
    }

    /// Returns what each pool of a limit gets of the others' balances as its classes change, in all
    /// nothing: the pool of a new class a part of what the shared pool has, in proportion to their
    /// capacities, and the shared pool what those have that go.
    pub(crate) fn moved(
        &self,
        terms: VersionedLimits<'_>,
        now: EpochMillis,
    ) -> BTreeMap<LimitName, MilliTokens> {
        let mut moved = BTreeMap::new();
        if !terms.changes_pools(self, now) {
            return moved;
        }
        let balance = |name: &LimitName| {
            let back = self.lease_return(name, self.reclaimable(now).map(|(_, lease)| lease));
            let state = &self.limits[name];
            self.takeable(state, state.rule, back, now)
        };
        for shared in terms.limits.iter().filter(|limit| !limit.name().is_pool()) {
            if !self.limits.contains_key(shared.name()) {
                continue;
            }
            let (before, mut left) = (moved.len(), balance(shared.name()));
            for name in self.limits.keys() {
                if terms.ends_pool(self, name) && name.base() == shared.name().as_str() {
                    let gone = balance(name);
                    left += gone;
                    moved.insert(name.clone(), -gone);
                }
            }
            let begun = terms.limits.iter().filter(|limit| {
                limit.name().base() == shared.name().as_str() && terms.begins_pool(self, limit)
            });
            let begun: Vec<_> = begun.collect();
            let capacity = |limit: &&Limit| i128::from(limit.rule().capacity.0);
            let all: i128 = begun.iter().map(capacity).sum::<i128>() + capacity(&shared);
            let whole = left.max(MilliTokens::ZERO);
            for pool in begun {
                let part = i128::from(whole.0) * capacity(&pool) / all.max(1);
                let part = MilliTokens(i64::try_from(part).unwrap_or_default());
                let part = part.min(self.shard().share(pool.rule().capacity));
                left -= part;
                moved.insert(pool.name().clone(), part);
            }
            // Other limits change as they do without classes.
            if moved.len() > before {
                moved.insert(shared.name().clone(), left - balance(shared.name()));
            }
        }
        moved
    }

    /// Returns the shard after a write at `now` that credits refill, begins windows, reclaims expired
    /// leases and applies the acquire's limits, but takes nothing. Older limits only add those that
    /// the shard lacks.
    #[must_use]
    pub fn projected<'a>(&self, terms: impl Into<VersionedLimits<'a>>, now: EpochMillis) -> Self {
        let terms = terms.into();
        let mut next = self.clone();
        let moved = self.moved(terms, now);
        for (name, state) in &mut next.limits {
            let rule = terms.overruling(self, now).find(|limit| limit.name() == name);
            let mut rule = rule.map_or(state.rule, |limit| *limit.rule());
            let back = self.lease_return(name, self.reclaimable(now).map(|(_, lease)| lease));
            if let Some(moved) = moved.get(name) {
                if terms.ends_pool(self, name) {
                    rule.capacity = MilliTokens::ZERO;
                }
                let most = self.shard().share(rule.capacity);
                let before = self.takeable(state, state.rule, back, now);
                state.available = (before + *moved).min(most);
            } else {
                state.available = self.takeable(state, rule, back, now);
            }
            state.window_end = Self::window_end(state, rule, terms.calendar, now);
            state.consumed -= back.consumed;
            state.rule = rule;
        }
        for limit in terms.limits.iter().filter(|limit| !self.limits.contains_key(limit.name())) {
            let mut rule = *limit.rule();
            let mut available = self.shard().share(rule.capacity);
            if limit.name().is_pool() && self.limits.contains_key(limit.name().base()) {
                // The pool of older limits has nothing, because the shared one has it all.
                if !terms.overrule(self, now) {
                    rule.capacity = MilliTokens::ZERO;
                }
                available = moved.get(limit.name()).copied().unwrap_or_default();
            }
            let mut state = LimitState::new(available, rule);
            state.window_end = Self::window_end(&state, rule, terms.calendar, now);
            next.limits.insert(limit.name().clone(), state);
        }
        if let Some(leases) = &mut next.leases {
            for (id, _) in self.reclaimable(now) {
                leases.remove(id);
            }
        }
        next.refilled_at = self.refilled_at.max(now);
        next
    }

    /// Returns the number of limits the shard has after it gets those of `terms` that it lacks.
    #[must_use]
    pub fn limit_count_with<'a>(&self, terms: impl Into<VersionedLimits<'a>>) -> usize {
        let lacks = |limit: &&Limit| !self.limits.contains_key(limit.name());
        self.limits.len() + terms.into().limits.iter().filter(lacks).count()
    }

    /// Returns whether the shard has every limit of `terms`. The rules of limits that overrule the
    /// shard's at `now` must be equal too.
    #[must_use]
    pub fn matches_rules<'a>(
        &self,
        terms: impl Into<VersionedLimits<'a>>,
        now: EpochMillis,
    ) -> bool {
        let terms = terms.into();
        let is_same = |limit: &Limit| {
            self.limits.get(limit.name()).is_some_and(|state| state.rule == *limit.rule())
        };
        terms.limits.iter().all(|limit| self.limits.contains_key(limit.name()))
            && terms.overruling(self, now).all(is_same)
            && !terms.changes_pools(self, now)
    }
}

//! The limits of an acquire against those of a shard: which of them overrule, and what the shard is
//! with them.

use crate::limit::{LimitKind, RefillRule};
use crate::{
    Calendar, EpochMillis, LeaseReturn, Limit, LimitState, MilliTokens, RULES_STAND, Shard,
    VersionedLimits,
};

impl<'a> VersionedLimits<'a> {
    /// Returns whether these limits overrule those of `shard` at `now`.
    #[must_use]
    pub fn overrule(self, shard: &Shard, now: EpochMillis) -> bool {
        match self.order(shard.config_version, now) {
            Some(order) => order.is_gt(),
            // A fast clock or another writer may have stored an instant far in the future.
            None => shard
                .limits_changed_at
                .is_none_or(|at| now.0.abs_diff(at.0) >= RULES_STAND.0.unsigned_abs()),
        }
    }

    /// Returns the limits whose rules overrule those of `shard` at `now`: all, or none. A rate never
    /// overrules slots, or slots a rate: what is held or owed would be lost.
    pub fn overruling(self, shard: &Shard, now: EpochMillis) -> impl Iterator<Item = &'a Limit> {
        let overrules = self.overrule(shard, now);
        self.limits
            .iter()
            .filter(move |limit| overrules && shard.other_kind(limit).is_none())
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
            (LimitKind::Rate | LimitKind::Quota, _) => (self.balance(state, now) + back.available)
                .min(old)
                .min(new),
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

    /// Returns the shard after a write at `now` that credits refill, begins windows, reclaims expired
    /// leases and applies the acquire's limits, but takes nothing. Older limits only add those that
    /// the shard lacks.
    #[must_use]
    pub fn projected<'a>(&self, terms: impl Into<VersionedLimits<'a>>, now: EpochMillis) -> Self {
        let terms = terms.into();
        let mut next = self.clone();
        for (name, state) in &mut next.limits {
            let rule = terms
                .overruling(self, now)
                .find(|limit| limit.name() == name);
            let rule = rule.map_or(state.rule, |limit| *limit.rule());
            let back = self.lease_return(name, self.reclaimable(now).map(|(_, lease)| lease));
            state.available = self.takeable(state, rule, back, now);
            state.window_end = Self::window_end(state, rule, terms.calendar, now);
            state.consumed -= back.consumed;
            state.rule = rule;
        }
        for limit in terms
            .limits
            .iter()
            .filter(|limit| !self.limits.contains_key(limit.name()))
        {
            let rule = *limit.rule();
            let mut state = LimitState::new(self.shard().share(rule.capacity), rule);
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
            self.limits
                .get(limit.name())
                .is_some_and(|state| state.rule == *limit.rule())
        };
        terms
            .limits
            .iter()
            .all(|limit| self.limits.contains_key(limit.name()))
            && terms.overruling(self, now).all(is_same)
    }
}

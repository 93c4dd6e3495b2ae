//! The balance of a limit at an instant: its available tokens, the refill since, and the tokens of
//! expired leases.

use crate::math;
use crate::{
    EpochMillis, Lease, LeaseReturn, LimitKind, LimitName, LimitState, MilliTokens, Shard, WriteId,
};

impl Shard {
    /// Returns a limit's balance at `now`, with the refill since `refilled_at`.
    #[must_use]
    pub fn balance(&self, state: &LimitState, now: EpochMillis) -> MilliTokens {
        let (tk, rf) = (state.available, self.refilled_at);
        match state.rule.kind() {
            LimitKind::Rate => math::refilled(tk, &state.rule, self.shard(), rf, now),
            LimitKind::Slots => tk.min(self.share(state)),
            LimitKind::Quota if state.has_ended(now) => self.share(state),
            LimitKind::Quota => tk,
        }
    }

    /// Returns whether refill since `refilled_at` overflows at `now`.
    #[must_use]
    pub fn is_full(&self, state: &LimitState, now: EpochMillis) -> bool {
        let flowed = math::refill_between(&state.rule, self.shard(), self.refilled_at, now);
        state.rule.kind().refills() && state.available + flowed > self.share(state)
    }

    /// Returns whether so much has refilled since `refilled_at` that the next take must credit it.
    /// Only rates of about 10^9 tokens a second and more come to that.
    #[must_use]
    pub fn must_credit(&self, now: EpochMillis) -> bool {
        let flowed = |state: &LimitState| {
            math::refill_between(&state.rule, self.shard(), self.refilled_at, now)
        };
        let mut states = self.limits.values();
        states.any(|state| flowed(state) > math::MAX_UNCREDITED)
    }

    /// Returns the expired leases that one take reclaims, at most 8: each adds two comparisons, and
    /// DynamoDB accepts 300 operators.
    pub fn reclaimable(&self, now: EpochMillis) -> impl Iterator<Item = (&WriteId, &Lease)> {
        self.expired(now).take(8)
    }

    /// Returns whether more leases have expired at `now` than one take reclaims.
    #[must_use]
    pub fn has_unreclaimable(&self, now: EpochMillis) -> bool {
        self.expired(now).count() > self.reclaimable(now).count()
    }

    /// Returns the leases that have expired at `now`, by id.
    pub fn expired(&self, now: EpochMillis) -> impl Iterator<Item = (&WriteId, &Lease)> {
        self.leases.iter().flatten().filter(move |(_, lease)| lease.expires_at <= now)
    }

    /// Returns the balance of `limit` at `at` if no other write takes or returns tokens before.
    #[must_use]
    pub fn balance_at(&self, limit: &LimitName, at: EpochMillis) -> MilliTokens {
        let Some(state) = self.limits.get(limit) else {
            return MilliTokens::ZERO;
        };
        let tk = state.available
            + self.lease_return(limit, self.expired(at).map(|(_, lease)| lease)).available;
        match state.rule.kind() {
            LimitKind::Rate | LimitKind::Quota => {
                let available = tk;
                self.balance(&LimitState { available, ..*state }, at)
            }
            LimitKind::Slots => tk,
        }
    }

    /// Returns the tokens that `leases` return to `limit` if they end unused. Those of another window
    /// than the present one are no longer consumed, but not available again.
    #[must_use]
    pub fn lease_return<'a>(
        &self,
        limit: &LimitName,
        leases: impl Iterator<Item = &'a Lease>,
    ) -> LeaseReturn {
        let Some(state) = self.limits.get(limit) else {
            return LeaseReturn::default();
        };
        let kind = state.rule.kind();
        let window = kind.has_window().then_some(state.window_end);
        let mut back = LeaseReturn::default();
        for lease in leases {
            let held = lease.tokens.get(limit).copied().unwrap_or_default();
            if lease.windows.get(limit).copied() == window {
                back.available += held;
            }
            if !kind.is_held() {
                back.consumed += held;
            }
        }
        back
    }

    /// Returns when what a write has taken of a rate is repaid, by the shard as that write left it and
    /// without `later`, which it took behind it: an acquire that queued starts then. Returns `None`
    /// for other kinds.
    #[must_use]
    pub fn repaid_at(&self, limit: &LimitName, later: MilliTokens) -> Option<EpochMillis> {
        let LimitState { available, rule, .. } = self.limits.get(limit)?;
        let (nothing, left) = (MilliTokens::ZERO, *available + later);
        let is_rate = rule.kind() == LimitKind::Rate;
        is_rate
            .then(|| math::ready_at(nothing, left, rule, self.shard(), self.refilled_at))
            .flatten()
    }

    /// Returns when `need` of `limit` is available if no other write takes or returns tokens: by
    /// refill for a rate, by the expiry of leases for slots, at the end of its window for a quota.
    /// Returns `None` if the limit is unknown, or if `need` exceeds the shard's share.
    #[must_use]
    pub fn ready_at(&self, limit: &LimitName, need: MilliTokens) -> Option<EpochMillis> {
        let state = self.limits.get(limit)?;
        let rf = self.refilled_at;
        let by_time = |tk| match state.rule.kind() {
            LimitKind::Quota if tk < need => Some(state.window_end),
            LimitKind::Rate | LimitKind::Slots | LimitKind::Quota => {
                math::ready_at(need, tk, &state.rule, self.shard(), rf)
            }
        };
        if !state.rule.kind().is_held() && need > self.share(state) {
            return None;
        }
        let mut ends: Vec<_> = self.leases.iter().flatten().map(|(_, lease)| lease).collect();
        ends.sort_by_key(|lease| lease.expires_at);
        let mut tk = state.available;
        let mut best = by_time(tk);
        for lease in ends {
            if best.is_some_and(|at| at <= lease.expires_at) {
                break;
            }
            tk += self.lease_return(limit, std::iter::once(lease)).available;
            best =
                match by_time(tk) {
                    Some(at) => Some(best.map_or(at.max(lease.expires_at), |best| {
                        best.min(at.max(lease.expires_at))
                    })),
                    None => best,
                };
        }
        best
    }
}

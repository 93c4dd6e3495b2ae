//! A bucket shard as one value: the fields of its item, and its balance at an instant.

use std::collections::BTreeMap;

use crate::limit::{RefillRule, WCU};
use crate::math::{self, ShardIndex};
use crate::{
    Bases, BucketKey, Counter, EpochMillis, EpochSeconds, Hour, Limit, LimitName, Meter,
    MilliTokens, VersionedLimits, WriteId,
};

/// One bucket shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Which shard of which bucket.
    pub key: BucketKey,
    /// Number of shards of the bucket when this one was last split or merged.
    pub shard_count: u32,
    /// Instant up to which refill is credited.
    pub refilled_at: EpochMillis,
    /// Number of writes, from `birth_seq` on.
    pub write_seq: i64,
    /// `write_seq` at creation.
    pub birth_seq: i64,
    /// Hour in which usage is counted.
    pub hour: Hour,
    /// Number of granted acquires.
    pub acquires: Counter,
    /// Limits by name, without the hidden `wcu`.
    pub limits: BTreeMap<LimitName, LimitState>,
    /// Usage of limits that the shard no longer has: it was merged away with them, and created
    /// again without.
    pub departed: BTreeMap<LimitName, Counter>,
    /// Version of the configuration that the limits are from; `None` if an acquire without a
    /// version brought them.
    pub config_version: Option<i64>,
    /// Instant at which an acquire without a version last changed a rule; `None` if none did.
    pub limits_changed_at: Option<EpochMillis>,
    /// Instant after which DynamoDB may delete the item, which is then full and has no lease.
    /// `None` if the bucket is kept.
    pub ttl: Option<EpochSeconds>,
    /// Write units left in the partition at `refilled_at`, in thousandths. A partition has 1,000
    /// units a second.
    pub write_units_left: MilliTokens,
    /// Leases stored in the item; `None` if the item lacks the map.
    pub leases: Option<BTreeMap<WriteId, Lease>>,
    /// Instant at or before the earliest expiry of a lease.
    pub due_at: Option<EpochMillis>,
    /// Id of the last write that has one.
    pub last_write_id: Option<WriteId>,
    /// Inputs of the next split or merge.
    pub scaling: Scaling,
    /// New half of an unfinished split: see [`finish_writes`](crate::write::finish_writes).
    pub escrow: Option<Box<Self>>,
    /// Size of the item as DynamoDB bills it, in bytes.
    pub size_bytes: usize,
    /// Bytes of the leases, part of `size_bytes`.
    pub lease_bytes: usize,
}

/// Inputs of a shard's splits and merges, besides its write units and its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scaling {
    /// Whether a client requests a split.
    pub is_hot: bool,
    /// Last activity sample; `None` until the first split.
    pub sample: Option<ActivitySample>,
    /// Number of shards that an operator set, 0 for none. Idle shards are not merged below it.
    pub min_shards: u32,
    /// Bytes of the leases at the last split.
    pub lease_bytes_at_split: i64,
}

/// A write sequence with its time, from which the write rate follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivitySample {
    /// Time of the sample.
    pub at: EpochMillis,
    /// `write_seq` at that time.
    pub write_seq: i64,
}

/// One limit of a bucket shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitState {
    /// Available tokens of this shard, with refill up to `refilled_at`; negative for a debt.
    pub available: MilliTokens,
    /// Net consumption in this shard since its creation.
    pub consumed: MilliTokens,
    /// `consumed` at the start of the current hour and day.
    pub bases: Bases,
    /// Capacity and refill of the whole bucket.
    pub rule: RefillRule,
}

/// Tokens held under an id until an expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Instant of expiry.
    pub expires_at: EpochMillis,
    /// Held tokens, by limit.
    pub tokens: BTreeMap<LimitName, MilliTokens>,
    /// Free-text owner, for operators. The protocol ignores it.
    pub owner: String,
}

/// Tokens that an expired or rolled back lease returns to one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseReturn {
    /// Amount added to the balance.
    pub available: MilliTokens,
    /// Amount subtracted from the consumption: unused tokens of a rate. Zero for slots, which count
    /// when they are taken.
    pub consumed: MilliTokens,
}

impl LimitState {
    /// Returns a limit without consumption.
    #[must_use]
    pub fn new(tk: MilliTokens, rule: RefillRule) -> Self {
        Self {
            available: tk,
            consumed: MilliTokens::ZERO,
            bases: Bases::default(),
            rule,
        }
    }
}

impl Shard {
    /// Returns a new, full shard.
    #[must_use]
    pub fn full<'a>(
        key: BucketKey,
        terms: impl Into<VersionedLimits<'a>>,
        now: EpochMillis,
    ) -> Self {
        let terms = terms.into();
        // Acquires create only shard 0.
        let shard = ShardIndex::at_creation(key.shard);
        let state = |limit: &Limit| {
            let (tk, rule) = (shard.share(limit.rule().capacity), *limit.rule());
            (limit.name().clone(), LimitState::new(tk, rule))
        };
        let birth = now.0.saturating_mul(1000);
        Self {
            key,
            shard_count: shard.count,
            refilled_at: now,
            write_seq: birth,
            birth_seq: birth,
            hour: Hour::of(now),
            acquires: Counter::default(),
            limits: terms.limits.iter().map(state).collect(),
            departed: BTreeMap::new(),
            config_version: terms.version,
            limits_changed_at: None,
            ttl: None,
            write_units_left: WCU.capacity,
            leases: Some(BTreeMap::new()),
            due_at: None,
            last_write_id: None,
            scaling: Scaling::default(),
            escrow: None,
            size_bytes: 0,
            lease_bytes: 0,
        }
    }

    /// Returns the shard's index and count.
    #[must_use]
    pub const fn shard(&self) -> ShardIndex {
        // Another writer may have stored a count that is not above the index. The shard is then
        // treated as the last one.
        let count = if self.shard_count > self.key.shard {
            self.shard_count
        } else {
            self.key.shard.saturating_add(1)
        };
        ShardIndex {
            index: self.key.shard,
            count,
        }
    }

    /// Returns this shard's share of a limit's capacity.
    #[must_use]
    pub fn share(&self, state: &LimitState) -> MilliTokens {
        self.shard().share(state.rule.capacity)
    }

    /// Returns whether the partition has under a fifth of a second's write units left at `at`. A
    /// throttled partition need not show this; throttled requests do.
    #[must_use]
    pub fn is_near_write_limit(&self, at: EpochMillis) -> bool {
        self.write_units_at(at) < WCU.capacity / 5
    }

    /// Returns the write units left in the partition at `at`, in thousandths.
    pub(crate) fn write_units_at(&self, at: EpochMillis) -> MilliTokens {
        math::refilled(
            self.write_units_left,
            &WCU,
            ShardIndex::UNSPLIT,
            self.refilled_at,
            at,
        )
    }

    /// Returns the usage counters.
    #[must_use]
    pub fn meter(&self) -> Meter {
        let counter = |(name, state): (&LimitName, &LimitState)| {
            (
                name.clone(),
                Counter {
                    total: state.consumed.0,
                    bases: state.bases,
                },
            )
        };
        Meter {
            key: self.key.clone(),
            write_seq: self.write_seq,
            birth_seq: self.birth_seq,
            hour: self.hour,
            acquires: self.acquires,
            limits: self
                .limits
                .iter()
                .map(counter)
                .chain(self.departed.clone())
                .collect(),
        }
    }

    /// Returns whether leases make every write cost more than one unit. Leases from before the last
    /// split do not count: they stay, so another split would not help.
    #[must_use]
    pub fn has_heavy_leases(&self) -> bool {
        let leases = i64::try_from(self.lease_bytes).unwrap_or(i64::MAX);
        self.size_bytes > 1024 && leases.saturating_sub(self.scaling.lease_bytes_at_split) >= 256
    }

    /// Returns the write units that DynamoDB bills for one write of this item: one for each KB
    /// begun.
    #[must_use]
    pub fn write_units(&self) -> i64 {
        i64::try_from(self.size_bytes.div_ceil(1024))
            .unwrap_or(i64::MAX)
            .max(1)
    }

    /// Returns a limit's balance at `now`, with the refill since `refilled_at`.
    #[must_use]
    pub fn balance(&self, state: &LimitState, now: EpochMillis) -> MilliTokens {
        math::refilled(
            state.available,
            &state.rule,
            self.shard(),
            self.refilled_at,
            now,
        )
    }

    /// Returns whether refill since `refilled_at` overflows at `now`.
    #[must_use]
    pub fn is_full(&self, state: &LimitState, now: EpochMillis) -> bool {
        let flowed = math::refill_between(&state.rule, self.shard(), self.refilled_at, now);
        !state.rule.is_concurrent() && state.available + flowed > self.share(state)
    }

    /// Returns the balance that one write can take from at `now`: the balance, the tokens `back` of
    /// expired leases, and the change from the shard's rule to `rule`.
    ///
    /// A raised rate refills faster at once, up to the new capacity. A lowered one cuts the balance
    /// and makes no debt. A changed number of slots adds or removes free slots; held slots stay
    /// held.
    fn takeable(
        &self,
        limit: &LimitName,
        state: &LimitState,
        rule: RefillRule,
        back: LeaseReturn,
        now: EpochMillis,
    ) -> MilliTokens {
        let (old, new) = (self.share(state), self.shard().share(rule.capacity));
        match (state.rule.is_concurrent(), rule.is_concurrent()) {
            (true, true) => state.available + back.available + (new - old),
            (false, false) => {
                let flowed = math::refill_between(&state.rule, self.shard(), self.refilled_at, now);
                (state.available + flowed + back.available)
                    .min(old)
                    .min(new)
            }
            // A rate becomes slots, or slots a rate: only the tokens in leases are held.
            _ => {
                let held = |(_, lease): (&WriteId, &Lease)| lease.tokens.get(limit).copied();
                new - self.leases.iter().flatten().filter_map(held).sum() + back.available
            }
        }
    }

    /// Returns the shard after a write at `now` that credits refill, reclaims expired leases and
    /// applies the acquire's limits, but takes nothing. Older limits only add those that the shard
    /// lacks.
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
            state.available = self.takeable(name, state, rule, back, now);
            state.consumed -= back.consumed;
            state.rule = rule;
        }
        for limit in terms
            .limits
            .iter()
            .filter(|limit| !self.limits.contains_key(limit.name()))
        {
            let rule = *limit.rule();
            let state = LimitState::new(self.shard().share(rule.capacity), rule);
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

    /// Returns the expired leases that one take reclaims, at most 8: each adds two comparisons, and
    /// DynamoDB accepts 300 operators.
    pub fn reclaimable(&self, now: EpochMillis) -> impl Iterator<Item = (&WriteId, &Lease)> {
        self.expired(now).take(8)
    }

    /// Returns the leases that have expired at `now`, by id.
    pub fn expired(&self, now: EpochMillis) -> impl Iterator<Item = (&WriteId, &Lease)> {
        self.leases
            .iter()
            .flatten()
            .filter(move |(_, lease)| lease.expires_at <= now)
    }

    /// Returns the balance of `limit` at `at` if no other write takes or returns tokens before.
    #[must_use]
    pub fn balance_at(&self, limit: &LimitName, at: EpochMillis) -> MilliTokens {
        let Some(state) = self.limits.get(limit) else {
            return MilliTokens::ZERO;
        };
        let tk = state.available
            + self
                .lease_return(limit, self.expired(at).map(|(_, lease)| lease))
                .available;
        if state.rule.is_concurrent() {
            tk
        } else {
            math::refilled(tk, &state.rule, self.shard(), self.refilled_at, at)
        }
    }

    /// Returns the tokens that `leases` return to `limit` if they end unused.
    #[must_use]
    pub fn lease_return<'a>(
        &self,
        limit: &LimitName,
        leases: impl Iterator<Item = &'a Lease>,
    ) -> LeaseReturn {
        let held: MilliTokens = leases
            .filter_map(|lease| lease.tokens.get(limit))
            .copied()
            .sum();
        let concurrent = self
            .limits
            .get(limit)
            .is_some_and(|state| state.rule.is_concurrent());
        LeaseReturn {
            available: held,
            consumed: if concurrent { MilliTokens::ZERO } else { held },
        }
    }

    /// Returns when `need` of `limit` is available if no other write takes or returns tokens: by
    /// refill for a rate, by the expiry of leases for slots. Returns `None` if the limit is
    /// unknown, or if `need` exceeds the shard's share.
    #[must_use]
    pub fn ready_at(&self, limit: &LimitName, need: MilliTokens) -> Option<EpochMillis> {
        let state = self.limits.get(limit)?;
        let by_refill = |tk| math::ready_at(need, tk, &state.rule, self.shard(), self.refilled_at);
        if !state.rule.is_concurrent() && need > self.share(state) {
            return None;
        }
        let mut ends: Vec<_> = self
            .leases
            .iter()
            .flatten()
            .map(|(_, lease)| lease)
            .collect();
        ends.sort_by_key(|lease| lease.expires_at);
        let mut tk = state.available;
        let mut best = by_refill(tk);
        for lease in ends {
            if best.is_some_and(|at| at <= lease.expires_at) {
                break;
            }
            tk += lease.tokens.get(limit).copied().unwrap_or_default();
            best = match by_refill(tk) {
                Some(at) => Some(best.map_or(at.max(lease.expires_at), |best| {
                    best.min(at.max(lease.expires_at))
                })),
                None => best,
            };
        }
        best
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

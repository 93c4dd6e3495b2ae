//! A bucket shard as one value: what an item says, and what can be taken from it at an instant.

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
    /// How many shards there were when this one was last split or merged.
    pub shard_count: u32,
    /// Up to when refill has been credited.
    pub refilled_at: EpochMillis,
    /// Counts every write.
    pub write_seq: i64,
    /// `v` at creation.
    pub birth_seq: i64,
    /// The hour that usage is counted for.
    pub hour: Hour,
    /// Counts granted acquires.
    pub acquires: Counter,
    /// The limits, by name; the hidden `wcu` is not among them.
    pub limits: BTreeMap<LimitName, LimitState>,
    /// Limits that it does not hold any more and has counted: the shard was merged away with them,
    /// and made again without.
    pub departed: BTreeMap<LimitName, Counter>,
    /// Version of the configuration the limits are from; `None` if a caller brought them with a
    /// call.
    pub config_version: Option<i64>,
    /// When a call without a version last changed a rule; `None` if none did.
    pub limits_changed_at: Option<EpochMillis>,
    /// When DynamoDB may delete the item: it is full then, and holds no lease. `None` for a bucket
    /// that is kept.
    pub ttl: Option<EpochSeconds>,
    /// Write units left in the partition at `rf`, in thousandths: of 1,000 a second.
    pub write_units_left: MilliTokens,
    /// Leases held here; `None` if the item lacks the map.
    pub leases: Option<BTreeMap<WriteId, Lease>>,
    /// At or before the earliest expiry of a lease.
    pub due_at: Option<EpochMillis>,
    /// Id of the last write.
    pub last_write_id: Option<WriteId>,
    /// What decides about its splits and merges.
    pub scaling: Scaling,
    /// Its new half, if its split is not finished: see
    /// [`finish_writes`](crate::write::finish_writes).
    pub escrow: Option<Box<Self>>,
    /// Size of the item as DynamoDB bills it, in bytes.
    pub size_bytes: usize,
    /// Of this, the leases.
    pub lease_bytes: usize,
}

/// What decides about the splits and merges of a shard, beside its write units and its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scaling {
    /// A client asks for a split.
    pub is_hot: bool,
    /// The last look at how often it is written to; `None` until its first split.
    pub sample: Option<ActivitySample>,
    /// Shards an operator asked for, 0 if none did: cold ones are not merged below it.
    pub min_shards: u32,
    /// Bytes of the leases when it was last split.
    pub lease_bytes_at_split: i64,
}

/// A look at how often a shard is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivitySample {
    /// When.
    pub at: EpochMillis,
    /// `v` then.
    pub write_seq: i64,
}

/// One limit of a bucket shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitState {
    /// Available in this shard, credited up to `rf`; may be negative.
    pub available: MilliTokens,
    /// Net consumed in this shard since it was created.
    pub consumed: MilliTokens,
    /// `tc` at the start of the current hour and day.
    pub bases: Bases,
    /// The numbers of the whole bucket.
    pub rule: RefillRule,
}

/// Tokens held under an id until an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// When it expires.
    pub expires_at: EpochMillis,
    /// What it holds, by limit.
    pub tokens: BTreeMap<LimitName, MilliTokens>,
    /// Who holds it, for people who look.
    pub owner: String,
}

/// What an expired or rolled back lease gives back to one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseReturn {
    /// Added to the balance.
    pub available: MilliTokens,
    /// Taken off the consumption: rate tokens were not used; a slot counted when it was taken.
    pub consumed: MilliTokens,
}

impl LimitState {
    /// A limit of which nothing was consumed.
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
    /// A bucket as it is made: full.
    #[must_use]
    pub fn full<'a>(
        key: BucketKey,
        terms: impl Into<VersionedLimits<'a>>,
        now: EpochMillis,
    ) -> Self {
        let terms = terms.into();
        // Callers make only the first shard.
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

    /// Which shard this is, of how many.
    #[must_use]
    pub const fn shard(&self) -> ShardIndex {
        // A count that does not hold the index is another writer's mistake; the shard is then the
        // last one.
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

    /// This shard's part of a limit's capacity.
    #[must_use]
    pub fn share(&self, state: &LimitState) -> MilliTokens {
        self.shard().share(state.rule.capacity)
    }

    /// Whether the write units of its partition run out at `at`: under a fifth of a second's is
    /// left. A partition that is only throttled does not show it; its callers do.
    #[must_use]
    pub fn is_near_write_limit(&self, at: EpochMillis) -> bool {
        self.write_units_at(at) < WCU.capacity / 5
    }

    /// The write units left in its partition at `at`, in thousandths.
    pub(crate) fn write_units_at(&self, at: EpochMillis) -> MilliTokens {
        math::refilled(
            self.write_units_left,
            &WCU,
            ShardIndex::UNSPLIT,
            self.refilled_at,
            at,
        )
    }

    /// Its usage counters.
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

    /// Whether its leases make every write to it cost more than one unit. Those it had when it was
    /// split do not count: they stay, and splitting again would not help.
    #[must_use]
    pub fn has_heavy_leases(&self) -> bool {
        let leases = i64::try_from(self.lease_bytes).unwrap_or(i64::MAX);
        self.size_bytes > 1024 && leases.saturating_sub(self.scaling.lease_bytes_at_split) >= 256
    }

    /// Write units that one write of this item costs the table: 1 for each KB begun.
    #[must_use]
    pub fn write_units(&self) -> i64 {
        i64::try_from(self.size_bytes.div_ceil(1024))
            .unwrap_or(i64::MAX)
            .max(1)
    }

    /// A limit's balance at `now`, with the credit since `rf`.
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

    /// Whether the credit since `rf` has flowed over at `now`.
    #[must_use]
    pub fn is_full(&self, state: &LimitState, now: EpochMillis) -> bool {
        let flowed = math::refill_between(&state.rule, self.shard(), self.refilled_at, now);
        !state.rule.is_concurrent() && state.available + flowed > self.share(state)
    }

    /// What can be taken of a limit at `now` in one write: the balance, what expired leases give
    /// `back`, and the change from the bucket's rule to `rule`. A raised rate flows in faster at
    /// once, and up to the new capacity; a lowered one cuts the balance and makes no debt. Slots
    /// come and go with their number; those held stay held.
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
            // From one kind to the other: all that is held is what the leases say.
            _ => {
                let held = |(_, lease): (&WriteId, &Lease)| lease.tokens.get(limit).copied();
                new - self.leases.iter().flatten().filter_map(held).sum() + back.available
            }
        }
    }

    /// What the bucket is after a write at `now` that credits refill, reclaims expired leases and
    /// brings the callers' own limits, but takes nothing. Limits that are older than the bucket's
    /// add what it lacks, and change nothing.
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

    /// The expired leases that one take gives back: each costs it two comparisons, and DynamoDB
    /// takes 300 operators.
    pub fn reclaimable(&self, now: EpochMillis) -> impl Iterator<Item = (&WriteId, &Lease)> {
        self.expired(now).take(8)
    }

    /// The leases that have expired at `now`, by id.
    pub fn expired(&self, now: EpochMillis) -> impl Iterator<Item = (&WriteId, &Lease)> {
        self.leases
            .iter()
            .flatten()
            .filter(move |(_, lease)| lease.expires_at <= now)
    }

    /// What there is of `limit` at `at`, if nobody takes or gives back until then.
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

    /// What `leases` give back to `limit` when they end unused.
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

    /// When `need` of `limit` is available if nobody else takes or gives back: by refill for a
    /// rate, by the expiry of leases for slots. `None` if never: the limit is unknown, or `need` is
    /// above the shard's share.
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

    /// How many limits the bucket has once those of `terms` that it lacks are brought to it.
    #[must_use]
    pub fn limit_count_with<'a>(&self, terms: impl Into<VersionedLimits<'a>>) -> usize {
        let lacks = |limit: &&Limit| !self.limits.contains_key(limit.name());
        self.limits.len() + terms.into().limits.iter().filter(lacks).count()
    }

    /// Whether every limit of `terms` is in the bucket, and with the same numbers unless those do
    /// not overrule its own at `now`.
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

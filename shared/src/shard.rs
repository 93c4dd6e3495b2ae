//! A bucket shard as one value: the fields of its item.
//!
//! - `balance`: the balance of a limit at an instant, and when it suffices
//! - `rules`: the limits of an acquire against those of the shard

mod balance;
mod rules;

use std::collections::BTreeMap;

use crate::limit::RefillRule;
use crate::math::ShardIndex;
use crate::{
    Bases, BucketKey, Counter, EditId, EpochMillis, EpochSeconds, Hour, Lease, Limit, LimitName,
    LimitsVersion, Meter, MilliTokens, MilliTotal, Millis, Pause, VersionedLimits, WriteId,
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
    /// Limits by name.
    pub limits: BTreeMap<LimitName, LimitState>,
    /// Usage of limits that the shard no longer has: it was merged away with them, and created
    /// again without.
    pub departed: BTreeMap<LimitName, Counter>,
    /// Version of the limits; `None` if an acquire without a version brought them.
    pub config_version: Option<LimitsVersion>,
    /// Instant at which an acquire last changed a rule without a newer version of the same place;
    /// `None` if none did.
    pub limits_changed_at: Option<EpochMillis>,
    /// Instant after which DynamoDB may delete the item, which is then full and has no lease.
    /// `None` if the bucket is kept.
    pub ttl: Option<EpochSeconds>,
    /// Leases stored in the item; `None` if the item lacks the map.
    pub leases: Option<BTreeMap<WriteId, Lease>>,
    /// Instant at or before the earliest expiry of a lease.
    pub due_at: Option<EpochMillis>,
    /// Id of the last write that has one.
    pub last_write_id: Option<WriteId>,
    /// Last change of an operator that the shard has; `None` if there was none.
    pub edit: Option<EditId>,
    /// Last pause of the shard, also one that is over; `None` if there was none, or it was ended.
    pub pause: Option<Pause>,
    /// Inputs of the next split or merge.
    pub scaling: Scaling,
    /// New half of an unfinished split: see [`finish_writes`](crate::write::finish_writes).
    pub escrow: Option<Box<Self>>,
    /// Size of the item as DynamoDB bills it, in bytes.
    pub size_bytes: usize,
    /// Bytes of the leases, part of `size_bytes`.
    pub lease_bytes: usize,
}

/// Inputs of a shard's splits and merges, besides its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scaling {
    /// Time of the last request of a client for a split: the largest there is, if it has none.
    pub hot_at: Option<EpochMillis>,
    /// Last activity sample; `None` until the first split.
    pub sample: Option<ActivitySample>,
    /// Number of shards that an operator set, 0 for none. Idle shards are not merged below it.
    pub min_shards: u32,
    /// Bytes of the leases at the last split.
    pub lease_bytes_at_split: i64,
}

impl Scaling {
    /// Time for which a request for a split counts, 60 s. It ends by itself: a write that removes it
    /// would go to the partition that throttled.
    pub const REQUEST: Millis = Millis(60_000);

    /// Returns whether a client requests a split at `now`.
    #[must_use]
    pub fn is_hot(&self, now: EpochMillis) -> bool {
        self.hot_at.is_some_and(|at| now.since(at) <= Self::REQUEST)
    }
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
    pub consumed: MilliTotal,
    /// `consumed` at the start of the current hour and day.
    pub bases: Bases,
    /// Capacity and refill of the whole bucket.
    pub rule: RefillRule,
    /// End of the window of a quota: at it, the balance is the whole share again, whatever
    /// `available` is. Zero before the first window, and for other kinds.
    pub window_end: EpochMillis,
}

impl LimitState {
    /// Returns a limit without consumption.
    #[must_use]
    pub fn new(tk: MilliTokens, rule: RefillRule) -> Self {
        Self {
            available: tk,
            consumed: MilliTotal::ZERO,
            bases: Bases::default(),
            rule,
            window_end: EpochMillis::default(),
        }
    }

    /// Returns whether no window of a quota is open at `now`: the last one has ended, or none has
    /// begun. False for other kinds.
    #[must_use]
    pub const fn has_ended(&self, now: EpochMillis) -> bool {
        self.rule.kind().has_window() && self.window_end.0 <= now.0
    }

    /// Returns whether no window is open at `now` if the rule becomes this one.
    #[must_use]
    pub fn has_ended_by(&self, rule: &RefillRule, now: EpochMillis) -> bool {
        self.has_ended(now) || self.session_end(rule).is_some_and(|end| end <= now)
    }

    /// Returns the end of a session that gets the length of another one: it keeps its begin.
    #[must_use]
    pub fn session_end(&self, rule: &RefillRule) -> Option<EpochMillis> {
        let [old, new] = [&self.rule, rule].map(|rule| rule.window_code()?.session());
        let begin = EpochMillis(self.window_end.0.saturating_sub(old?.0));
        Some(begin.plus(new?))
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
            leases: Some(BTreeMap::new()),
            due_at: None,
            last_write_id: None,
            edit: None,
            pause: None,
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
        ShardIndex { index: self.key.shard, count }
    }

    /// Returns the limits by name, enforced: an item does not have their modes.
    pub fn enforced_limits(&self) -> impl Iterator<Item = Limit> {
        self.limits.iter().map(|(name, state)| Limit::of(name.clone(), state.rule))
    }

    /// Returns whether a limit is the pool of a class that is gone: it has no capacity, and only counts.
    #[must_use]
    pub fn is_gone(&self, limit: &LimitName) -> bool {
        let state = self.limits.get(limit);
        limit.is_pool() && state.is_some_and(|state| state.rule.capacity == MilliTokens::ZERO)
    }

    /// Returns the rule of a whole limit: that of its pools together, if it has classes.
    #[must_use]
    pub fn whole_rule(&self, limit: &LimitName) -> Option<RefillRule> {
        let mut whole = self.limits.get(limit)?.rule;
        let pools = self.limits.iter();
        let pools = pools.filter(|(name, _)| name.is_pool() && name.base() == limit.as_str());
        let there = pools.filter(|(name, _)| !self.is_gone(name));
        for rule in there.map(|(_, state)| state.rule) {
            whole.capacity += rule.capacity;
            whole.refill_amount += rule.refill_amount;
        }
        Some(whole)
    }

    /// Returns this shard's share of a limit's capacity.
    #[must_use]
    pub fn share(&self, state: &LimitState) -> MilliTokens {
        self.shard().share(state.rule.capacity)
    }

    /// Returns the end of the pause that is in force at `now`.
    #[must_use]
    pub fn paused_until(&self, now: EpochMillis) -> Option<EpochMillis> {
        let until = self.pause.map(|pause| pause.until);
        until.filter(|until| now < *until)
    }

    /// Returns the usage counters.
    #[must_use]
    pub fn meter(&self) -> Meter {
        let counter = |(name, state): (&LimitName, &LimitState)| {
            (name.clone(), Counter { total: state.consumed.0, bases: state.bases })
        };
        Meter {
            key: self.key.clone(),
            write_seq: self.write_seq,
            birth_seq: self.birth_seq,
            hour: self.hour,
            acquires: self.acquires,
            limits: self.limits.iter().map(counter).chain(self.departed.clone()).collect(),
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
        i64::try_from(self.size_bytes.div_ceil(1024)).unwrap_or(i64::MAX).max(1)
    }
}

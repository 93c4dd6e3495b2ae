//! Taking tokens: which write is the cheapest, and what all of them contain.
//!
//! - `balance`: takes from the available balance
//! - `refill`: takes from the refill since `rf`
//! - `new_limits`: takes, credits all refill, and writes the acquire's limits to the shard
//! - `window`: takes from a quota, and begins its next window
//! - `line`: takes from refill that comes later, for waiters that queue
//! - `reclaim`: ends expired leases along with a take

mod balance;
mod line;
mod new_limits;
mod reclaim;
mod refill;
mod window;

pub use line::Place;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::pause::not_paused_after;
use super::{
    AttributeUpdate, Condition, Path, Roll, Update, Value, count_write, due, has_kind,
    require_limits, set_write_id, ttl,
};
use crate::math::refill_between;
use crate::{
    Asks, BucketKey, Effect, EpochMillis, Hour, Lease, LimitName, LimitState, MAX_LIMITS,
    MilliTokens, Millis, Shard, VersionedLimits, WriteId, attr, item,
};

/// One write that takes tokens for a batch of acquires.
#[derive(Debug, Clone)]
pub struct Take<'a> {
    /// The bucket shard.
    pub key: &'a BucketKey,
    /// Limits of the acquires. The take writes them to the shard if its own differ and are not
    /// newer.
    pub limits: VersionedLimits<'a>,
    /// Amounts of the whole batch.
    pub asks: Asks,
    /// The acquires in the order in which they start, if any of them queues or leaves something to
    /// others; otherwise empty. Only rates that the shard has can be queued for: of other limits it has
    /// enough at once.
    pub line: Vec<Place>,
    /// Number of acquires that this grants.
    pub acquires: i64,
    /// Leases written with the take; their tokens are part of `asks`.
    pub leases: Vec<(WriteId, Lease)>,
    /// Hour in which this take counts.
    pub roll: Roll,
    /// Id of this write.
    pub write_id: WriteId,
    /// Whether to request a split: the shard was throttled, as last seen.
    pub request_split: bool,
    /// Contention of the shard.
    pub contention: Contention,
    /// Whether to assume that another process has begun the windows that have ended in the view. If
    /// it has not, the write fails.
    pub windows_begun: bool,
    /// Unconfirmed writes for the same batch, this one among them. The take must not be applied
    /// again if one of them is the item's last write, or if one of its leases exists.
    pub unconfirmed: &'a [WriteId],
}

/// Whether other processes write to a shard, as far as the last responses showed.
///
/// A take of a full shard states where its balance is cut, so of two concurrent ones, one fails.
/// Where many processes use less than the refill, shards are often full, and half of their writes
/// would fail. Under contention, a take leaves headroom when it cuts: at most 1/128 of the shard's
/// share, and at most a second's refill; none if that is less than half of what it takes, because
/// it would cost a request of the burst and spare nothing. It cuts as well where no more than the
/// headroom is missing.
///
/// With a stale view it assumes headroom if other processes use half of the refill, or write several
/// times while the headroom refills. Otherwise the shard is probably full again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Contention {
    /// No other writer was seen; the take keeps every token.
    #[default]
    Alone,
    /// Other writers, and a fresh view.
    Shared,
    /// Other writers, and a stale view.
    SharedStale {
        /// Their writes a day, as last seen: a day because of limits of a few tokens an hour.
        others_per_day: u32,
    },
}

/// Writes of others while the headroom refills, from which on a shard is probably not full: 2.
const MIN_WRITES: i128 = 2;

const SECOND: Millis = Millis(1_000);
const DAY: Millis = Millis(86_400_000);

fn refill_within(time: Millis, shard: &Shard, state: &LimitState) -> MilliTokens {
    let from = shard.refilled_at;
    refill_between(&state.rule, shard.shard(), from, from.plus(time))
}

impl<'a> Take<'a> {
    /// Returns a take of nothing, for no acquire, that counts in the hour of `now`.
    #[must_use]
    pub fn nothing(
        key: &'a BucketKey,
        limits: impl Into<VersionedLimits<'a>>,
        write_id: WriteId,
        now: EpochMillis,
    ) -> Self {
        Self {
            key,
            limits: limits.into(),
            asks: Asks::default(),
            line: vec![],
            acquires: 0,
            leases: vec![],
            roll: Roll::to(Hour::of(now)),
            write_id,
            request_split: false,
            contention: Contention::Alone,
            windows_begun: false,
            unconfirmed: &[],
        }
    }
}

/// Returns the most leases of one take from a shard with this many limits: 50, or 14 beside 20 limits.
///
/// A condition has at most 300 operators: 2 for each lease, which must be absent, at most 13 for each
/// limit that the take brings, and 12 for the rest. No call brings more than [`MAX_LIMITS`].
#[must_use]
pub fn max_leases(limits: usize) -> usize {
    ((300 - 12 - 13 * limits.min(MAX_LIMITS)) / 2).min(50)
}

impl Take<'_> {
    /// Returns the cheapest write for this view.
    ///
    /// Each write is exact, whatever other processes have written since the view. It applies only
    /// if its assumption about the balance holds at `now`. A bucket that is full then is full from
    /// `now` on, not from its last write: otherwise an idle bucket could be emptied twice at one
    /// instant.
    #[must_use]
    pub fn plan(&self, view: &Shard, now: EpochMillis) -> Update {
        let mut update = if !view.matches_rules(self.limits, now) || view.must_credit(now) {
            self.with_new_limits(view, now)
        } else if self.is_covered(view, now) {
            self.take_balance(view, now)
        } else {
            self.take_refill(view, now)
        };
        require_limits(&mut update, view);
        // What is not enforced is never denied.
        if self.asks.has(Effect::Enforce) {
            update.conditions.push(not_paused_after(now));
        }
        // What another kind takes would return otherwise, so this take must fail.
        let other = self.limits.limits.iter().filter(|limit| {
            let is_asked = self.asks.iter().any(|ask| ask.limit == *limit.name());
            is_asked && view.other_kind(limit).is_some()
        });
        for limit in other {
            let kind = has_kind(limit.name(), limit.rule().kind());
            update.conditions.extend(kind);
        }
        update
    }

    /// Returns whether the write is right by any clock that is ahead: the available tokens suffice, so
    /// it assumes no refill and cuts none, and it brings no limits, begins no hour or window, ends no
    /// leases and queues no acquire.
    #[must_use]
    pub fn needs_no_time(&self, view: &Shard, now: EpochMillis) -> bool {
        self.line.is_empty()
            && view.matches_rules(self.limits, now)
            && !view.must_credit(now)
            && view.hour == self.roll.hour
            && view.expired(now).next().is_none()
            && self.is_covered(view, now)
    }

    /// Returns whether the available tokens suffice, no refill since `refilled_at` has overflowed,
    /// and no window is to be begun.
    fn is_covered(&self, shard: &Shard, now: EpochMillis) -> bool {
        self.asks.debits().all(|ask| {
            shard.limits.get(&ask.limit).is_some_and(|state| {
                if state.has_ended(now) {
                    return self.begins(shard, &ask.limit, state, now).is_none();
                }
                let least = || {
                    let rule = (&state.rule, shard.shard());
                    self.least_balance(&ask.limit, rule, now, now)
                };
                (!ask.effect.must_be_covered()
                    || state.available >= ask.amount
                        && (self.line.is_empty() || state.available >= least()))
                    && (!shard.is_full(state, now)
                        || self.assumes_headroom(shard, &ask.limit, state))
            })
        })
    }

    /// Returns whether to assume that the balance is below the ceiling, whatever the view shows.
    fn assumes_headroom(&self, shard: &Shard, limit: &LimitName, state: &LimitState) -> bool {
        let Contention::SharedStale { others_per_day } = self.contention else {
            return false;
        };
        let need = self.need(limit);
        if need == MilliTokens::ZERO {
            // Nothing says how much the others take of it.
            return false;
        }
        // After a cut, another one fails until what was taken has refilled. An addition fails once
        // the headroom has refilled as well. The others' takes count as large as this one.
        let per_day = |amount: MilliTokens| i128::from(others_per_day) * i128::from(amount.0);
        let refill = i128::from(refill_within(DAY, shard, state).0);
        per_day(need) * 2 >= refill
            || per_day(self.headroom(shard, limit, state) + need) >= refill * MIN_WRITES
    }

    /// Returns the headroom that a cut leaves, so that the next takes need not cut.
    fn headroom(&self, shard: &Shard, limit: &LimitName, state: &LimitState) -> MilliTokens {
        if self.contention == Contention::Alone {
            return MilliTokens::ZERO;
        }
        let most = refill_within(SECOND, shard, state).min(shard.share(state) / 128);
        if most < self.need(limit) / 2 { MilliTokens::ZERO } else { most }
    }

    /// Adds the change of `ttl` for a shard that is `next` with its new limits.
    fn write_ttl(&self, seen: &Shard, next: &Shard, now: EpochMillis, update: &mut Update) {
        let order = self.limits.order_against(seen, now);
        let is_older = order.is_some_and(Ordering::is_lt);
        let wish = match self.limits.is_own {
            // Of a window that others have begun, the end is not known.
            _ if is_older || self.windows_begun => ttl::TtlWish::Same,
            true => ttl::TtlWish::Kept,
            false => ttl::TtlWish::Ends,
        };
        let (need, is_unbounded) =
            (|name: &LimitName| self.need(name), |name: &LimitName| self.is_into_debt(name));
        let expires = self.leases.iter().map(|(_, lease)| lease.expires_at).max();
        ttl::Lowered { seen, next, need: &need, is_unbounded: &is_unbounded, expires, wish, now }
            .write(update);
    }

    /// Returns the amount taken of a limit.
    fn need(&self, limit: &LimitName) -> MilliTokens {
        let debit = self.asks.debit(limit.as_str());
        debit.map(|ask| ask.amount).unwrap_or_default()
    }

    /// Returns the amount that counts as consumed: what is taken, and what bypasses the limits.
    fn consumption(&self, limit: &LimitName) -> MilliTokens {
        self.need(limit) + self.asks.counted(limit.as_str()).unwrap_or_default()
    }

    fn is_into_debt(&self, limit: &LimitName) -> bool {
        let debit = self.asks.debit(limit.as_str());
        debit.is_some_and(|ask| !ask.effect.must_be_covered())
    }

    fn update(&self, view: &Shard, now: EpochMillis) -> Update {
        let mut changes = count_write();
        changes.push(set_write_id(&self.write_id));
        changes.extend(
            self.request_split
                .then(|| AttributeUpdate::Set(Path::of(attr::HOT), Value::Int(now.0))),
        );
        changes.push(AttributeUpdate::Add(Path::of(attr::TAKES), Value::Int(self.acquires)));
        let differs = |op: &WriteId| {
            Condition::Differs(Path::of(attr::LAST_WRITE_ID), Value::text(op.as_str()))
        };
        let mut conditions: Vec<_> = self.unconfirmed.iter().map(differs).collect();
        // Of all: some may have ended since an earlier copy of this write was applied.
        let absent = |(id, _): &(WriteId, Lease)| Condition::Absent(Path::lease(id));
        conditions.extend(self.leases.iter().map(absent));
        let mut update = Update { key: self.key.item_key(), conditions, changes };
        self.roll.write(&mut update, Some(view));
        update
    }

    fn first_expiry(&self) -> Option<EpochMillis> {
        self.leases.iter().map(|(_, lease)| lease.expires_at).min()
    }

    /// Returns the write that creates the bucket, full except for this take, if it does not exist.
    /// On a tombstone, its `v` begins above that one's, whatever the clock of the creating process.
    #[must_use]
    pub fn create(&self, now: EpochMillis) -> Update {
        let mut shard = Shard::full(self.key.clone(), self.limits, now);
        for (limit, state) in &mut shard.limits {
            state.window_end = self.first_window(limit, state, now);
            state.available -= self.need(limit);
            state.consumed = self.consumption(limit).into();
        }
        (shard.hour, shard.acquires.total) = (self.roll.hour, self.acquires.into());
        shard.leases = Some(self.leases_in(&shard.limits).collect());
        shard.due_at = self.first_expiry();
        let expires = self.leases.iter().map(|(_, lease)| lease.expires_at).max();
        shard.ttl = (!self.limits.is_own).then(|| ttl::first(&shard, expires, now));
        shard.last_write_id = Some(self.write_id.clone());
        // An erased shard left a tombstone: with a `ttl`, and a `v` above those of its life.
        let v = Path::of(attr::WRITE_SEQ);
        let number = |change| match change {
            AttributeUpdate::Set(path, Value::Int(first))
                if [attr::WRITE_SEQ, attr::BIRTH].contains(&&*path.0[0]) =>
            {
                AttributeUpdate::Next(path, v.clone(), first)
            }
            other => other,
        };
        let mut changes: Vec<_> = item::write_shard(&shard).into_iter().map(number).collect();
        if shard.ttl.is_none() {
            changes.push(AttributeUpdate::Remove(Path::of(attr::TTL)));
        }
        let conditions = vec![Condition::Absent(Path::of(attr::REFILLED_AT))];
        Update { key: self.key.item_key(), conditions, changes }
    }

    /// Adds the leases to a shard that has `limits` after the write. Keeps `due` at or before the
    /// first expiry; a `due` that is early enough stays, so the index is not written.
    fn write_leases(
        &self,
        view: &Shard,
        limits: &BTreeMap<LimitName, LimitState>,
        update: &mut Update,
    ) {
        let Some(first) = self.first_expiry() else {
            return;
        };
        let map = Path::of(attr::LEASES);
        if view.leases.is_none() {
            update.conditions.push(Condition::Absent(map.clone()));
            update.changes.push(AttributeUpdate::Set(
                map,
                item::write_leases(&self.leases_in(limits).collect()),
            ));
        } else {
            update.conditions.push(Condition::Present(map));
            let set = |(id, lease): (WriteId, Lease)| {
                AttributeUpdate::Set(Path::lease(&id), item::write_lease(&lease))
            };
            update.changes.extend(self.leases_in(limits).map(set));
        }
        due::not_after(update, self.key, view.due_at, first);
    }
}

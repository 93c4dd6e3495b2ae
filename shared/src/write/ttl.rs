//! `ttl`: when DynamoDB may delete a bucket whose limits are not configured for it: otherwise
//! made-up keys would stay indefinitely.
//!
//! After every write, `ttl` is absent, or at or after the instant at which every rate is full, every
//! window has ended and every lease has expired. The next acquire then creates a full bucket, so nothing is lost.
//! Because `ttl` only rises, a write checks only the limits that it lowers; a write that adds `ttl`
//! to a bucket checks all. The check allows for a debt of one share, and its conditions refuse a
//! deeper one. If a deeper debt is known, `ttl` allows for that.
//!
//! `ttl` is in no index, and moves about once a day, with a take. A bucket of several shards has
//! none: if only shard 0 were deleted, it would be created again as a whole bucket.

use super::{
    AttributeUpdate, Condition, Path, Update, Value, push_new, require_refilled_at,
    require_shard_count, same_window, tokens,
};
use crate::{
    EpochMillis, EpochSeconds, LimitKind, LimitName, LimitState, MilliTokens, Millis, Shard, attr,
    math,
};

/// Time by which `ttl` is set ahead of the required instant.
const AHEAD: Millis = Millis(86_400_000);
/// Step of `ttl`, so that concurrent processes mostly agree on a value.
const STEP_SECONDS: i64 = 6 * 3600;
/// Maximum difference between clocks.
const CLOCKS: Millis = Millis(3_600_000);
/// Time for which a merged shard keeps its usage counters. After it, its windows are copied, and no
/// write of its split is in flight.
const BURIED: Millis = Millis(30 * 86_400_000);

/// Maximum number of conditions of a write that adds `ttl`: DynamoDB accepts 300 operators, about
/// two for each, and the kinds of 40 limits follow. A larger write leaves it to a later one.
const MOST_CONDITIONS: usize = 108;

/// The `ttl` that a write intends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TtlWish {
    /// The bucket gets a `ttl`.
    Ends,
    /// The bucket has no `ttl`.
    Kept,
    /// `ttl` stays present or absent.
    Same,
}

/// The parts of a write that `ttl` depends on.
pub(super) struct Lowered<'a> {
    /// Shard as it was seen.
    pub(super) seen: &'a Shard,
    /// Shard with its limits after the write.
    pub(super) next: &'a Shard,
    /// Amount taken of each limit.
    pub(super) need: &'a dyn Fn(&LimitName) -> MilliTokens,
    /// Whether the write takes a limit even into debt.
    pub(super) is_unbounded: &'a dyn Fn(&LimitName) -> bool,
    /// Last expiry of the written leases.
    pub(super) expires: Option<EpochMillis>,
    pub(super) wish: TtlWish,
    pub(super) now: EpochMillis,
}

/// Returns the `ttl` of a bucket created at `now`, with leases that expire by `expires`.
pub(super) fn first(made: &Shard, expires: Option<EpochMillis>, now: EpochMillis) -> EpochSeconds {
    let full = made
        .limits
        .values()
        .filter_map(|state| full_at(made, state, state.available.min(-made.share(state)), now));
    ahead_of(needed(full, expires, now))
}

/// Returns the `ttl` of a bucket whose shards were merged into `whole` at `now`.
pub(super) fn of_whole(whole: &Shard, now: EpochMillis) -> EpochSeconds {
    let full = whole.limits.values().filter_map(|state| {
        let floor = state.available.min(-whole.share(state));
        full_at(whole, state, floor, now)
    });
    let leases = whole.leases.iter().flatten();
    ahead_of(needed(full, leases.map(|(_, lease)| lease.expires_at), now))
}

/// Returns the `ttl` of a shard that is merged away at `now`.
pub(super) fn of_buried(now: EpochMillis) -> EpochSeconds {
    EpochSeconds::not_before(now.plus(BURIED))
}

/// Requires that `ttl`, if the bucket has one, is not before `at`.
pub(super) fn not_before(update: &mut Update, at: EpochMillis) {
    let ttl = Path::of(attr::TTL);
    let late =
        Condition::AtLeast(ttl.clone(), Value::Int(EpochSeconds::not_before(at.plus(CLOCKS)).0));
    update.conditions.push(Condition::AbsentOr(ttl, Box::new(late)));
}

/// Returns when a rate with balance `floor` at `now` is full, and a quota at the latest; `None` for
/// slots.
pub(super) fn full_at(
    next: &Shard,
    state: &LimitState,
    floor: MilliTokens,
    now: EpochMillis,
) -> Option<EpochMillis> {
    match state.rule.kind() {
        LimitKind::Quota => Some(state.window_end),
        LimitKind::Rate | LimitKind::Slots => {
            math::ready_at(next.share(state), floor, &state.rule, next.shard(), now)
        }
    }
}

fn needed(
    full: impl Iterator<Item = EpochMillis>,
    expires: impl IntoIterator<Item = EpochMillis>,
    now: EpochMillis,
) -> EpochMillis {
    full.chain(expires).fold(now, EpochMillis::max).plus(CLOCKS)
}

fn ahead_of(needed: EpochMillis) -> EpochSeconds {
    let EpochSeconds(seconds) = EpochSeconds::not_before(needed.plus(AHEAD));
    EpochSeconds(seconds.saturating_add(STEP_SECONDS - 1).div_euclid(STEP_SECONDS) * STEP_SECONDS)
}

impl Lowered<'_> {
    /// Adds the change of `ttl` to `update`.
    pub(super) fn write(&self, update: &mut Update) {
        let (seen, ttl) = (self.seen, Path::of(attr::TTL));
        let is_one_of_several = seen.shard().count > 1 || seen.scaling.min_shards > 0;
        let has_room = update.conditions.len() + seen.limits.len() < MOST_CONDITIONS;
        let wish = if self.wish == TtlWish::Ends && !has_room { TtlWish::Same } else { self.wish };
        match (if is_one_of_several { TtlWish::Kept } else { wish }, seen.ttl) {
            (TtlWish::Kept, Some(_)) => update.changes.push(AttributeUpdate::Remove(ttl)),
            (TtlWish::Kept | TtlWish::Same, None) => {
                if self.limits().any(|(name, _)| self.takes_unbounded(name)) {
                    update.conditions.push(Condition::Absent(ttl));
                }
            }
            (TtlWish::Ends | TtlWish::Same, Some(known)) => {
                let needed = self.needed();
                for (name, state) in self.limits().filter(|(name, _)| self.takes_unbounded(name)) {
                    self.guard(update, name, state);
                }
                if known < EpochSeconds::not_before(needed) {
                    let value = Value::Int(ahead_of(needed).0);
                    push_new(update, require_shard_count(seen.shard()));
                    // Fails if another process has set a later `ttl`, or removed it.
                    update.conditions.push(Condition::AtMost(ttl.clone(), value.clone()));
                    update.changes.push(AttributeUpdate::Set(ttl, value));
                }
            }
            (TtlWish::Ends, None) => {
                let leases = seen.leases.iter().flatten().map(|(_, lease)| lease.expires_at);
                let value = Value::Int(ahead_of(leases.fold(self.needed(), EpochMillis::max)).0);
                push_new(update, require_shard_count(seen.shard()));
                for (name, state) in self.limits() {
                    self.guard(update, name, state);
                }
                let quotas = seen.limits.iter();
                for (name, state) in quotas.filter(|(_, state)| state.rule.kind().has_window()) {
                    push_new(update, same_window(name, state));
                }
                let early = Condition::AtMost(ttl.clone(), value.clone());
                update.conditions.push(Condition::AbsentOr(ttl.clone(), Box::new(early)));
                update.changes.push(AttributeUpdate::Set(ttl, value));
            }
        }
    }

    /// Returns the rates of the shard as seen.
    fn limits(&self) -> impl Iterator<Item = (&LimitName, &LimitState)> {
        self.seen.limits.iter().filter(|(_, state)| state.rule.kind().refills())
    }

    fn takes_unbounded(&self, name: &LimitName) -> bool {
        (self.is_unbounded)(name) && (self.need)(name) > MilliTokens::ZERO
    }

    /// Returns the earliest `ttl` that is valid after the write.
    fn needed(&self) -> EpochMillis {
        let full = |(name, next): (&LimitName, &LimitState)| {
            let floor = self
                .seen
                .limits
                .get(name)
                .map_or(MilliTokens::ZERO, |state| self.floor(name, state));
            full_at(self.next, next, floor.min(-self.next.share(next)), self.now)
        };
        needed(self.next.limits.iter().filter_map(full), self.expires, self.now)
    }

    /// Returns the minimum balance of a limit after the write: a debt of one share, or one share
    /// below the known balance.
    fn floor(&self, name: &LimitName, state: &LimitState) -> MilliTokens {
        let (share, left) =
            (self.seen.share(state), self.seen.balance(state, self.now) - (self.need)(name));
        if left >= -share { -share } else { left - share }
    }

    /// Requires that the balance stays above its floor.
    fn guard(&self, update: &mut Update, name: &LimitName, state: &LimitState) {
        let (need, shallow) = ((self.need)(name), -self.seen.share(state));
        let at_least = if state.available - need >= shallow {
            shallow + need
        } else {
            // Refill since `rf` counts, so `rf` must be the one seen.
            require_refilled_at(self.seen)
                .into_iter()
                .for_each(|condition| push_new(update, condition));
            let flowed = math::refill_between(
                &state.rule,
                self.seen.shard(),
                self.seen.refilled_at,
                self.now,
            );
            (self.floor(name, state) + need - flowed).min(state.available)
        };
        push_new(update, Condition::AtLeast(tokens(name), Value::Int(at_least.0)));
    }
}

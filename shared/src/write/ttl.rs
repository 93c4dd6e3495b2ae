//! `ttl`: when DynamoDB may delete a bucket on limits that are not its own: made-up keys would stay
//! indefinitely.
//!
//! After every write `ttl` is absent, or at or after the instant at which every rate is full and
//! every lease has expired. The next caller then makes a full bucket, so nothing is lost. Because
//! `ttl` only rises, a write needs to vouch only for the limits that it lowers; one that brings
//! `ttl` to a bucket without it vouches for all. Each allows for a debt of one share, and its
//! conditions refuse a deeper one; where the debt is known to be deeper, `ttl` allows for that.
//!
//! `ttl` is in no index, and moves about once a day with a take that happens anyway. Shards of
//! several have none: shard 0 deleted beside the others would be made again as a whole bucket.

use super::{
    AttributeUpdate, Condition, Path, Update, Value, push_new, require_refilled_at,
    require_shard_count, tokens,
};
use crate::{
    EpochMillis, EpochSeconds, LimitName, LimitState, MilliTokens, Millis, Shard, attr, math,
};

/// How far `ttl` is set ahead of what is needed.
const AHEAD: Millis = Millis(86_400_000);
/// Processes that move `ttl` side by side mostly agree on a multiple of this.
const STEP_SECONDS: i64 = 6 * 3600;
/// Clocks differ by less.
const CLOCKS: Millis = Millis(3_600_000);
/// How long a shard that was merged away keeps what it counted: by then its windows are copied, and
/// no write of its split is still under way.
const BURIED: Millis = Millis(30 * 86_400_000);

/// The most conditions of a write that brings `ttl`: DynamoDB takes 300 operators, about two for
/// each. A larger write leaves it to a later one.
const MOST_CONDITIONS: usize = 130;

/// What a write wants of `ttl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TtlWish {
    /// The bucket has one.
    Ends,
    /// The bucket has none.
    Kept,
    /// As it is.
    Same,
}

/// What a write takes from a bucket, as far as `ttl` depends on it.
pub(super) struct Lowered<'a> {
    /// The bucket as it was seen.
    pub(super) seen: &'a Shard,
    /// The bucket with the limits that it has after the write.
    pub(super) next: &'a Shard,
    /// What is taken of each limit.
    pub(super) need: &'a dyn Fn(&LimitName) -> MilliTokens,
    /// Whether the write takes it even if it is not there.
    pub(super) is_unbounded: &'a dyn Fn(&LimitName) -> bool,
    /// The last expiry of a lease that is written.
    pub(super) expires: Option<EpochMillis>,
    pub(super) wish: TtlWish,
    pub(super) now: EpochMillis,
}

/// The `ttl` of a bucket that is made at `now`, with leases that expire by `expires`.
pub(super) fn first(made: &Shard, expires: Option<EpochMillis>, now: EpochMillis) -> EpochSeconds {
    let full = made
        .limits
        .values()
        .filter_map(|state| full_at(made, state, -made.share(state), now));
    ahead_of(needed(full, expires, now))
}

/// The `ttl` of a shard that is merged away at `now`.
pub(super) fn of_buried(now: EpochMillis) -> EpochSeconds {
    EpochSeconds::not_before(now.plus(BURIED))
}

/// Requires that `ttl`, if the bucket has one, is not before `at`.
pub(super) fn not_before(update: &mut Update, at: EpochMillis) {
    let ttl = Path::of(attr::TTL);
    let late = Condition::AtLeast(
        ttl.clone(),
        Value::Int(EpochSeconds::not_before(at.plus(CLOCKS)).0),
    );
    update
        .conditions
        .push(Condition::AbsentOr(ttl, Box::new(late)));
}

/// When a rate is full that has `floor` at `now`; `None` for slots.
pub(super) fn full_at(
    next: &Shard,
    state: &LimitState,
    floor: MilliTokens,
    now: EpochMillis,
) -> Option<EpochMillis> {
    math::ready_at(next.share(state), floor, &state.rule, next.shard(), now)
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
    EpochSeconds(
        seconds
            .saturating_add(STEP_SECONDS - 1)
            .div_euclid(STEP_SECONDS)
            * STEP_SECONDS,
    )
}

impl Lowered<'_> {
    /// Adds to `update` what becomes of `ttl`.
    pub(super) fn write(&self, update: &mut Update) {
        let (seen, ttl) = (self.seen, Path::of(attr::TTL));
        let is_one_of_several = seen.shard().count > 1 || seen.scaling.min_shards > 0;
        let has_room = update.conditions.len() + self.limits().count() < MOST_CONDITIONS;
        let wish = if self.wish == TtlWish::Ends && !has_room {
            TtlWish::Same
        } else {
            self.wish
        };
        match (
            if is_one_of_several {
                TtlWish::Kept
            } else {
                wish
            },
            seen.ttl,
        ) {
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
                    // Not before what others have made it, and nowhere where they have removed it.
                    update
                        .conditions
                        .push(Condition::AtMost(ttl.clone(), value.clone()));
                    update.changes.push(AttributeUpdate::Set(ttl, value));
                }
            }
            (TtlWish::Ends, None) => {
                let leases = seen
                    .leases
                    .iter()
                    .flatten()
                    .map(|(_, lease)| lease.expires_at);
                let value = Value::Int(ahead_of(leases.fold(self.needed(), EpochMillis::max)).0);
                push_new(update, require_shard_count(seen.shard()));
                for (name, state) in self.limits() {
                    self.guard(update, name, state);
                }
                let early = Condition::AtMost(ttl.clone(), value.clone());
                update
                    .conditions
                    .push(Condition::AbsentOr(ttl.clone(), Box::new(early)));
                update.changes.push(AttributeUpdate::Set(ttl, value));
            }
        }
    }

    /// The rates that the bucket was seen with.
    fn limits(&self) -> impl Iterator<Item = (&LimitName, &LimitState)> {
        self.seen
            .limits
            .iter()
            .filter(|(_, state)| !state.rule.is_concurrent())
    }

    fn takes_unbounded(&self, name: &LimitName) -> bool {
        (self.is_unbounded)(name) && (self.need)(name) > MilliTokens::ZERO
    }

    /// The earliest `ttl` that is good after the write.
    fn needed(&self) -> EpochMillis {
        let full = |(name, next): (&LimitName, &LimitState)| {
            let floor = self
                .seen
                .limits
                .get(name)
                .map_or(MilliTokens::ZERO, |state| self.floor(name, state));
            full_at(self.next, next, floor.min(-self.next.share(next)), self.now)
        };
        needed(
            self.next.limits.iter().filter_map(full),
            self.expires,
            self.now,
        )
    }

    /// What the balance of a limit is at least after the write: a debt of one share, or a share
    /// below what is known.
    fn floor(&self, name: &LimitName, state: &LimitState) -> MilliTokens {
        let (share, left) = (
            self.seen.share(state),
            self.seen.balance(state, self.now) - (self.need)(name),
        );
        if left >= -share { -share } else { left - share }
    }

    /// Requires that the balance stays above its floor.
    fn guard(&self, update: &mut Update, name: &LimitName, state: &LimitState) {
        let (need, shallow) = ((self.need)(name), -self.seen.share(state));
        let at_least = if state.available - need >= shallow {
            shallow + need
        } else {
            // What has flowed in since `rf` counts, so `rf` is the one seen.
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
        push_new(
            update,
            Condition::AtLeast(tokens(name), Value::Int(at_least.0)),
        );
    }
}

//! The batch of a write, and denials, by properties.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::Instant;
use weirgate_shared::write::max_leases;
use weirgate_shared::{
    Asks, BucketKey, Effect, EpochMillis, Limit, LimitName, LimitsVersion, MilliTokens, Shard,
};

use super::super::waiter::{Waiter, select_batch};
use crate::values::{Amounts, BucketRequest, Limits, shortage};

const NOW: EpochMillis = EpochMillis(1_000_000);
const RATE: i64 = 60;
const SLOTS: i64 = 40;

/// Amounts of a rate and of slots.
fn needs([rate, slots]: [i64; 2]) -> Amounts {
    let all = [("rpm", rate), ("slots", slots)]
        .map(|(name, need)| (name, MilliTokens::from_tokens(need)));
    all.into_iter()
        .filter(|(_, need)| *need > MilliTokens::ZERO)
        .map(|(name, need)| (LimitName::new(name).unwrap(), need))
        .collect()
}

fn limits() -> Limits {
    let limits =
        [Limit::per_minute("rpm", RATE).unwrap(), Limit::concurrent("slots", SLOTS).unwrap()];
    Limits::new(limits.into(), None)
}

fn key() -> BucketKey {
    BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap()
}

/// A shard as viewed `seconds_ago`, with these balances.
fn seen(left: [i64; 2], seconds_ago: i64) -> Shard {
    let mut shard = Shard::full(key(), &limits(), EpochMillis(NOW.0 - seconds_ago * 1000));
    for (state, left) in shard.limits.values_mut().zip(left) {
        state.available = MilliTokens::from_tokens(left);
    }
    shard
}

#[derive(Debug, Clone)]
struct Asked {
    needs: [i64; 2],
    wants_lease: bool,
    brings_others: bool,
}

/// Returns the waiter at `place`, identified by its acquires.
fn caller(place: usize, asked: &Asked) -> Waiter {
    let limits =
        if asked.brings_others { limits().with_version(LimitsVersion::new(7)) } else { limits() };
    let lease = (Duration::from_secs(1), "test".into());
    let request = BucketRequest {
        asks: Asks::of(Effect::Enforce, needs(asked.needs)),
        lease: asked.wants_lease.then_some(lease),
        acquires: i64::try_from(place).unwrap(),
        ..BucketRequest::of(limits)
    };
    Waiter::new(request, Instant::now(), Instant::now())
}

fn places<'a>(waiters: impl IntoIterator<Item = &'a Waiter>) -> Vec<usize> {
    waiters.into_iter().map(|waiter| usize::try_from(waiter.request.acquires).unwrap()).collect()
}

fn asked() -> impl Strategy<Value = Asked> {
    let others = prop::bool::weighted(0.1);
    ([0..4_i64, 0..3_i64], prop::bool::weighted(0.8), others)
        .prop_map(|(needs, wants_lease, brings_others)| Asked { needs, wants_lease, brings_others })
}

fn shard_state() -> impl Strategy<Value = ([i64; 2], i64)> {
    ([-5..=RATE, -5..=SLOTS], 0..10_i64)
}

proptest! {
    /// No waiter is lost, or passed by a later one that asks for as much. The batch fits in
    /// full.
    #[test]
    fn i1_a_batch_is_first_come_first_served_and_fits_the_balances(
        line in vec(asked(), 0..120), shard_state in prop::option::of(shard_state()),
    ) {
        let view = shard_state.map(|(left, seconds_ago)| seen(left, seconds_ago));
        let mut others: VecDeque<_> = line.iter().enumerate().map(|(place, asked)| caller(place, asked)).collect();
        let chosen = select_batch(view.as_ref(), &mut others, NOW);
        let (chosen, others) = (places(&chosen), places(&others));

        let shard_state = view.unwrap_or_else(|| seen([RATE, SLOTS], 0));
        let mut left = ["rpm", "slots"].map(|name| shard_state.balance_at(&LimitName::new(name).unwrap(), NOW));
        let (mut expected, mut leases) = ((vec![], vec![]), 0);
        for (place, asked) in line.iter().enumerate() {
            let needs = asked.needs.map(MilliTokens::from_tokens);
            let has = |at: usize| needs[at] == MilliTokens::ZERO || left[at] >= needs[at];
            let is_like_first = asked.brings_others == line[0].brings_others;
            if !has(0) || !has(1) {
                expected.1.push(place);
                continue;
            }
            left = [left[0] - needs[0], left[1] - needs[1]];
            if !is_like_first || (asked.wants_lease && leases == max_leases(2)) {
                expected.1.push(place);
                continue;
            }
            leases += usize::from(asked.wants_lease);
            expected.0.push(place);
        }
        prop_assert_eq!((chosen, others), expected);
    }

    /// A denial has the right status of every limit.
    #[test]
    fn a_shortage_names_exactly_the_limits_with_too_few_tokens(
        (left, seconds_ago) in shard_state(), asked in asked(),
    ) {
        let (shard, waiter) = (seen(left, seconds_ago), caller(0, &asked));
        let lacks = |(name, need): &(&LimitName, MilliTokens)| shard.balance_at(name, NOW) < *need;
        let lacking: Vec<_> = waiter.request.asks.with(Effect::Enforce).filter(lacks).map(|(name, _)| name.to_string()).collect();
        let said = shortage(&shard, &waiter.request, None, NOW)
            .map(|denied| denied.short().map(|status| status.limit.clone()).collect::<Vec<_>>());
        prop_assert_eq!(said, Some(lacking).filter(|lacking| !lacking.is_empty()));
    }
}

/// DynamoDB would reject a longer write, and the whole batch with it.
#[test]
fn a_write_has_as_many_leases_as_its_limits_leave_room_for_and_any_number_of_other_waiters() {
    let ask = |place| {
        caller(place, &Asked { needs: [0, 0], wants_lease: place < 60, brings_others: false })
    };
    let mut others: VecDeque<_> = (0..70).map(ask).collect();
    let chosen = select_batch(None, &mut others, NOW);
    assert_eq!(places(&chosen), (0..50).chain(60..70).collect::<Vec<_>>());
    assert_eq!(places(&others), (50..60).collect::<Vec<_>>());
}

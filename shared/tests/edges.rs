//! A shard's values at exact boundaries: its heat, what can be taken, and what returns.

mod model;

use std::collections::BTreeMap;

use model::given::{Held, bucket, id, later, needs, rate, slots, whole, with_leases};
use model::limit_name;
use weirgate_shared::write::expire;
use weirgate_shared::{Limit, LimitState, MilliTokens, Scaling, Shard, ShardIndex};

/// The reported return is exact to the millitoken.
#[test]
fn what_expired_leases_give_back_is_reported_as_far_as_it_fits() {
    let held = |tk| {
        let leases: &[Held<'_>] = &[(3, 100, &[("rpm", 1500)]), (4, 100, &[("slots", 1000)])];
        with_leases(bucket(ShardIndex::UNSPLIT, tk, &[rate(), slots()]), leases)
    };
    for (tk, back) in [(5000, 1500), (9000, 1000), (10_000, 0)] {
        let (_, restored) = expire(&held(tk), later(100)).unwrap();
        assert_eq!(
            (restored.leases, restored.tokens),
            (2, needs(&[("rpm", back), ("slots", 1000)]))
        );
    }
    let none = with_leases(whole(0), &[(3, 100, &[])]);
    assert_eq!(expire(&none, later(100)).unwrap().1.tokens, BTreeMap::new());
}

#[test]
fn a_shard_is_hot_by_leases_that_came_since_its_split() {
    let mut shard = whole(0);
    for (size, leases, split, is_crowded, units) in [
        (0, 0, 0, false, 1),
        (1024, 1024, 0, false, 1),
        (1025, 256, 0, true, 2),
        (1025, 255, 0, false, 2),
        (2049, 600, 344, true, 3),
        (2049, 600, 345, false, 3),
    ] {
        (shard.size_bytes, shard.lease_bytes, shard.scaling) = (
            size,
            leases,
            Scaling {
                lease_bytes_at_split: split,
                ..shard.scaling
            },
        );
        assert_eq!(
            (shard.has_heavy_leases(), shard.write_units()),
            (is_crowded, units),
            "{size} {leases} {split}"
        );
    }
}

/// What can be taken, and when, at the exact boundary of the balance.
#[test]
fn a_shard_is_full_above_its_share_and_has_what_expired_leases_held() {
    let at_the_brim = whole(9000);
    let state = at_the_brim.limits["rpm"];
    assert!(!at_the_brim.is_full(&state, later(100)) && at_the_brim.is_full(&state, later(200)));
    let concurrent = bucket(ShardIndex::UNSPLIT, 0, &[slots()]);
    let over = LimitState {
        available: MilliTokens(7000),
        ..concurrent.limits["slots"]
    };
    assert!(!concurrent.is_full(&over, later(200)), "slots do not flow");

    // Brought back by a take: the lease's tokens, once, and not as used.
    let held = with_leases(
        whole(1000),
        &[(3, 100, &[("rpm", 1500)]), (4, 101, &[("rpm", 700)])],
    );
    let after = held.projected(&[rate()], later(100));
    assert_eq!(
        after.limits["rpm"].available,
        MilliTokens(1000 + 1000 + 1500)
    );
    assert_eq!(after.limits["rpm"].consumed, MilliTokens(-1500));
    assert_eq!(
        after.leases.unwrap().into_keys().collect::<Vec<_>>(),
        [id(4)]
    );

    // At the expiry of a lease, if that is what it takes; by refill, if that is as soon.
    let limit = limit_name("rpm");
    let ready = |need, held: &Shard| held.ready_at(&limit, MilliTokens(need));
    assert_eq!(ready(2000, &held), Some(later(100)));
    assert_eq!(ready(3500, &held), Some(later(100)));
    assert_eq!(ready(4210, &held), Some(later(101)));
    assert_eq!(
        (ready(10_001, &held), ready(10_000, &held)),
        (None, Some(later(680)))
    );
    let freed = with_leases(
        bucket(ShardIndex::UNSPLIT, 0, &[slots()]),
        &[(3, 100, &[("slots", 2000)])],
    );
    assert_eq!(
        freed.projected(&[slots()], later(100)).limits["slots"].available,
        MilliTokens(8000)
    );
    let more = Limit::concurrent("slots", 9).unwrap();
    assert_eq!(
        freed.projected(&[more], later(100)).limits["slots"].available,
        MilliTokens(11_000)
    );

    // Of a shard number that its count does not hold, another writer's mistake.
    let lost = Shard {
        shard_count: 3,
        ..bucket(ShardIndex { index: 3, count: 4 }, 0, &[rate()])
    };
    assert_eq!(lost.shard(), ShardIndex { index: 3, count: 4 });
}

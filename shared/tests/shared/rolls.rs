//! I3 in the item: what a new hour and a new day begin with, and which writes begin them.

use std::collections::BTreeMap;

use crate::model::table::Table;
use crate::model::{Item, bucket, bucket_key, limit_name, rpm, settle, take, used};
use crate::model::{START, hours};
use weirgate_shared::write::{
    Action, LeaseChange, LimitDelta, Roll, Settle, Take, Update, expire, merge, merged, refill,
    sample, split, update_min_shards,
};
use weirgate_shared::{
    Bases, Counter, EpochMillis, Hour, Lease, Limit, Meter, MilliTokens, Shard, ShardIndex, Window,
    WriteId,
};

fn limits() -> [Limit; 2] {
    [
        Limit::per_hour("rpm", 1).unwrap().with_burst(100).unwrap(),
        Limit::concurrent("slots", 6).unwrap(),
    ]
}

fn id(bits: u64) -> WriteId {
    WriteId::from_bits(bits)
}

/// A bucket that is half full.
fn table() -> Table {
    let mut bucket = bucket(ShardIndex::UNSPLIT, &limits(), START);
    bucket.limits.get_mut("rpm").unwrap().available = MilliTokens::from_tokens(50);
    Table::of(&bucket)
}

/// Takes so much by a view, if that is possible.
fn taken(table: &mut Table, view: &Shard, tokens: i64, at: EpochMillis, by_others: bool) -> bool {
    let (key, limits) = (bucket_key(0), limits());
    let take = take(&key, &limits, rpm(tokens), id(1), at);
    table.update(
        Take {
            roll: Roll {
                by_others,
                ..take.roll
            },
            ..take
        }
        .plan(view, at),
    )
}

#[test]
fn the_first_take_of_an_hour_begins_it_and_that_of_a_day_the_day_too() {
    let mut table = table();
    for (after, tokens, expected) in [
        (0, 3, [(3, 1), (3, 1)]),
        (1, 5, [(5, 1), (5, 1)]),
        (1, 7, [(12, 2), (12, 2)]),
        (2, 4, [(4, 1), (16, 3)]),
        // Hours in which nothing was taken are none.
        (23, 1, [(1, 1), (17, 4)]),
        (50, 2, [(2, 1), (2, 1)]),
    ] {
        let view = table.shards()[&0].clone();
        assert!(taken(&mut table, &view, tokens, hours(after), false));
        assert_eq!(
            (table.shards()[&0].hour, used(&table.shards()[&0])),
            (Hour::of(hours(after)), expected)
        );
    }
    let last = table.shards()[&0].clone();
    let counter = |total, hour, day| Counter {
        total,
        bases: Bases { hour, day },
    };
    assert_eq!(
        (last.acquires, last.limits["rpm"].bases),
        (
            counter(6, 5, 5),
            Bases {
                hour: 20_000,
                day: 20_000
            }
        )
    );
    let limits = [
        ("rpm", counter(22_000, 20_000, 20_000)),
        ("slots", Counter::default()),
    ];
    let (write_seq, birth_seq, hour) = (START.0 * 1000 + 6, START.0 * 1000, last.hour);
    let limits = limits
        .map(|(name, counter)| (limit_name(name), counter))
        .into();
    assert_eq!(
        last.meter(),
        Meter {
            key: bucket_key(0),
            write_seq,
            birth_seq,
            hour,
            acquires: last.acquires,
            limits
        }
    );
}

/// Consumption of a limit by other processes since the view would count for the new hour, because
/// its base stays.
#[test]
fn an_hour_begins_only_with_the_limits_that_were_seen() {
    let mut table = table();
    let seen = table.shards()[&0].clone();
    let (key, brought) = (bucket_key(0), [Limit::per_minute("tpm", 50).unwrap()]);
    let needs = [(limit_name("tpm"), MilliTokens::from_tokens(9))].into();
    assert!(table.update(take(&key, &brought, needs, id(2), START).plan(&seen, START)));
    let (at, no_limits, settled) = (
        hours(1),
        [],
        LimitDelta {
            consumed: MilliTokens(7),
            ..LimitDelta::default()
        },
    );
    let nothing = |needs| take(&key, &no_limits, needs, id(3), at);
    let counts = settle(&key, id(3), None, [(limit_name("rpm"), settled)].into(), at);
    for stale in [
        nothing(BTreeMap::new()).plan(&seen, at),
        nothing(rpm(3)).plan(&seen, at),
        nothing(rpm(100)).plan(&seen, at),
        Take {
            soft_amounts: rpm(3),
            ..nothing(BTreeMap::new())
        }
        .plan(&seen, at),
        Take {
            counted_amounts: rpm(3),
            ..nothing(BTreeMap::new())
        }
        .plan(&seen, at),
        counts.full(Some(&seen)),
        counts.capped(&seen),
    ] {
        assert!(!table.clone().update(stale.clone()), "{stale:?}");
    }
    let fresh = table.shards()[&0].clone();
    assert!(table.update(nothing(rpm(3)).plan(&fresh, at)));
    assert_eq!(
        table.used(Window::Hourly, Hour::of(START).start()).tokens["tpm"],
        MilliTokens::from_tokens(9)
    );
}

/// Where many processes write, only one of them begins an hour.
#[test]
fn a_write_that_takes_a_begun_hour_for_granted_happens_only_in_it() {
    let mut table = table();
    let seen = table.shards()[&0].clone();
    assert!(
        !taken(&mut table, &seen, 1, hours(1), true),
        "it has not begun"
    );
    assert!(taken(&mut table, &seen, 1, hours(1), false));
    assert!(
        !taken(&mut table, &seen, 1, hours(1), false),
        "it begins once"
    );
    assert!(taken(&mut table, &seen, 1, hours(1), true));
    let seen = table.shards()[&0].clone();
    assert!(
        taken(&mut table, &seen, 1, hours(1), true),
        "it was seen in it"
    );
    assert!(
        taken(&mut table, &seen, 1, hours(0), true),
        "a slow clock counts for the hour that has begun"
    );
    assert_eq!(used(&table.shards()[&0]), [(4, 4), (4, 4)]);
}

/// Of a damaged item: no clock can have reached the hour, and no later one would ever begin.
#[test]
fn an_hour_of_the_far_future_ends_with_the_next_take() {
    let (key, limits) = (bucket_key(0), limits());
    for (ahead, expected) in [(1, 2), (2, 1), (70_000_000, 1)] {
        let hour = Hour(Hour::of(hours(1)).0 + ahead);
        let damaged = Shard {
            hour,
            acquires: Counter {
                total: 1,
                ..Counter::default()
            },
            ..bucket(ShardIndex::UNSPLIT, &limits, START)
        };
        let update = take(&key, &limits, rpm(1), id(1), hours(1)).plan(&damaged, hours(1));
        let mut item = Item::of_bucket(&damaged);
        assert!(item.apply(&update));
        let healed = item.bucket();
        assert_eq!(
            healed.meter().usage(Window::Hourly).acquires,
            expected,
            "{ahead} hours ahead"
        );
        assert_eq!(
            healed.hour,
            if ahead == 1 { hour } else { Hour::of(hours(1)) }
        );
        assert!(!item.apply(&update) || ahead == 1, "once");
    }
}

/// Writes that count no usage need no hour: they must neither fail at the boundary nor cost more
/// there.
#[test]
fn only_what_counts_usage_begins_an_hour() {
    let mut seen = bucket(ShardIndex { index: 0, count: 2 }, &limits(), START);
    let lease = Lease {
        expires_at: hours(0),
        tokens: rpm(1),
        owner: String::new(),
    };
    seen.leases = Some([(id(5), lease)].into());
    let (key, at, lease) = (bucket_key(0), hours(1), id(5));
    let rolls = |update: &Update| {
        let mut item = Item::of_bucket(&seen);
        assert!(item.apply(update), "{update:?}");
        item.bucket().hour != seen.hour
    };
    let settled = |tc: MilliTokens, takes| {
        let amounts = [(
            limit_name("rpm"),
            LimitDelta {
                available: -tc,
                consumed: tc,
                ceiling: None,
            },
        )]
        .into();
        Settle {
            acquires: takes,
            ..settle(&key, id(6), Some((&lease, LeaseChange::End)), amounts, at)
        }
    };
    let zero = MilliTokens::ZERO;
    assert!(!rolls(&settled(zero, 0).full(Some(&seen))));
    assert!(
        rolls(&settled(zero, 1).full(Some(&seen)))
            && rolls(&settled(MilliTokens(1), 0).full(Some(&seen)))
    );
    let dry = Shard {
        limits: bucket(seen.shard(), &limits(), START).limits,
        ..seen.clone()
    };
    let held = |limit: &str| Lease {
        expires_at: hours(0),
        tokens: [(limit_name(limit), MilliTokens(1_000))].into(),
        owner: String::new(),
    };
    let free = Shard {
        leases: Some([(id(5), held("slots"))].into()),
        ..seen.clone()
    };
    let used = [(limit_name("rpm"), MilliTokens::from_tokens(1_000))].into();
    let lower = split(&seen, 0, id(7), at);
    let upper = bucket(ShardIndex { index: 1, count: 2 }, &limits(), START);
    let Action::Update(merged) = merge(&free, merged(&free, &upper, at).unwrap(), &[]).remove(0)
    else {
        panic!("it stays");
    };
    let actions = [lower, merged];
    let others = [
        refill(&dry, &used, at),
        expire(&free, at).map(|(update, _)| update),
    ];
    let others = others.map(|update| update.expect("there is something to do"));
    let (returned, _) = expire(&seen, at).expect("a lease has expired");
    assert!(rolls(&returned), "its tokens return in the present hour");
    for update in others
        .into_iter()
        .chain([sample(&free, at).0, update_min_shards(&seen, 2, at)])
        .chain(actions)
    {
        assert!(!rolls(&update), "{update:?}");
    }
}

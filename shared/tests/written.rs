//! Compares every planned write, as text, with the stored one: its changes and its conditions.
//!
//! `WRITTEN=1 cargo test -p weirgate-shared --test written` writes the file again. Review each
//! changed line: a missing condition is a missing guard.

mod model;

use std::collections::BTreeMap;

use model::given::{START, bucket, half, id, later, lease, needs, rate, slots, whole, with_leases};
use model::page::Page;
use model::{bucket_key, limit_name, settle};
use weirgate_shared::write::{
    Contention, LeaseChange, LimitDelta, Roll, Settle, Take, Update, UsageCopy, clear_due, expire,
    finish_writes, merge, merged, recreate, refill, remove_covered, require_unchanged, sample,
    split, update_min_shards,
};
use weirgate_shared::{
    ActivitySample, BucketKey, Counter, EpochSeconds, Hour, Limit, LimitsVersion, Meter,
    MilliTokens, MilliTotal, Shard, ShardIndex, ShardUsageCopy, Snapshot, Usage, VersionedLimits,
    Window,
};

#[derive(Clone, Copy)]
struct Ask<'a> {
    limits: &'a [Limit],
    version: Option<i64>,
    is_own: bool,
    needs: &'a [(&'a str, i64)],
    soft: &'a [(&'a str, i64)],
    counted: &'a [(&'a str, i64)],
    lease: Option<i64>,
    hot: bool,
    company: Contention,
    roll: Roll,
}

impl<'a> Ask<'a> {
    fn of(limits: &'a [Limit], needs: &'a [(&'a str, i64)]) -> Self {
        let (company, roll) = (Contention::Alone, Roll::to(Hour(0)));
        Self {
            limits,
            version: None,
            is_own: false,
            needs,
            soft: &[],
            counted: &[],
            lease: None,
            hot: false,
            company,
            roll,
        }
    }

    fn on(&self, view: &Shard, ms: i64) -> Update {
        self.with(&view.key, |take| take.plan(view, later(ms)))
    }

    fn with(&self, key: &BucketKey, plan: impl Fn(&Take<'_>) -> Update) -> Update {
        let unknown = [id(8), id(9)];
        plan(&Take {
            key,
            limits: VersionedLimits {
                limits: self.limits,
                version: self.version.map(LimitsVersion),
                is_own: self.is_own,
            },
            amounts: needs(self.needs),
            soft_amounts: needs(self.soft),
            counted_amounts: needs(self.counted),
            acquires: 2,
            leases: self
                .lease
                .map(|ms| (id(5), lease(later(ms), self.needs)))
                .into_iter()
                .collect(),
            roll: self.roll,
            write_id: id(9),
            request_split: self.hot,
            contention: self.company,
            unconfirmed: &unknown,
        })
    }
}

fn takes(page: &mut Page) {
    let limits = [rate()];
    let two = Ask::of(&limits, &[("rpm", 2000)]);
    page.update(
        "create",
        two.with(&bucket_key(0), |take| take.create(START)),
    );
    let held = Ask {
        lease: Some(500),
        ..Ask::of(&limits, &[("rpm", 2000)])
    };
    page.update(
        "create, with a lease",
        held.with(&bucket_key(0), |take| take.create(START)),
    );
    page.update("take of what is there", two.on(&whole(2000), 100));
    page.update(
        "take of what is there, up to the brim",
        two.on(&whole(9000), 100),
    );
    page.update("take of what is full by one", two.on(&whole(9001), 100));
    page.update("take of what has flowed in", two.on(&whole(1999), 100));
    page.update(
        "take of more than a share, of what is full",
        Ask::of(&limits, &[("rpm", 6000)]).on(&half(0, 5000), 100),
    );
    page.update(
        "take of all that is full",
        Ask::of(&limits, &[("rpm", 5000)]).on(&half(0, 5000), 100),
    );
    let of = |ttl: i64| Shard {
        ttl: Some(EpochSeconds(ttl)),
        ..whole(2000)
    };
    page.update("take that moves the end", two.on(&of(4601), 100));
    page.update("take that leaves the end", two.on(&of(4603), 100));
    let without = Shard {
        ttl: None,
        ..whole(2000)
    };
    page.update("take that brings an end", two.on(&without, 100));
    page.update(
        "take by limits of its own, which ends no bucket",
        Ask {
            is_own: true,
            ..two
        }
        .on(&without, 100),
    );
    page.update(
        "take by limits of its own, of one that ends",
        Ask {
            is_own: true,
            ..two
        }
        .on(&of(4603), 100),
    );
    page.update("take from a half", two.on(&half(1, 3000), 100));
    page.update(
        "take from a half of what has flowed in",
        two.on(&half(1, 1000), 100),
    );
    page.update(
        "take of nothing",
        Ask::of(&limits, &[]).on(&whole(2000), 100),
    );
    page.update(
        "take with a mark",
        Ask {
            hot: true,
            ..Ask::of(&limits, &[("rpm", 1)])
        }
        .on(&whole(2000), 0),
    );
    let other_company = |company| Ask {
        company,
        ..Ask::of(&limits, &[("rpm", 150)])
    };
    page.update(
        "take of what is full, in company",
        other_company(Contention::Shared).on(&whole(10_000), 100),
    );
    page.update(
        "take of all that is full, in company",
        Ask {
            company: Contention::Shared,
            ..Ask::of(&limits, &[("rpm", 9990)])
        }
        .on(&whole(10_000), 100),
    );
    for (what, others_per_day) in [
        ("take of what was full, in company", 86_400_000),
        ("take of what is probably full again", 2_879_999),
        ("take of what others use half of", 2_880_000),
    ] {
        let company = Contention::SharedStale { others_per_day };
        page.update(what, other_company(company).on(&whole(10_000), 100));
    }
    let mut large = whole(2000);
    large.size_bytes = 2500;
    page.update("take from an item of three units", two.on(&large, 0));
    let soft = Ask {
        soft: &[("rpm", 3000)],
        ..Ask::of(&limits, &[])
    };
    page.update("take that may make a debt", soft.on(&whole(1000), 100));
    page.update(
        "take that may make a debt, of what is full",
        soft.on(&whole(10_000), 100),
    );
    let both = [rate(), slots()];
    let slot = Ask {
        lease: Some(500),
        ..Ask::of(&both, &[("rpm", 1000), ("slots", 1000)])
    };
    page.update(
        "take with a lease",
        slot.on(&bucket(ShardIndex::UNSPLIT, 5000, &both), 0),
    );
    page.update(
        "take with a lease that is due before",
        slot.on(&half(0, 4000), 0),
    );
    let mut bare = bucket(ShardIndex::UNSPLIT, 5000, &both);
    bare.leases = None;
    page.update("take with the first lease", slot.on(&bare, 0));
    let due = |ms| {
        with_leases(
            bucket(ShardIndex::UNSPLIT, 5000, &both),
            &[(3, ms, &[("slots", 1000)])],
        )
    };
    page.update(
        "take with a lease after one due at the same time",
        slot.on(&due(500), 0),
    );
    page.update(
        "take with a lease before one due later",
        slot.on(&due(501), 0),
    );
    let dry = with_leases(
        bucket(ShardIndex::UNSPLIT, 0, &both),
        &[
            (3, 100, &[("rpm", 1500), ("slots", 2000)]),
            (4, 101, &[("rpm", 1000)]),
            (6, 50, &[]),
        ],
    );
    page.update("take of what expired leases held", slot.on(&dry, 100));
    page.update(
        "take of a limit that the bucket lacks",
        Ask::of(&both, &[("slots", 1000)]).on(&whole(5000), 100),
    );
}

fn bypasses(page: &mut Page) {
    let (limits, both) = ([rate()], [rate(), slots()]);
    let bypass = Ask {
        counted: &[("rpm", 3000)],
        ..Ask::of(&limits, &[])
    };
    page.update(
        "create for what bypasses the limits",
        bypass.with(&bucket_key(0), |take| take.create(START)),
    );
    page.update("bypass of a debt", bypass.on(&whole(-2000), 100));
    let mixed = Ask {
        counted: &[("rpm", 3000), ("slots", 1000)],
        ..Ask::of(&both, &[("rpm", 2000)])
    };
    let with = |tk| bucket(ShardIndex::UNSPLIT, tk, &both);
    page.update("take, and a bypass", mixed.on(&with(2000), 100));
    page.update(
        "take of what has flowed in, and a bypass",
        mixed.on(&with(1999), 100),
    );
    page.update(
        "take, and a bypass of a limit that the bucket lacks",
        mixed.on(&whole(2000), 100),
    );
    let raised = [Limit::custom("rpm", 20, 1, 100).unwrap()];
    page.update(
        "bypass that changes limits",
        Ask {
            limits: &raised,
            ..bypass
        }
        .on(&whole(2000), 100),
    );
}

fn rolls(page: &mut Page) {
    let (limits, both) = ([rate()], [rate(), slots()]);
    let ask = |roll, needs| Ask {
        roll,
        ..Ask::of(&limits, needs)
    };
    let (hour, day) = (Roll::to(Hour(1)), Roll::to(Hour(24)));
    let two: &[_] = &[("rpm", 2000)];
    page.update(
        "take that creates in a later hour",
        ask(hour, two).with(&bucket_key(0), |take| take.create(START)),
    );
    page.update(
        "take that begins an hour",
        ask(hour, two).on(&whole(2000), 100),
    );
    page.update(
        "take that begins an hour, of what has flowed in",
        ask(hour, two).on(&whole(1999), 100),
    );
    page.update(
        "take of nothing that begins a day",
        ask(day, &[]).on(&bucket(ShardIndex::UNSPLIT, 5000, &both), 100),
    );
    let raised = [Limit::custom("rpm", 20, 3, 100).unwrap(), slots()];
    let changes = Ask {
        roll: day,
        ..Ask::of(&raised, &[("rpm", 2000)])
    };
    page.update(
        "take that begins a day, and changes and brings limits",
        changes.on(&whole(2000), 100),
    );
    let by_others = |hour| Roll {
        hour: Hour(hour),
        by_others: true,
    };
    page.update(
        "take in an hour that another process began",
        ask(by_others(1), two).on(&whole(2000), 100),
    );
    page.update(
        "take in an hour that was seen",
        ask(by_others(0), two).on(&whole(2000), 100),
    );
    let ahead = |hour| Shard {
        hour: Hour(hour),
        ..whole(2000)
    };
    page.update(
        "take by a clock that is behind",
        ask(hour, two).on(&ahead(2), 100),
    );
    page.update(
        "take that ends an hour of the far future",
        ask(hour, two).on(&ahead(3), 100),
    );

    let (key, lease) = (bucket_key(0), id(5));
    let settle = |tc: i64, takes, roll| {
        let settled = LimitDelta {
            available: MilliTokens(-tc),
            consumed: MilliTokens(tc),
            ceiling: None,
        };
        let amounts = BTreeMap::from([(limit_name("rpm"), settled)]);
        Settle {
            acquires: takes,
            roll,
            ..settle(
                &key,
                id(9),
                Some((&lease, LeaseChange::End)),
                amounts,
                START,
            )
        }
    };
    page.update(
        "use more in a later hour, without a view",
        settle(500, 0, hour).full(None),
    );
    page.update(
        "use more, which begins an hour",
        settle(500, 0, hour).full(Some(&whole(0))),
    );
    page.update(
        "use as much in a later hour",
        settle(0, 0, hour).full(Some(&whole(0))),
    );
    page.update(
        "count acquires, which begins a day",
        settle(0, 3, day).capped(&whole(0)),
    );
    page.update(
        "use less in an hour that another process began",
        settle(-500, 0, by_others(1)).capped(&whole(0)),
    );
}

fn changes(page: &mut Page) {
    let raised = [Limit::custom("rpm", 20, 3, 100).unwrap()];
    let lowered = [Limit::custom("rpm", 4, 1, 100).unwrap()];
    let as_slots = [Limit::concurrent("rpm", 6).unwrap()];
    let ask = |limits| Ask::of(limits, &[("rpm", 2000)]);
    page.update(
        "take that raises a limit",
        ask(&raised).on(&whole(2000), 100),
    );
    page.update(
        "take that raises a limit of what is full",
        ask(&raised).on(&whole(9500), 100),
    );
    page.update(
        "take that lowers a limit",
        ask(&lowered).on(&whole(9000), 100),
    );
    page.update(
        "take that makes slots of a rate",
        ask(&as_slots).on(&whole(9000), 100),
    );
    let more = [Limit::concurrent("slots", 9).unwrap()];
    let held = with_leases(
        bucket(ShardIndex::UNSPLIT, 0, &[slots()]),
        &[(3, 100, &[("slots", 2000)])],
    );
    page.update(
        "take that brings slots",
        Ask::of(&more, &[("slots", 3000)]).on(&held, 100),
    );
    let newer = |version| Ask {
        version,
        ..Ask::of(&raised, &[("rpm", 2000)])
    };
    let mut known = whole(5000);
    known.config_version = Some(LimitsVersion(4));
    page.update(
        "take by a newer configuration",
        newer(Some(5)).on(&known, 0),
    );
    page.update(
        "take by an older configuration",
        newer(Some(3)).on(&known, 0),
    );
    page.update(
        "take by limits of the call's own",
        newer(None).on(&known, 0),
    );
    let soft = Ask {
        soft: &[("rpm", 3000)],
        ..Ask::of(&as_slots, &[])
    };
    let held = with_leases(whole(1000), &[(3, 100, &[("rpm", 1500)])]);
    page.update(
        "take that raises a limit, of what an expired lease held",
        ask(&raised).on(&held, 100),
    );
    let more = [rate(), slots()];
    let same = Ask {
        version: Some(4),
        ..Ask::of(&more, &[("slots", 1000)])
    };
    page.update(
        "take of a limit that the bucket lacks, by the same configuration",
        same.on(&known, 0),
    );
    page.update(
        "take that may make a debt, and makes slots of a rate",
        soft.on(&whole(1000), 100),
    );
}

fn settlements(page: &mut Page) {
    let (key, limit) = (bucket_key(0), limit_name("rpm"));
    let settle = |lease, tk: i64, ceiling: Option<i64>| {
        let settled = LimitDelta {
            available: MilliTokens(tk),
            consumed: MilliTokens(-tk),
            ceiling: ceiling.map(MilliTokens),
        };
        settle(&key, id(9), lease, [(limit.clone(), settled)].into(), START)
    };
    let lease = id(5);
    let hold = LeaseChange::SetAmounts(BTreeMap::from([(
        limit.clone(),
        (MilliTokens(2000), MilliTokens(500)),
    )]));
    page.update(
        "end a lease",
        settle(Some((&lease, LeaseChange::End)), 0, None).full(None),
    );
    page.update(
        "end a lease of slots",
        settle(Some((&lease, LeaseChange::End)), 1000, None).full(None),
    );
    let alone = with_leases(whole(5000), &[(5, 500, &[("rpm", 1000)])]);
    let mut last = settle(Some((&lease, LeaseChange::End)), 0, None).full(Some(&alone));
    clear_due(&mut last, &alone, &lease);
    page.update("end the last lease", last);
    page.update(
        "renew a lease, past the end",
        settle(
            Some((&lease, LeaseChange::Renew(later(900_000_000)))),
            0,
            None,
        )
        .full(Some(&alone)),
    );
    page.update(
        "renew a lease",
        settle(Some((&lease, LeaseChange::Renew(later(900)))), 0, None).full(None),
    );
    page.update(
        "hold less",
        settle(Some((&lease, hold)), 1500, Some(10_000)).full(None),
    );
    page.update("give back", settle(None, 2000, Some(10_000)).full(None));
    page.update(
        "give back what fits",
        settle(None, 2000, Some(10_000)).capped(&whole(9000)),
    );
    page.update(
        "give back to a lowered limit",
        settle(None, 2000, Some(20_000)).capped(&whole(9000)),
    );
    page.update(
        "give back to what is above its share",
        settle(None, 2000, Some(10_000)).capped(&whole(10_500)),
    );
    page.update(
        "give back nothing of a limit",
        settle(None, 0, Some(10_000)).full(None),
    );
    page.update(
        "use more",
        settle(None, -2000, Some(10_000)).capped(&whole(1000)),
    );
}

fn functions(page: &mut Page) {
    let all = needs(&[("rpm", 3000)]);
    page.update("refill", refill(&whole(3999), &all, later(200)));
    page.update(
        "refill what is nearly full",
        refill(&whole(8001), &needs(&[("rpm", 9000)]), later(200)),
    );
    page.update("refill a half", refill(&half(1, 1000), &all, later(1000)));
    page.update(
        "no refill of what lasts",
        refill(&whole(4000), &all, later(200)),
    );
    page.update(
        "no refill soon after the last",
        refill(&whole(3999), &all, later(199)),
    );
    page.update(
        "no refill without use",
        refill(&whole(0), &needs(&[("rpm", 0)]), later(200)),
    );
    page.update(
        "no refill of a debt without use",
        refill(&whole(-1), &needs(&[("rpm", 0)]), later(200)),
    );
    let slow = Shard::full(
        bucket_key(0),
        &[Limit::custom("rpm", 1, 1, 60_000_000).unwrap()],
        START,
    );
    page.update(
        "no refill before anything has flowed in",
        refill(&slow, &all, later(200)),
    );

    let expired = with_leases(
        bucket(ShardIndex::UNSPLIT, 9500, &[rate(), slots()]),
        &[
            (3, 100, &[("rpm", 1500), ("slots", 2000)]),
            (4, 101, &[("rpm", 1000)]),
        ],
    );
    page.update(
        "expire",
        expire(&expired, later(100)).map(|(update, _)| update),
    );
    page.update(
        "nothing to expire",
        expire(&expired, later(99)).map(|(update, _)| update),
    );
    let mut debt = whole(-500);
    debt.limits.get_mut("rpm").unwrap().available = MilliTokens(11_000);
    let over = with_leases(debt, &[(3, 100, &[("rpm", 1500)])]);
    page.update(
        "expire above the share",
        expire(&over, later(100)).map(|(update, _)| update),
    );
    let mut marked = half(0, 2000);
    marked.scaling.is_hot = true;
    page.update("look", sample(&marked, later(60_000)).0);
    let mut resting = half(0, 2000);
    resting.scaling.sample = Some(ActivitySample {
        at: START,
        write_seq: resting.write_seq,
    });
    let looked = |ms| sample(&resting, later(ms)).0;
    page.update(
        "look at a half that has been at rest since the last look",
        looked(60_000),
    );
    page.update(
        "look at a half too early to say whether it rests",
        looked(59_999),
    );
    page.update(
        "look at what is whole",
        sample(&whole(2000), later(60_000)).0,
    );
    let mut held = with_leases(half(0, 2000), &[(3, 100, &[("rpm", 1500)])]);
    page.update("look at a lease that lasts", sample(&held, later(99)).0);
    page.update(
        "look at a lease that has expired",
        sample(&held, later(100)).0,
    );
    page.update(
        "look by a clock that is behind",
        sample(&half(0, 2000), later(-10_001)).0,
    );
    held.leases = None;
    page.update("look at an item without leases", sample(&held, later(99)).0);
}

fn shards(page: &mut Page) {
    let both = [rate(), slots()];
    let mut image = bucket(ShardIndex::UNSPLIT, 5001, &both);
    image.lease_bytes = 300;
    image.scaling.min_shards = 2;
    for (title, tk, ms) in [
        ("split", 5001, 0),
        ("split by what has flowed in", 5001, 100),
        ("split of what is just full", 9000, 100),
        ("split of what is full", 9001, 100),
        ("split of a debt", -3000, 100),
        ("split of nothing", 0, 0),
        ("split by a clock that is behind", 5001, -100),
    ] {
        image.limits.get_mut("rpm").unwrap().available = MilliTokens(tk);
        page.update(title, split(&image, 2, id(7), later(ms)));
    }
    image.limits.get_mut("slots").unwrap().available = MilliTokens::from_tokens(1);
    page.update(
        "split of one slot, that no operator asks for any more",
        split(&image, 0, id(7), START),
    );
    page.update(
        "split of a half",
        split(&half(1, 3000), 4, id(7), later(60_000)),
    );
    let escrow = Shard {
        key: bucket_key(1),
        ..half(1, 3000)
    };
    let [make, clear] = finish_writes(&Shard {
        escrow: Some(Box::new(escrow)),
        ..half(0, 3000)
    })
    .expect("it holds one");
    page.update("new half of a split", make);
    page.update("end of a split", clear);
    page.update(
        "keep as many as were asked for",
        update_min_shards(&image, 4, later(100)),
    );
    page.update(
        "keep as many as there are",
        update_min_shards(&image, 2, later(100)),
    );
    page.update(
        "keep as many as are asked for of a half, and review it",
        update_min_shards(&half(1, 3000), 4, later(100)),
    );

    let (mut lower, mut upper) = (half(0, 3000), half(1, 1000));
    upper.write_seq += 40;
    (
        upper.acquires.total,
        upper.limits.get_mut("rpm").unwrap().consumed,
    ) = (7, MilliTotal(3000));
    (upper.scaling.min_shards, lower.scaling.min_shards) = (4, 2);
    lower = with_leases(
        lower,
        &[(3, 100, &[("rpm", 500)]), (4, 900, &[("slots", 1000)])],
    );
    upper = with_leases(upper, &[(6, 200, &[("rpm", 700), ("slots", 1000)])]);
    let made = merged(&lower, &upper, later(200)).unwrap();
    page.write("merge", &merge(&lower, made.clone(), &[&upper]));
    page.write(
        "merge of three",
        &merge(&lower, made.clone(), &[&upper, &half(1, 0)]),
    );
    let is_none =
        |lower: &Shard, upper: &Shard, ms| assert_eq!(merged(lower, upper, later(ms)), None);
    is_none(&lower, &upper, 199);
    is_none(&upper, &lower, 200);
    is_none(
        &lower,
        &bucket(ShardIndex { index: 1, count: 4 }, 0, &both),
        200,
    );
    is_none(
        &bucket(ShardIndex { index: 0, count: 4 }, 0, &both),
        &upper,
        200,
    );
    is_none(
        &lower,
        &bucket(ShardIndex { index: 1, count: 2 }, 0, &[rate()]),
        200,
    );
    is_none(&half(0, 0), &half(1, 0), -1);
    is_none(&whole(0), &whole(0), 200);
    let mut late = half(1, 0);
    late.refilled_at = later(201);
    is_none(&half(0, 0), &late, 200);
    is_none(&late, &half(1, 0), 200);
    assert!(merged(&half(0, 0), &half(1, 0), START).is_some());
    page.write("remove", &remove_covered(&half(1, 0), &whole(0)));
    page.write("still there", &[require_unchanged(&half(1, 0))]);
    let free =
        |limit: &Limit| MilliTokens::from_tokens(if limit.rule().is_concurrent() { 2 } else { 99 });
    page.write(
        "fill",
        &recreate(
            ShardIndex { index: 1, count: 2 },
            &lower,
            free,
            id(7),
            later(5000),
        ),
    );
    page.write(
        "fill a larger hole",
        &recreate(
            ShardIndex { index: 1, count: 2 },
            &Shard {
                shard_count: 4,
                ..lower.clone()
            },
            free,
            id(7),
            later(5000),
        ),
    );
    let mut new = lower;
    new.write_seq = 9_000_000_000;
    page.write(
        "fill after a later write",
        &recreate(
            ShardIndex { index: 1, count: 2 },
            &new,
            free,
            id(7),
            later(5000),
        ),
    );
}

fn copies(page: &mut Page) {
    let usage = |rpm, tpm, acquires| {
        let tokens =
            [("rpm", rpm), ("tpm", tpm)].map(|(name, milli)| (limit_name(name), MilliTotal(milli)));
        Usage {
            tokens: tokens.into(),
            acquires,
        }
    };
    let limits = [("rpm", 1500), ("tpm", -250)].map(|(name, total)| {
        (
            limit_name(name),
            Counter {
                total,
                ..Counter::default()
            },
        )
    });
    let meter = |shard, birth| Meter {
        key: bucket_key(shard),
        write_seq: 12,
        birth_seq: birth,
        hour: Hour(498_648),
        acquires: Counter {
            total: 2,
            ..Counter::default()
        },
        limits: limits.clone().into(),
    };
    let copy = |shard, is_final| UsageCopy::of(&meter(shard, 10), Window::Hourly, is_final, 1);
    page.update("copy", copy(0, false).first());
    page.update(
        "final copy of another shard, to the day",
        UsageCopy::of(&meter(3, 10), Window::Daily, true, 90).first(),
    );
    let seen = |shard, v, is_final, usage| {
        let copied = ShardUsageCopy {
            write_seq: v,
            usage,
            is_final,
        };
        Snapshot {
            shards: [(shard, copied)].into(),
            ..Snapshot::default()
        }
    };
    let mut plan = |title: &str, copy: &UsageCopy, seen: &Snapshot| match copy.after(seen) {
        Some(update) => page.update(title, update),
        None => page.nothing(title),
    };
    plan(
        "copy after one of another shard",
        &copy(0, false),
        &seen(1, 12, true, usage(1, 1, 1)),
    );
    plan(
        "copy after an older one of the same life",
        &copy(0, false),
        &seen(0, 10, true, usage(1, 1, 1)),
    );
    plan(
        "no copy after a newer one",
        &copy(0, true),
        &seen(0, 13, false, usage(1, 1, 1)),
    );
    plan(
        "no copy after the same one",
        &copy(0, true),
        &seen(0, 12, true, usage(1, 1, 1)),
    );
    plan(
        "no interim copy after a final one of the same image",
        &copy(0, false),
        &seen(0, 12, true, usage(1, 1, 1)),
    );
    plan(
        "final copy after an interim one of the same image",
        &copy(0, true),
        &seen(0, 12, false, usage(1, 1, 1)),
    );
    plan(
        "copy after an earlier life that ended",
        &copy(3, false),
        &seen(3, 9, true, usage(7001, -8, 5)),
    );
    let mut other = usage(7001, -8, 5);
    other.tokens.insert(limit_name("slots"), MilliTotal(1000));
    plan(
        "final copy after an earlier life, with other limits, that did not end",
        &copy(0, true),
        &seen(0, 9, false, other),
    );
}

#[test]
fn every_write_is_what_it_was() {
    let mut page = Page::default();
    for chapter in [
        takes,
        bypasses,
        rolls,
        changes,
        settlements,
        functions,
        shards,
        copies,
    ] {
        chapter(&mut page);
    }
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/writes.txt");
    if std::env::var_os("WRITTEN").is_some() {
        std::fs::write(&file, &page.0).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap();
    for (line, (known, made)) in known.lines().zip(page.0.lines()).enumerate() {
        assert_eq!(made, known, "line {} of tests/data/writes.txt", line + 1);
    }
    assert_eq!(
        page.0.len(),
        known.len(),
        "tests/data/writes.txt is of another length"
    );
}

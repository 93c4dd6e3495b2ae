//! Every planned write as text, beside what it was: what is changed, and under which conditions.
//!
//! `WRITTEN=1 cargo test -p weirgate-shared --test written` writes the file anew. What changes in it is to be understood,
//! line by line: a condition that is gone is a guard that is gone.

mod model;

use std::collections::BTreeMap;

use model::given::{START, bucket, foreign, half, id, later, lease, needs, rate, slots, whole, with_leases};
use model::page::Page;
use model::{bucket_key, limit_name};
use weirgate_shared::write::{
    Company, Count, LeaseChange, Piece, Settle, Settled, Take, Update, cut_units, expire, fill, joined, keep, look,
    merge, refill, remove, split,
};
use weirgate_shared::{
    Bucket, Counted, EpochMillis, Limit, LimitState, Look, MilliTokens, Ranges, Shard, SnapshotKey, Terms, Window,
};

struct Ask<'a> {
    limits: &'a [Limit],
    version: Option<i64>,
    needs: &'a [(&'a str, i64)],
    soft: &'a [(&'a str, i64)],
    lease: Option<i64>,
    hot: bool,
    company: Company,
}

impl<'a> Ask<'a> {
    fn of(limits: &'a [Limit], needs: &'a [(&'a str, i64)]) -> Self {
        Self { limits, version: None, needs, soft: &[], lease: None, hot: false, company: Company::None }
    }

    fn on(&self, view: Option<&Bucket>, ms: i64) -> Update {
        let key = view.map_or(bucket_key(0), |bucket| bucket.key.clone());
        self.with(&key, |take| take.on(view, later(ms)))
    }

    fn with(&self, key: &weirgate_shared::BucketKey, plan: impl Fn(&Take<'_>) -> Update) -> Update {
        let unknown = [id(8), id(9)];
        plan(&Take {
            key,
            terms: Terms { limits: self.limits, version: self.version },
            needs: needs(self.needs),
            soft: needs(self.soft),
            takes: 2,
            leases: self.lease.map(|ms| (id(5), lease(later(ms), self.needs))).into_iter().collect(),
            op: id(9),
            hot: self.hot,
            company: self.company,
            unknown: &unknown,
        })
    }
}

fn takes(page: &mut Page) {
    let limits = [rate()];
    let two = Ask::of(&limits, &[("rpm", 2000)]);
    page.update("create", two.with(&bucket_key(0), |take| take.create(START)));
    let held = Ask { lease: Some(500), ..Ask::of(&limits, &[("rpm", 2000)]) };
    page.update("create, with a lease", held.with(&bucket_key(0), |take| take.create(START)));
    page.update("take, without a view", two.on(None, 0));
    page.update("take, without a view of the third shard", two.with(&bucket_key(2), |take| take.on(None, START)));
    page.update("take of what is there", two.on(Some(&whole(2000)), 100));
    page.update("take of what is there, up to the brim", two.on(Some(&whole(9000)), 100));
    page.update("take of what is full by one", two.on(Some(&whole(9001)), 100));
    page.update("take of what has flowed in", two.on(Some(&whole(1999)), 100));
    page.update(
        "take of more than a share, of what is full",
        Ask::of(&limits, &[("rpm", 6000)]).on(Some(&half(0, 5000)), 100),
    );
    page.update("take of all that is full", Ask::of(&limits, &[("rpm", 5000)]).on(Some(&half(0, 5000)), 100));
    page.update("take from a half", two.on(Some(&half(1, 3000)), 100));
    page.update("take from a half of what has flowed in", two.on(Some(&half(1, 1000)), 100));
    page.update("take of nothing", Ask::of(&limits, &[]).on(Some(&whole(2000)), 100));
    page.update("take with a mark", Ask { hot: true, ..Ask::of(&limits, &[("rpm", 1)]) }.on(Some(&whole(2000)), 0));
    let other_company = |company| Ask { company, ..Ask::of(&limits, &[("rpm", 2000)]) };
    page.update("take of what is full, in company", other_company(Company::Others).on(Some(&whole(10_000)), 100));
    page.update(
        "take of all that is full, in company",
        Ask { company: Company::Others, ..Ask::of(&limits, &[("rpm", 9990)]) }.on(Some(&whole(10_000)), 100),
    );
    page.update("take of what was full, in company", other_company(Company::Unseen).on(Some(&whole(10_000)), 100));
    let mut large = whole(2000);
    large.size_bytes = 2500;
    page.update("take from an item of three units", two.on(Some(&large), 0));
    page.update("take from foreign software's item", two.on(Some(&foreign(whole(2000))), 100));
    page.update("take of what has flowed in there", two.on(Some(&foreign(whole(0))), 1000));
    let soft = Ask { soft: &[("rpm", 3000)], ..Ask::of(&limits, &[]) };
    page.update("take that may make a debt, without a view", soft.on(None, 0));
    page.update("take that may make a debt", soft.on(Some(&whole(1000)), 100));
    page.update("take that may make a debt, of what is full", soft.on(Some(&whole(10_000)), 100));
    let both = [rate(), slots()];
    let slot = Ask { lease: Some(500), ..Ask::of(&both, &[("rpm", 1000), ("slots", 1000)]) };
    page.update("take with a lease, without a view", slot.on(None, 0));
    page.update("take with a lease", slot.on(Some(&bucket(Shard::WHOLE, 5000, &both)), 0));
    page.update("take with a lease that is due before", slot.on(Some(&half(0, 4000)), 0));
    let mut bare = bucket(Shard::WHOLE, 5000, &both);
    bare.leases = None;
    page.update("take with the first lease", slot.on(Some(&bare), 0));
    let due = |ms| with_leases(bucket(Shard::WHOLE, 5000, &both), &[(3, ms, &[("slots", 1000)])]);
    page.update("take with a lease after one due at the same time", slot.on(Some(&due(500)), 0));
    page.update("take with a lease before one due later", slot.on(Some(&due(501)), 0));
    let dry = with_leases(
        bucket(Shard::WHOLE, 0, &both),
        &[(3, 100, &[("rpm", 1500), ("slots", 2000)]), (4, 101, &[("rpm", 1000)]), (6, 50, &[])],
    );
    page.update("take of what expired leases held", slot.on(Some(&dry), 100));
    page.update(
        "take of a limit that the bucket lacks",
        Ask::of(&both, &[("slots", 1000)]).on(Some(&whole(5000)), 100),
    );
}

fn changes(page: &mut Page) {
    let raised = [Limit::custom("rpm", 20, 3, 100).unwrap()];
    let lowered = [Limit::custom("rpm", 4, 1, 100).unwrap()];
    let as_slots = [Limit::concurrent("rpm", 6).unwrap()];
    let ask = |limits| Ask::of(limits, &[("rpm", 2000)]);
    page.update("take that raises a limit", ask(&raised).on(Some(&whole(2000)), 100));
    page.update("take that raises a limit of what is full", ask(&raised).on(Some(&whole(9500)), 100));
    page.update("take that lowers a limit", ask(&lowered).on(Some(&whole(9000)), 100));
    page.update("take that makes slots of a rate", ask(&as_slots).on(Some(&whole(9000)), 100));
    let more = [Limit::concurrent("slots", 9).unwrap()];
    let held = with_leases(bucket(Shard::WHOLE, 0, &[slots()]), &[(3, 100, &[("slots", 2000)])]);
    page.update("take that brings slots", Ask::of(&more, &[("slots", 3000)]).on(Some(&held), 100));
    let newer = |version| Ask { version, ..Ask::of(&raised, &[("rpm", 2000)]) };
    let mut known = whole(5000);
    known.version = Some(4);
    page.update("take by a newer configuration", newer(Some(5)).on(Some(&known), 0));
    page.update("take by an older configuration", newer(Some(3)).on(Some(&known), 0));
    page.update("take by limits of the call's own", newer(None).on(Some(&known), 0));
    let soft = Ask { soft: &[("rpm", 3000)], ..Ask::of(&as_slots, &[]) };
    let held = with_leases(whole(1000), &[(3, 100, &[("rpm", 1500)])]);
    page.update("take that raises a limit, of what an expired lease held", ask(&raised).on(Some(&held), 100));
    let more = [rate(), slots()];
    let same = Ask { version: Some(4), ..Ask::of(&more, &[("slots", 1000)]) };
    page.update("take of a limit that the bucket lacks, by the same configuration", same.on(Some(&known), 0));
    page.update("take that may make a debt, and makes slots of a rate", soft.on(Some(&whole(1000)), 100));
}

fn settlements(page: &mut Page) {
    let (key, limit) = (bucket_key(0), limit_name("rpm"));
    let settle = |lease, tk, ceiling: Option<i64>| Settle {
        key: &key,
        op: id(9),
        lease,
        amounts: BTreeMap::from([(
            limit.clone(),
            Settled { tk: MilliTokens(tk), tc: MilliTokens(-tk), ceiling: ceiling.map(MilliTokens) },
        )]),
    };
    let lease = id(5);
    let hold = LeaseChange::Hold(BTreeMap::from([(limit.clone(), (MilliTokens(2000), MilliTokens(500)))]));
    page.update("end a lease", settle(Some((&lease, LeaseChange::End)), 0, None).whole());
    page.update("end a lease of slots", settle(Some((&lease, LeaseChange::End)), 1000, None).whole());
    page.update("renew a lease", settle(Some((&lease, LeaseChange::Renew(later(900)))), 0, None).whole());
    page.update("hold less", settle(Some((&lease, hold)), 1500, Some(10_000)).whole());
    page.update("give back", settle(None, 2000, Some(10_000)).whole());
    page.update("give back what fits", settle(None, 2000, Some(10_000)).cut(&whole(9000)));
    page.update("give back to a lowered limit", settle(None, 2000, Some(20_000)).cut(&whole(9000)));
    page.update("give back to what is above its share", settle(None, 2000, Some(10_000)).cut(&whole(10_500)));
    page.update("give back nothing of a limit", settle(None, 0, Some(10_000)).whole());
    page.update("use more", settle(None, -2000, Some(10_000)).cut(&whole(1000)));
}

fn functions(page: &mut Page) {
    let all = needs(&[("rpm", 3000)]);
    page.update("refill", refill(&whole(5999), &all, later(200)));
    page.update("refill what is nearly full", refill(&whole(8001), &needs(&[("rpm", 9000)]), later(200)));
    page.update("refill a half", refill(&half(1, 1000), &all, later(1000)));
    page.update("no refill of what lasts", refill(&whole(6000), &all, later(200)));
    page.update("no refill soon after the last", refill(&whole(5999), &all, later(199)));
    page.update("no refill without use", refill(&whole(0), &needs(&[("rpm", 0)]), later(200)));
    page.update("no refill of a debt without use", refill(&whole(-1), &needs(&[("rpm", 0)]), later(200)));
    let slow = Bucket::full(bucket_key(0), &[Limit::custom("rpm", 1, 1, 60_000_000).unwrap()], START);
    page.update("no refill before anything has flowed in", refill(&slow, &all, later(200)));
    let mut busy = whole(0);
    busy.wcu = Some(LimitState { tk: MilliTokens(500_000), ..model::wcu() });
    page.update("refill of a busy shard", refill(&busy, &all, later(200)));
    page.update("refill of foreign software's item", refill(&foreign(whole(0)), &all, later(100)));
    let mut full = whole(0);
    full.size_bytes = 1025;
    page.update("cut the write units", cut_units(&full, later(1000)));
    page.update("no cut of the write units yet", cut_units(&full, later(999)));

    let expired = with_leases(
        bucket(Shard::WHOLE, 9500, &[rate(), slots()]),
        &[(3, 100, &[("rpm", 1500), ("slots", 2000)]), (4, 101, &[("rpm", 1000)])],
    );
    page.update("expire", expire(&expired, later(100)).map(|(update, _)| update));
    page.update("nothing to expire", expire(&expired, later(99)).map(|(update, _)| update));
    page.update(
        "nothing to expire of foreign software",
        expire(&foreign(expired.clone()), later(200)).map(|(update, _)| update),
    );
    let ahead = with_leases(whole(5000), &[]);
    page.update("pull back a clock that ran ahead", expire(&ahead, later(-10_001)).map(|(update, _)| update));
    page.update("leave a clock that is ahead a little", expire(&ahead, later(-10_000)).map(|(update, _)| update));
    let mut debt = whole(-500);
    page.update("pull back a clock, in debt", expire(&debt, later(-10_001)).map(|(update, _)| update));
    debt.limits.get_mut("rpm").unwrap().tk = MilliTokens(11_000);
    let over = with_leases(debt, &[(3, 100, &[("rpm", 1500)])]);
    page.update("expire above the share", expire(&over, later(100)).map(|(update, _)| update));
    let mut marked = half(0, 2000);
    marked.scaling.is_hot = true;
    page.update("look", look(&marked, later(60_000)).map(|(update, _)| update));
    let mut resting = half(0, 2000);
    resting.scaling.look = Some(Look { at: START, v: resting.v.unwrap() });
    let looked = |ms| look(&resting, later(ms)).map(|(update, _)| update);
    page.update("look at a half that has been at rest since the last look", looked(60_000));
    page.update("look at a half too early to say whether it rests", looked(59_999));
    page.update("look at what is whole", look(&whole(2000), later(60_000)).map(|(update, _)| update));
    let mut held = with_leases(half(0, 2000), &[(3, 100, &[("rpm", 1500)])]);
    page.update("look at a lease that lasts", look(&held, later(99)).map(|(update, _)| update));
    page.update("look at a lease that has expired", look(&held, later(100)).map(|(update, _)| update));
    page.update("look by a clock that is behind", look(&half(0, 2000), later(-10_001)).map(|(update, _)| update));
    held.leases = None;
    page.update("look at an item without leases", look(&held, later(99)).map(|(update, _)| update));
}

fn shards(page: &mut Page) {
    let both = [rate(), slots()];
    let mut image = bucket(Shard::WHOLE, 5001, &both);
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
        image.limits.get_mut("rpm").unwrap().tk = MilliTokens(tk);
        page.write(title, &split(&image, 2, id(7), later(ms)).unwrap());
    }
    image.limits.get_mut("slots").unwrap().tk = MilliTokens::from_tokens(1);
    page.write("split of one slot, that no operator asks for any more", &split(&image, 0, id(7), START).unwrap());
    page.write("split of a half", &split(&half(1, 3000), 4, id(7), later(60_000)).unwrap());
    assert_eq!(split(&foreign(whole(0)), 0, id(7), START), None);
    page.update("keep as many as were asked for", keep(&image, 4, later(100)));
    page.update("keep as many as there are", keep(&image, 2, later(100)));
    page.update("keep as many as are asked for of a half, and review it", keep(&half(1, 3000), 4, later(100)));

    let (mut lower, mut upper) = (half(0, 3000), half(1, 1000));
    upper.v = upper.v.map(|v| v + 40);
    (upper.scaling.min_shards, lower.scaling.min_shards) = (4, 2);
    lower = with_leases(lower, &[(3, 100, &[("rpm", 500)]), (4, 900, &[("slots", 1000)])]);
    upper = with_leases(upper, &[(6, 200, &[("rpm", 700), ("slots", 1000)])]);
    let made = joined(&lower, &upper, later(200)).unwrap();
    page.write("merge", &merge(&lower, made.clone(), &[&upper]));
    page.write("merge of three", &merge(&lower, made.clone(), &[&upper, &half(1, 0)]));
    let is_none = |lower: &Bucket, upper: &Bucket, ms| assert_eq!(joined(lower, upper, later(ms)), None);
    is_none(&lower, &upper, 199);
    is_none(&upper, &lower, 200);
    is_none(&lower, &bucket(Shard { index: 1, count: 4 }, 0, &both), 200);
    is_none(&bucket(Shard { index: 0, count: 4 }, 0, &both), &upper, 200);
    is_none(&lower, &bucket(Shard { index: 1, count: 2 }, 0, &[rate()]), 200);
    is_none(&half(0, 0), &half(1, 0), -1);
    is_none(&whole(0), &whole(0), 200);
    let mut late = half(1, 0);
    late.rf = later(201);
    is_none(&half(0, 0), &late, 200);
    is_none(&late, &half(1, 0), 200);
    assert!(joined(&half(0, 0), &half(1, 0), START).is_some());
    page.write("remove", &remove(&half(1, 0), &whole(0)));
    let free = |limit: &Limit| MilliTokens::from_tokens(if limit.rule().is_concurrent() { 2 } else { 99 });
    page.write("fill", &fill(Shard { index: 1, count: 2 }, &lower, free, id(7), later(5000)));
    page.write(
        "fill a larger hole",
        &fill(Shard { index: 1, count: 2 }, &Bucket { shard_count: 4, ..lower.clone() }, free, id(7), later(5000)),
    );
    let mut new = lower;
    new.v = Some(9_000_000_000);
    page.write("fill after a later write", &fill(Shard { index: 1, count: 2 }, &new, free, id(7), later(5000)));
}

fn counts(page: &mut Page) {
    let bucket = bucket_key(1);
    let window = Window::Hourly;
    let limits = [limit_name("rpm"), limit_name("tpm")];
    let piece = |low: i64, rpm: i64| Piece {
        span: Some((low, low + 1)),
        tokens: vec![MilliTokens(rpm), MilliTokens(-rpm)],
        events: 2,
    };
    let pieces = [piece(10, 1500), piece(11, 250), piece(12, 1)];
    let key = SnapshotKey {
        namespace: bucket.namespace,
        entity: bucket.entity,
        resource: bucket.resource,
        window,
        start: EpochMillis(0),
    };
    let count = |pieces| Count { key: key.clone(), shard: 1, limits: &limits, pieces, ttl_seconds: 77 };
    page.update("count", count(&pieces).next());
    let counted = |through, gaps: &str| Counted { through, gaps: gaps.parse::<Ranges>().unwrap() };
    for (title, through, gaps) in [
        ("count for the first time after all", None, ""),
        ("count what follows", Some(10), "4-5"),
        ("count what follows a gap", Some(8), "4-5"),
        ("count the last", Some(12), ""),
        ("count what was left out", Some(20), "4-5 9-12"),
        ("count what was left out, and what follows", Some(12), "11-12"),
        ("nothing left to count", Some(13), "4-5"),
    ] {
        match count(&pieces).rest(&counted(through, gaps)) {
            Some(update) => page.update(title, update),
            None => page.nothing(title),
        }
    }
    let loose = [Piece { span: None, ..piece(0, 5) }];
    page.update("count without a span", count(&loose).next());
    assert!(count(&pieces).is_exact() && !count(&loose).is_exact());
    assert_eq!(count(&loose).rest(&counted(Some(1), "")), None);
}

#[test]
fn every_write_is_what_it_was() {
    let mut page = Page::default();
    for chapter in [takes, changes, settlements, functions, shards, counts] {
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
    assert_eq!(page.0.len(), known.len(), "tests/data/writes.txt is of another length");
}

//! Keys, attributes and texts: what is written is read back, and what is wrong is named, never
//! guessed at.

use std::collections::BTreeMap;

use crate::keys::{entity, namespace, resource};
use crate::model::{Held, Item, config};
use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;
use weirgate_shared::write::{AttributeUpdate, UsageCopy};
use weirgate_shared::{
    ActivitySample, Bases, BucketKey, Counter, EditId, EpochMillis, EpochSeconds, Hour, Iso8601,
    Lease, Limit, LimitName, LimitState, LimitsVersion, MilliTokens, MilliTotal, Millis, Pause,
    RefillRule, Scaling, Shard, ShardIndex, ShardUsageCopy, Snapshot, SnapshotKey, Window, WriteId,
    due_shards, parse_iso8601, read_key, read_shard, write_lease, write_leases, write_shard,
};

/// Also names that end like an attribute of a limit does.
fn limit_name() -> impl Strategy<Value = LimitName> {
    let any =
        "[A-Za-z][A-Za-z0-9_.-]{0,63}".prop_filter_map("taken", |name| LimitName::new(name).ok());
    prop_oneof![3 => any, 1 => "[a-c]_(tk|tc|cp|ra|rp|bh|bd)".prop_map(|name| LimitName::new(name).unwrap())]
}

fn write_id() -> impl Strategy<Value = WriteId> {
    prop_oneof![
        any::<u64>().prop_map(WriteId::from_bits),
        "[a-z0-9]{1,32}".prop_map(|id| WriteId::new(id).unwrap()),
    ]
}

fn bucket_key() -> impl Strategy<Value = BucketKey> {
    let shard = prop_oneof![Just(0), 0..64u32, any::<u32>()];
    (namespace(), entity(), resource(), shard).prop_map(|(namespace, entity, resource, shard)| {
        BucketKey { namespace, entity, resource, shard }
    })
}

/// The years 0 to 9999.
fn instant() -> impl Strategy<Value = EpochMillis> {
    (-62_167_219_200_000..=253_402_300_799_999i64).prop_map(EpochMillis)
}

fn window() -> impl Strategy<Value = Window> {
    prop::sample::select(Window::ALL.as_slice())
}

fn amount() -> impl Strategy<Value = MilliTokens> {
    prop_oneof![-2000..=2000i64, any::<i64>()].prop_map(MilliTokens)
}

/// More than 64 bits hold; DynamoDB has 38 digits.
fn count() -> impl Strategy<Value = i128> {
    const MOST: i128 = 10_i128.pow(30);
    prop_oneof![-2000..=2000i128, -MOST..=MOST]
}

fn bases() -> impl Strategy<Value = Bases> {
    (count(), count()).prop_map(|(hour, day)| Bases { hour, day })
}

fn limit_state() -> impl Strategy<Value = LimitState> {
    let refill = prop_oneof![(0..=i64::MAX, 1..=i64::MAX), (Just(0), i64::MIN..0),];
    let rule = (0..=i64::MAX, refill).prop_map(|(cp, (ra, refill_period_ms))| RefillRule {
        capacity: MilliTokens(cp),
        refill_amount: MilliTokens(ra),
        refill_period_ms,
    });
    (amount(), count(), bases(), rule, instant()).prop_map(|(tk, tc, bases, rule, end)| {
        LimitState {
            available: tk,
            consumed: MilliTotal(tc),
            bases,
            rule,
            window_end: if rule.kind().has_window() { end } else { EpochMillis::default() },
        }
    })
}

fn lease() -> impl Strategy<Value = Lease> {
    (
        instant(),
        btree_map(limit_name(), amount(), 0..4),
        btree_map(limit_name(), instant(), 0..4),
        "\\PC{0,20}",
    )
        .prop_map(|(expires, tokens, windows, owner)| Lease {
            expires_at: expires,
            tokens,
            windows,
            owner,
        })
}

prop_compose! {
    /// Any bucket an item can be.
    fn bucket()(
        key in bucket_key(),
        (shard_count, refilled_at) in (1..=u32::MAX, instant()),
        (write_seq, birth_seq) in (0..=i64::MAX).prop_flat_map(|v| (Just(v), 0..=v)),
        (hour, acquires, bases) in (0..70_380_768i64, count(), bases()),
        (last_write_id, config_version, edit, pause) in (option::of(write_id()), option::of((any::<i64>(), 0..i64::MAX).prop_map(|(number, at)| LimitsVersion { number, boundary: EpochMillis(at) })), option::of(any::<i64>().prop_map(EditId)), option::of((any::<i64>(), 0..=i64::MAX).prop_map(|(until, lasts)| Pause { until: EpochMillis(until), lasts: Millis(lasts) }))),
        limits in btree_map(limit_name(), limit_state(), 0..5),
        leases in option::of(btree_map(write_id(), lease(), 0..4)),
        (due_at, limits_changed_at, ttl) in (option::of(instant()), option::of(instant()), option::of(any::<i64>())),
        (hot_at, sample, min_shards, lease_bytes_at_split) in
            (option::of(instant()), option::of((instant(), any::<i64>())), 0..=u32::MAX, 0..=i64::MAX),
    ) -> Shard {
        let sample = sample.map(|(at, write_seq)| ActivitySample { at, write_seq });
        let scaling = Scaling { hot_at, sample, min_shards, lease_bytes_at_split };
        let (hour, acquires) = (Hour(hour), Counter { total: acquires, bases });
        Shard {
            key, shard_count, refilled_at, write_seq, birth_seq, hour, acquires, limits, departed: BTreeMap::new(), config_version, limits_changed_at,
            ttl: ttl.map(EpochSeconds), leases, due_at, last_write_id, edit, pause, scaling,
            escrow: None, size_bytes: 0, lease_bytes: 0,
        }
    }
}

/// The names of attributes that a bucket's item or a snapshot has.
const ATTRIBUTES: &str = "PK SK GSI2PK GSI2SK GSI3PK GSI3SK rf v birth uh wcu shard_count h due \
    due_shard op takes th td hot look_at look_v min_shards split_bytes escrow cv rt ttl pz pl b_rpm_tk \
    b_rpm_tc final q0 q63 c0 u0 unfinished";

/// Attributes that must be integers, in a bucket with one limit.
const NUMBERS: &str = "rt ttl rf v birth uh takes th td due shard_count b_rpm_tk b_rpm_tc \
    b_rpm_cp b_rpm_ra b_rpm_rp b_rpm_bh b_rpm_bd";

fn whole_item() -> Item {
    let limit = Limit::per_minute("rpm", 1000).unwrap();
    let bucket =
        crate::model::bucket(ShardIndex::UNSPLIT, &[limit], EpochMillis(1_700_000_000_000));
    Item::of_bucket(&Shard { due_at: Some(EpochMillis(1)), ..bucket })
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn a_bucket_key_is_read_back_from_its_item_key(key in bucket_key()) {
        prop_assert_eq!(BucketKey::parse(&key.item_key().pk), Some(key.clone()));
        prop_assert!(due_shards().any(|shard| shard == key.due_shard()), "the reconciler would never look there");
    }

    #[test]
    fn windows_follow_each_other_without_a_gap(window in window(), at in instant()) {
        let start = window.start(at);
        let end = window.end(start);
        prop_assert!(start <= at && at < end);
        prop_assert_eq!(window.start(start), start);
        prop_assert_eq!(window.start(EpochMillis(end.0 - 1)), start);
        prop_assert_eq!(window.start(end), end);
        prop_assert_eq!(window.to_string().parse(), Ok(window));
    }

    #[test]
    fn an_instant_is_read_back_to_the_second(at in instant()) {
        let whole_second = EpochMillis(at.0 - at.0.rem_euclid(1000));
        prop_assert_eq!(parse_iso8601(&Iso8601(at).to_string()), Some(whole_second));
    }

    #[test]
    fn millitokens_are_read_back_from_the_tokens_they_read_as(amount in amount()) {
        let text = amount.to_string();
        let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
        let digits = format!("{whole}{part:0<3}");
        prop_assert_eq!(digits.parse::<i128>(), Ok(i128::from(amount.0)));
        prop_assert!(!part.ends_with('0') && part.len() <= 3, "{}", text);
    }

    #[test]
    fn a_bucket_is_read_back_from_its_item(bucket in bucket()) {
        let read = Item::of_bucket(&bucket).bucket();
        prop_assert!(read.size_bytes > 0 && read.write_units() >= 1);
        prop_assert_eq!(Shard { size_bytes: 0, lease_bytes: 0, ..read }, bucket);
    }

    #[test]
    fn what_an_item_has_counted_is_read_as_its_bucket_says(bucket in bucket()) {
        let live = Item::of_bucket(&bucket).live();
        prop_assert_eq!(live, bucket.meter());
    }

    #[test]
    fn a_copy_is_read_back_from_its_snapshot(bucket in bucket(), window in window(), is_final in any::<bool>()) {
        let copy = UsageCopy::of(&bucket.meter(), window, is_final, 1);
        let mut item = Item::default();
        prop_assert!(item.apply(&copy.first()));
        let copied = ShardUsageCopy { write_seq: bucket.write_seq, usage: bucket.meter().usage(window), is_final };
        let expected = Snapshot { shards: [(bucket.key.shard, copied)].into(), ..Snapshot::default() };
        prop_assert_eq!(item.snapshot(), expected);
        prop_assert_eq!(read_key(item.attributes()).as_ref().and_then(SnapshotKey::parse), Some(copy.key));
    }

    /// Of every attribute of a bucket's item and of a snapshot: a limit may be named as it, or as a
    /// part or an extension of it.
    #[test]
    fn a_limit_may_have_the_name_of_any_attribute(
        name in prop::sample::select(ATTRIBUTES.split(' ').collect::<Vec<_>>()),
        (before, after) in ("[a-z]?[_.-]?", "[_.-]?[a-z0-9]?"),
        other in limit_name(), state in limit_state(), next in limit_state(),
    ) {
        let named = LimitName::new(format!("{before}{name}{after}"));
        prop_assume!(named.is_ok());
        let limits = BTreeMap::from([(named.unwrap(), state), (other, next)]);
        let bucket = |birth: i64| Shard {
            limits: limits.clone(),
            write_seq: birth + 1,
            birth_seq: birth,
            ..Shard::full(BucketKey::parse("d/BUCKET#e#r#0").unwrap(), &[], EpochMillis(1))
        };
        prop_assert_eq!(Item::of_bucket(&bucket(1)).bucket().limits, limits.clone());
        // A life with a final copy, one without, and the present one.
        let mut item = Item::default();
        let mut expected = Snapshot::default();
        for (birth, is_final) in [(10, true), (20, false), (30, true)] {
            let copy = UsageCopy::of(&bucket(birth).meter(), Window::Daily, is_final, 1);
            let update = copy.after(&item.snapshot()).unwrap_or_else(|| copy.first());
            prop_assert!(item.apply(&update));
            let copied = ShardUsageCopy { write_seq: copy.v, usage: copy.usage.clone(), is_final };
            match birth {
                10 => {
                    expected.carry.add(&copy.usage);
                    expected.carried.insert(0, [copy.v].into());
                }
                20 => drop(expected.unfinished.insert((0, copy.v), copy.usage)),
                _ => drop(expected.shards.insert(0, copied)),
            }
        }
        prop_assert_eq!(item.snapshot(), expected);
    }

    #[test]
    fn a_bucket_is_written_with_the_keys_of_its_indexes(bucket in bucket()) {
        let item = Item::of_bucket(&bucket);
        prop_assert_eq!(read_key(item.attributes()), Some(bucket.key.item_key()));
        let text = |name: &str| item.0.get(name).cloned();
        let ((gsi2pk, gsi2sk), (gsi3pk, gsi3sk)) = (bucket.key.by_resource(), bucket.key.by_entity());
        for (name, value) in [("GSI2PK", gsi2pk), ("GSI2SK", gsi2sk), ("GSI3PK", gsi3pk), ("GSI3SK", gsi3sk)] {
            prop_assert_eq!(text(name), Some(Held::Text(value)));
        }
        prop_assert_eq!(text("due_shard"), bucket.due_at.map(|_| Held::Text(bucket.key.due_shard())));
        // Keys are the item's own; writing them as changes is refused by DynamoDB.
        let is_key = |change: &AttributeUpdate| matches!(change, AttributeUpdate::Set(path, _) if path.0 == ["PK"] || path.0 == ["SK"]);
        prop_assert!(!write_shard(&bucket).iter().any(is_key));
    }

    #[test]
    fn a_lease_is_written_alone_as_it_is_among_others(leases in btree_map(write_id(), lease(), 1..4)) {
        let Held::Map(all) = Held::from(&write_leases(&leases)) else { panic!("no map") };
        for (id, lease) in &leases {
            prop_assert_eq!(all.get(id.as_str()), Some(&Held::from(&write_lease(lease))));
        }
    }

    #[test]
    fn a_number_that_is_no_whole_number_is_named(
        name in prop::sample::select(NUMBERS.split(' ').collect::<Vec<_>>()),
        wrong in prop_oneof![
            "-?[0-9]{1,9}\\.[0-9]{1,3}", "9[0-9]{39}", "[a-z]{0,3}", "[0-9]E[+][0-9]",
        ],
        as_text in any::<bool>(),
    ) {
        let mut item = whole_item();
        let held = if as_text { Held::Text("12".to_owned()) } else { Held::Number(0, wrong) };
        item.0.insert(name.to_owned(), held);
        let error = read_shard(item.attributes()).unwrap_err();
        prop_assert_eq!(&error.attribute, name);
        prop_assert!(error.takes.contains("whole number"), "{}", error);
    }
}

#[test]
fn what_every_bucket_has_is_named_when_it_is_missing() {
    for name in NUMBERS.split(' ').chain(["PK"]) {
        let mut item = whole_item();
        item.0.remove(name);
        let read = read_shard(item.attributes());
        match name {
            "due" => assert_eq!(read.unwrap().due_at, None),
            "rt" => assert_eq!(read.unwrap().limits_changed_at, None),
            "ttl" => assert_eq!(read.unwrap().ttl, None),
            _ => {
                let error = read.unwrap_err();
                assert_eq!((error.attribute.as_str(), error.value.as_str()), (name, "missing"));
            }
        }
    }
}

#[test]
fn a_lease_without_an_expiry_is_an_error() {
    let mut item = whole_item();
    let lease = BTreeMap::from([("t".to_owned(), Held::Map(BTreeMap::new()))]);
    item.0.insert("h".to_owned(), Held::Map(BTreeMap::from([("a1".to_owned(), Held::Map(lease))])));
    assert_eq!(read_shard(item.attributes()).unwrap_err().attribute, "h.e");
}

/// Such a key parses, so a record of it may not end the function that reads it.
#[test]
fn the_last_shard_number_is_no_overflow() {
    let mut item = whole_item();
    item.0.insert("PK".to_owned(), Held::Text("default/BUCKET#e-1#gpt-4#4294967295".to_owned()));
    let bucket = item.bucket();
    assert!(
        bucket.share(&bucket.limits[&crate::model::limit_name("rpm")])
            <= MilliTokens::from_tokens(1)
    );
}

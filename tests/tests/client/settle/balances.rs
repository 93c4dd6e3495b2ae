//! An operator's changes of balances, and limits that are applied at once.

use std::collections::BTreeMap;

use weirgate::{
    AuditChange, AuditSubject, ConfigLevel, Error, Limit, LimitName, MilliTokens, OperationOutcome,
};

use weirgate_tests::fleet::shards::{self, drain, holds, split};
use weirgate_tests::fleet::{
    Fleet, denied, granted, millis, pass, rpm, secs, settle, slots, tokens, tpm,
};
use weirgate_tests::sharded::run;
use weirgate_tests::stored::{configure, entity, resource};

fn limits() -> [Limit; 3] {
    [rpm(60), tpm(6_000), slots(4)]
}

fn amounts(of: &[(&str, i64)]) -> BTreeMap<LimitName, MilliTokens> {
    let amount = |(name, amount): &(&str, i64)| (LimitName::new(*name).unwrap(), tokens(*amount));
    of.iter().map(amount).collect()
}

#[tokio::test(start_paused = true)]
async fn balances_are_reset_set_drained_and_topped_up_and_usage_stays() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let _ = granted(&limiter, &limits(), &[("rpm", 60), ("tpm", 5_000)]).await;
    let _ = denied(&other, &limits(), &[("rpm", 1)]).await;
    pass(secs(1)).await;
    let edit = || limiter.admin().edit_balances("e-1", "gpt-4");
    let report = edit().reset("rpm").top_up("tpm", 1_500).send().await.unwrap();
    assert_eq!(
        (report.outcome, report.shards, &report.before, &report.after),
        (
            OperationOutcome::Applied,
            1,
            &amounts(&[("rpm", 1), ("tpm", 1_100)]),
            &amounts(&[("rpm", 60), ("tpm", 2_600)])
        )
    );
    assert_eq!(fleet.tk_tc("rpm").await, (60_000, 60_000));
    assert_eq!(fleet.tk_tc("tpm").await, (2_600_000, 5_000_000));
    let events = limiter.admin().audit(&AuditSubject::Entity(entity("e-1")), None).await.unwrap();
    assert_eq!(
        events.items[0].change,
        AuditChange::Balances {
            entity: entity("e-1"),
            resource: resource("gpt-4"),
            before: report.before,
            after: report.after,
        }
    );
    // Where it was denied, that is remembered for a tenth of its retry-after, at least a second.
    pass(secs(1)).await;
    let _ = granted(&other, &limits(), &[("rpm", 30)]).await;
    let report = edit().drain_all().send().await.unwrap();
    assert_eq!(report.after, amounts(&[("rpm", 0), ("tpm", 0)]));
    assert_eq!((fleet.tk_tc("rpm").await.0, fleet.tk_tc("tpm").await.0), (0, 0));
    // It refills as before.
    pass(secs(2)).await;
    assert_eq!(fleet.tk_tc("rpm").await.0, 2_000);
    // A debt ends.
    let mut grant = granted(&limiter, &limits(), &[("rpm", 1)]).await;
    let _ = grant.adjust("tpm", 9_000).await.unwrap();
    let _ = edit().set("tpm", 100).send().await.unwrap();
    assert_eq!(fleet.tk_tc("tpm").await.0, 100_000);
    let _ = edit().reset_all().send().await.unwrap();
    assert_eq!(fleet.bucket().await.limits["slots"].available, tokens(4));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_changed_is_refused_with_the_remedy() {
    let (fleet, [limiter]) = Fleet::of().await;
    let edit = || limiter.admin().edit_balances("e-1", "gpt-4");
    // A bucket without an item is full.
    let full = edit().reset_all().send().await.unwrap();
    assert_eq!((full.outcome, full.shards), (OperationOutcome::Unchanged, 0));
    let error = edit().drain("rpm").send().await.unwrap_err().to_string();
    assert!(
        error.contains("bucket of e-1 on gpt-4 has no item") && error.contains("or stop it"),
        "{error}"
    );
    let _ = granted(&limiter, &limits(), &[("rpm", 20)]).await;
    let before = fleet.dynamo.items();
    let refused = [
        (edit(), "nothing to change: reset"),
        (
            edit().reset("cpm"),
            "limit \"cpm\" is not among those of the bucket: rpm, slots, tpm; name one of them",
        ),
        (edit().set("slots", 1), "limit \"slots\" has slots"),
        (edit().reset("rpm").drain("rpm"), "limit \"rpm\" is changed twice"),
        (
            edit().set("rpm", 61),
            "limit \"rpm\" has a capacity of 60 tokens, 61 were to be set: set at most 60",
        ),
        (
            edit().top_up("rpm", 21),
            "has room for 20 more tokens below its capacity of 60, 21 were to be added",
        ),
        (edit().top_up("rpm", -1), "amount must be 0 to 10^12 tokens, got -1"),
        (edit().drain("r m"), "limit \"r m\" is not a valid name"),
    ];
    for (edit, expected) in refused {
        let error = edit.send().await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(text) if text.contains(expected)), "{error}");
    }
    assert_eq!(fleet.dynamo.items(), before, "nothing is changed");
}

/// The transaction may have been applied, so it is repeated with the same token and key.
#[tokio::test(start_paused = true)]
async fn i7_a_top_up_counts_once_whatever_becomes_of_requests_and_responses() {
    for faults in shards::troubles() {
        let (fleet, [limiter]) = Fleet::of().await;
        let _ = granted(&limiter, &limits(), &[("tpm", 6_000)]).await;
        let before = fleet.bucket().await;
        let mut next = faults.clone().into_iter();
        fleet.dynamo.fail_transactions(move |_| next.next());
        let edit = limiter.admin().edit_balances("e-1", "gpt-4").top_up("tpm", 100);
        let report = edit.send().await.unwrap();
        assert_eq!(report.outcome, OperationOutcome::Applied, "{faults:?}");
        let after = fleet.bucket().await;
        let flowed = before.balance(&before.limits["tpm"], after.refilled_at);
        assert_eq!(after.limits["tpm"].available, flowed + tokens(100), "{faults:?}");
    }
}

/// Both read that it is unused, and no other condition of the two changes excludes the other.
#[tokio::test(start_paused = true)]
async fn i7_of_two_changes_at_once_with_one_key_one_is_made() {
    let fleet = Fleet::slow(millis(5)).await;
    let limiter = fleet.limiter().await;
    // Otherwise both would write the version of the schema.
    let level = ConfigLevel::System;
    configure(&limiter, &level, limits()).await;
    for entity in ["e-1", "e-2"] {
        let take = limiter.acquire(entity, "gpt-4").limits(&limits()).take("tpm", 6_000);
        assert!(take.send().await.unwrap().is_granted());
    }
    let edit = |entity| {
        let edit = limiter.admin().edit_balances(entity, "gpt-4").reset("tpm");
        edit.idempotency_key("k").send()
    };
    let (one, other) = tokio::join!(edit("e-1"), edit("e-2"));
    let refused = [&one, &other].into_iter().filter_map(|done| done.as_ref().err());
    let refused: Vec<_> = refused.map(ToString::to_string).collect();
    assert!(
        matches!(&refused[..], [text] if text.contains("\"k\" was used for another change")),
        "{one:?} {other:?}"
    );
}

/// A request that the network held back, after another edit, or after the aggregator credited the refill
/// that it would credit too.
#[tokio::test(start_paused = true)]
async fn i7_an_edit_that_arrives_late_changes_nothing() {
    use weirgate_shared::write::{BalanceChange, change_balances, refill};
    use weirgate_store::{ReturnValues, WriteOutcome};
    for is_credited in [false, true] {
        let (fleet, [limiter]) = Fleet::of().await;
        let _ = granted(&limiter, &limits(), &[("tpm", 6_000)]).await;
        pass(secs(10)).await;
        let (tpm, change) = (LimitName::new("tpm").unwrap(), BalanceChange::Raise(tokens(100)));
        let (used, add) = ([(tpm.clone(), tokens(6_000))].into(), [(tpm, change)].into());
        let (seen, now) = (fleet.bucket().await, fleet.now());
        let late = change_balances(
            &seen,
            weirgate_shared::EditId(1),
            &add,
            weirgate_shared::Calendar::default(),
            now,
        )
        .unwrap();
        let table = fleet.dynamo.table().await;
        if is_credited {
            let credit = refill(&seen, &used, now).expect("ten seconds are due");
            let outcome = table.update(&credit, ReturnValues::None).await.unwrap();
            assert!(matches!(outcome, WriteOutcome::Applied(_)), "{outcome:?}");
        } else {
            let admin = limiter.admin();
            let drain = admin.edit_balances("e-1", "gpt-4").drain("tpm");
            let _ = drain.send().await.unwrap();
        }
        let before = fleet.bucket().await;
        let outcome = table.update(&late, ReturnValues::None).await.unwrap();
        let is_refused = matches!(outcome, WriteOutcome::ConditionFailed(_));
        assert!(is_refused, "credited {is_credited}: {outcome:?}");
        assert_eq!(fleet.bucket().await, before);
    }
}

/// The write of an operator takes a while; takes in between move no `rf`.
#[tokio::test(start_paused = true)]
async fn i1_what_is_taken_between_the_read_and_the_write_of_an_edit_stays_taken() {
    use weirgate_shared::write::{BalanceChange, change_balances};
    use weirgate_store::{ReturnValues, WriteOutcome};
    let changes = [0, 100, 3_000, 5_000, 6_000].map(|amount| BalanceChange::SetTo(tokens(amount)));
    for change in changes.into_iter().chain([BalanceChange::Raise(tokens(100))]) {
        for first in [500, 2_000] {
            let (fleet, [limiter]) = Fleet::of().await;
            let _ = granted(&limiter, &limits(), &[("tpm", first)]).await;
            pass(millis(50)).await;
            let (seen, now) = (fleet.bucket().await, fleet.now());
            let changes = [(LimitName::new("tpm").unwrap(), change)].into();
            let edit = change_balances(
                &seen,
                weirgate_shared::EditId(1),
                &changes,
                weirgate_shared::Calendar::default(),
                now,
            )
            .unwrap();
            let _ = granted(&limiter, &limits(), &[("tpm", 3_000)]).await;
            let before = fleet.bucket().await;
            assert_eq!(before.refilled_at, seen.refilled_at);
            let table = fleet.dynamo.table().await;
            let outcome = table.update(&edit, ReturnValues::None).await.unwrap();
            assert!(matches!(outcome, WriteOutcome::Applied(_)), "{outcome:?}");
            let balance = |shard: &weirgate_shared::Shard| shard.balance(&shard.limits["tpm"], now);
            let set = match change {
                BalanceChange::SetTo(amount) => amount,
                BalanceChange::Raise(more) => balance(&seen) + more,
            };
            let after = fleet.bucket().await;
            assert_eq!(balance(&after), set - tokens(3_000), "{change:?} {first}");
        }
    }
}

/// A call that is dropped at any await, and made again with its key.
#[tokio::test(start_paused = true)]
async fn i7_a_change_that_is_abandoned_anywhere_is_made_once_by_the_next_call() {
    for steps in 1.. {
        let fleet = Fleet::slow(secs(1)).await;
        // Each request takes a second, and a change several of them.
        let limiter = fleet.limiter_with(|builder| builder.timeout(secs(60))).await;
        let _ = granted(&limiter, &limits(), &[("tpm", 6_000)]).await;
        let before = fleet.bucket().await;
        let edit = || {
            limiter.admin().edit_balances("e-1", "gpt-4").top_up("tpm", 100).idempotency_key("k")
        };
        let within = secs(1) * steps - std::time::Duration::from_millis(500);
        let first = tokio::time::timeout(within, edit().send()).await;
        let _ = edit().send().await.unwrap();
        let after = fleet.bucket().await;
        let flowed = before.balance(&before.limits["tpm"], after.refilled_at);
        assert_eq!(after.limits["tpm"].available, flowed + tokens(100), "{steps}");
        if first.is_ok() {
            assert!(steps > 2, "{steps}");
            return;
        }
    }
}

/// What is left of a change is not made in another life of its bucket.
#[tokio::test(start_paused = true)]
async fn i7_a_change_that_was_abandoned_for_a_day_is_ended_and_not_made() {
    for steps in 1.. {
        let fleet = Fleet::slow(secs(1)).await;
        let limiter = fleet.limiter_with(|builder| builder.timeout(secs(60))).await;
        let _ = granted(&limiter, &limits(), &[("tpm", 6_000)]).await;
        let admin = limiter.admin();
        let within = secs(1) * steps - std::time::Duration::from_millis(500);
        let drain = admin.edit_balances("e-1", "gpt-4").drain("tpm").send();
        let first = tokio::time::timeout(within, drain).await;
        settle().await;
        // As DynamoDB does by its `ttl`.
        let key = fleet.bucket().await.key.item_key();
        fleet.dynamo.delete(&key.pk, &key.sk);
        pass(secs(90_000)).await;
        let limiter = fleet.limiter_with(|builder| builder.timeout(secs(60))).await;
        let _ = granted(&limiter, &limits(), &[("tpm", 1_000)]).await;
        let admin = limiter.admin();
        let planned = admin.edit_balances("e-1", "gpt-4").top_up("tpm", 1).dry_run().send().await;
        assert!(
            planned.unwrap().before[&LimitName::new("tpm").unwrap()] >= tokens(5_000),
            "{steps}"
        );
        let _ = admin.pause("e-1", "gpt-4", secs(1)).send().await.unwrap();
        assert!(fleet.bucket().await.limits["tpm"].available >= tokens(5_000), "{steps}");
        if first.is_ok() {
            assert!(steps > 2, "{steps}");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_shards_are_changed_together_and_room_is_used_where_it_is() {
    let (fleet, [limiter]) = Fleet::of().await;
    split(&limiter, &limits()[1..2], 16).await;
    let edit = || limiter.admin().edit_balances("e-1", "gpt-4");
    let report = edit().drain("tpm").send().await.unwrap();
    assert_eq!((report.shards, holds(&fleet, "tpm").await), (16, tokens(0)));
    for shard in 1..16 {
        drain(&fleet, shard, "tpm", tokens(375));
    }
    // Only shard 0 has room, and a little.
    let report = edit().top_up("tpm", 375).send().await.unwrap();
    assert_eq!(report.after, amounts(&[("tpm", 6_000)]));
    assert_eq!(holds(&fleet, "tpm").await, tokens(6_000));
    let _ = edit().set("tpm", 1_001).send().await.unwrap();
    assert_eq!(holds(&fleet, "tpm").await, tokens(1_001));
}

/// DynamoDB deletes a bucket that is full by its `ttl`; a drained one is full later.
#[tokio::test(start_paused = true)]
async fn i1_a_lowered_bucket_is_not_deleted_before_it_is_full() {
    let (fleet, [limiter]) = Fleet::of().await;
    let yearly = [Limit::custom("rpy", 1_000, 1_000, 366 * 86_400_000).unwrap()];
    let _ = granted(&limiter, &yearly, &[("rpy", 1)]).await;
    assert!(fleet.bucket().await.ttl.is_some());
    let _ = limiter.admin().edit_balances("e-1", "gpt-4").reset("rpy").send().await.unwrap();
    assert!(fleet.bucket().await.ttl.is_some());
    let _ = limiter.admin().edit_balances("e-1", "gpt-4").drain("rpy").send().await.unwrap();
    assert_eq!(fleet.bucket().await.ttl, None);
}

#[tokio::test(start_paused = true)]
async fn configured_limits_are_applied_to_all_shards_at_once() {
    let (fleet, [limiter]) = Fleet::of().await;
    let level = ConfigLevel::Resource(resource("gpt-4"));
    let apply = || limiter.admin().apply_limits("e-1", "gpt-4");
    let error = apply().send().await.unwrap_err();
    assert!(matches!(error, Error::NotConfigured { .. }), "{error}");
    let tpm = |rate| tpm(rate);
    configure(&limiter, &level, [tpm(6_000)]).await;
    pass(secs(2)).await;
    // Its first acquire will bring them.
    assert_eq!(apply().send().await.unwrap().shards, 0);
    split(&limiter, &[tpm(6_000)], 4).await;
    configure(&limiter, &level, [tpm(600)]).await;
    pass(secs(2)).await;
    let planned = apply().dry_run().send().await.unwrap();
    assert_eq!((planned.outcome, planned.shards), (OperationOutcome::DryRun, 4));
    let report = apply().send().await.unwrap();
    assert_eq!(
        (report.outcome, report.shards, &report.before, &report.after),
        (OperationOutcome::Applied, 4, &vec![tpm(6_000)], &vec![tpm(600)])
    );
    for shard in shards::shards(&fleet).await {
        assert_eq!(shard.limits["tpm"].rule.capacity, tokens(600));
    }
    assert_eq!(holds(&fleet, "tpm").await, tokens(600), "cut to the new capacity");
    assert_eq!(apply().send().await.unwrap().outcome, OperationOutcome::Unchanged);
}

/// A read of many items is no snapshot: it shows a part of a bucket that is split meanwhile.
#[tokio::test(start_paused = true)]
async fn i1_a_read_that_misses_a_shard_is_repeated() {
    let (fleet, [limiter]) = Fleet::of().await;
    split(&limiter, &limits()[1..2], 2).await;
    let upper = shards::key(1).item_key();
    let item = fleet.dynamo.item(&upper.pk, &upper.sk);
    for missed in [1, 100] {
        let (dynamo, item, key) = (fleet.dynamo.clone(), item.clone(), upper.clone());
        let mut reads = 0;
        fleet.dynamo.fail_reads(move |_, request| {
            if request.to_string().contains("BUCKET#e-1") {
                reads += 1;
                if reads == 1 {
                    dynamo.delete(&key.pk, &key.sk);
                } else if reads == missed + 1 {
                    dynamo.put(&item);
                }
            }
            None
        });
        let edit = limiter.admin().edit_balances("e-1", "gpt-4").drain("tpm");
        let report = edit.send().await;
        fleet.dynamo.fail_reads(|_, _| None);
        if missed == 1 {
            assert_eq!(report.unwrap().shards, 2);
            assert_eq!(holds(&fleet, "tpm").await, tokens(0));
            let _ = limiter.admin().edit_balances("e-1", "gpt-4").reset("tpm").send().await;
        } else {
            let error = report.unwrap_err().to_string();
            assert!(
                error.contains(
                    "bucket default/BUCKET#e-1#gpt-4#0 lacks a shard: wait for the reconciler"
                ),
                "{error}"
            );
            assert_eq!(fleet.bucket().await.limits["tpm"].available, tokens(3_000));
        }
    }
}

/// The refusal promises minutes, also of a bucket that is reviewed once a day.
#[tokio::test(start_paused = true)]
async fn i2_a_bucket_at_rest_that_lacks_a_shard_is_repaired_within_minutes_of_the_refusal() {
    let (fleet, [limiter]) = Fleet::of().await;
    let table = fleet.dynamo.table().await;
    split(&limiter, &limits()[1..2], 4).await;
    for _ in 0..4 {
        pass(secs(61)).await;
        let _ = run(&table, fleet.now()).await;
    }
    let key = shards::key(2).item_key();
    fleet.dynamo.delete(&key.pk, &key.sk);
    let drain = async || limiter.admin().edit_balances("e-1", "gpt-4").drain("tpm").send().await;
    let dry = limiter.admin().edit_balances("e-1", "gpt-4").drain("tpm").dry_run().send().await;
    assert!(dry.unwrap_err().to_string().contains("lacks a shard: try the change itself"));
    pass(secs(61)).await;
    assert_eq!(run(&table, fleet.now()).await.shards_repaired, 0, "a dry run writes nothing");
    assert!(drain().await.unwrap_err().to_string().contains("lacks a shard"));
    pass(secs(61)).await;
    assert_eq!(run(&table, fleet.now()).await.shards_repaired, 1);
    assert_eq!(drain().await.unwrap().shards, 4);
}

/// Shards get new limits one by one, with the next take from each.
#[tokio::test(start_paused = true)]
async fn i1_limits_of_only_some_shards_are_refused_until_they_are_applied() {
    let (fleet, [limiter]) = Fleet::of().await;
    let level = ConfigLevel::Resource(resource("gpt-4"));
    let all = &limits()[..2];
    for first_has_more in [true, false] {
        let fewer = &all[..1];
        configure(&limiter, &level, fewer).await;
        split(&limiter, fewer, 2).await;
        let key = shards::key(u32::from(!first_has_more)).item_key();
        let mut item = fleet.dynamo.item(&key.pk, &key.sk);
        for (field, value) in [
            ("tk", "100"),
            ("tc", "0"),
            ("cp", "6000000"),
            ("ra", "6000000"),
            ("rp", "60000"),
            ("bh", "0"),
            ("bd", "0"),
        ] {
            item[format!("b_tpm_{field}")] = serde_json::json!({"N": value});
        }
        fleet.dynamo.put(&item);
        let edit = || limiter.admin().edit_balances("e-1", "gpt-4");
        for edit in [edit().drain_all(), edit().drain("tpm")] {
            let error = edit.send().await.unwrap_err().to_string();
            assert!(
                error.contains("limit \"tpm\" is not the same in all shards of the bucket yet: apply the limits to all shards first"),
                "{error}"
            );
        }
        configure(&limiter, &level, all).await;
        let report = limiter.admin().apply_limits("e-1", "gpt-4").send().await.unwrap();
        assert_eq!(report.outcome, OperationOutcome::Applied);
        let report = edit().drain_all().send().await.unwrap();
        assert_eq!(report.after, amounts(&[("rpm", 0), ("tpm", 0)]));
        for shard in 0..2 {
            let key = shards::key(shard).item_key();
            fleet.dynamo.delete(&key.pk, &key.sk);
        }
        pass(secs(120)).await;
    }
}

/// What counts is what is configured when the call is made, also if this process has just read it.
#[tokio::test(start_paused = true)]
async fn limits_are_applied_as_configured_now_or_the_reason_is_told() {
    let (_fleet, [limiter, other]) = Fleet::of().await;
    let level = ConfigLevel::Resource(resource("gpt-4"));
    let tpm = |rate| tpm(rate);
    configure(&limiter, &level, [tpm(600)]).await;
    let taken = limiter.acquire("e-1", "gpt-4").take("tpm", 1).send().await;
    assert!(taken.unwrap().is_granted());
    configure(&other, &level, [tpm(60)]).await;
    let apply = || limiter.admin().apply_limits("e-1", "gpt-4").idempotency_key("k");
    let report = apply().send().await.unwrap();
    assert_eq!((report.outcome, report.after), (OperationOutcome::Applied, vec![tpm(60)]));
    // A repeat needs no configuration.
    assert!(limiter.admin().delete_config(&level).await.unwrap());
    let report = apply().send().await.unwrap();
    assert!(matches!(report.outcome, OperationOutcome::AppliedBefore(_)), "{report:?}");
    // Limits that a caller brings stay for 30 s.
    configure(&limiter, &level, [tpm(600)]).await;
    let given = [tpm(6)];
    let acquire = other.acquire("e-1", "gpt-4").limits(&given).limits_version(20_261_123);
    assert!(acquire.take("tpm", 1).send().await.unwrap().is_granted());
    let apply = || limiter.admin().apply_limits("e-1", "gpt-4").send();
    let error = apply().await.unwrap_err().to_string();
    let text = "has limit \"tpm\" by a caller that brought them less than 30 s ago";
    assert!(error.contains(text), "{error}");
    pass(secs(30)).await;
    let report = apply().await.unwrap();
    assert_eq!(report.outcome, OperationOutcome::Applied);
}

/// The denial that many processes share is deleted with the change.
#[tokio::test(start_paused = true)]
async fn a_reset_bucket_of_many_shards_denies_nothing_by_its_stamp() {
    let (_fleet, [limiter, other]) = Fleet::of().await;
    let daily = [Limit::custom("rpd", 1_600, 1_600, 86_400_000).unwrap()];
    split(&limiter, &daily, 16).await;
    let _ = limiter.admin().edit_balances("e-1", "gpt-4").drain("rpd").send().await.unwrap();
    let _ = denied(&limiter, &daily, &[("rpd", 10)]).await;
    pass(secs(1)).await;
    let _ = limiter.admin().edit_balances("e-1", "gpt-4").reset("rpd").send().await.unwrap();
    let _ = granted(&limiter, &daily, &[("rpd", 10)]).await;
    let _ = granted(&other, &daily, &[("rpd", 10)]).await;
}

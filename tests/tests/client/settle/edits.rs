//! A change of all shards of a bucket: each shard gets its part once, whatever happens in between.

use serde_json::json;
use weirgate::{ConfigLevel, Limit, LimitKind, OperationOutcome, RateLimiter};
use weirgate_shared::{BalanceStep, BucketEdit, EditChange, EditId, LimitName, LimitsVersion};
use weirgate_store::ReturnValues;
use weirgate_testkit::{Fault, batches};

use weirgate_tests::aggregator;
use weirgate_tests::fleet::shards::{self, drain, holds, split};
use weirgate_tests::fleet::{Fleet, foreign_takes, granted, pass, secs, tokens};
use weirgate_tests::sharded;
use weirgate_tests::stored::{configure, resource};

/// Nothing flows in, so sums are exact.
fn limits() -> [Limit; 1] {
    [Limit::custom("tpm", 1_000, 1, 366 * 86_400_000).unwrap()]
}

/// What happens between a change that failed, and its repetition.
const BETWEEN: [&str; 5] =
    ["nothing", "splits", "splits of hot shards", "merges", "another change"];

async fn happen(fleet: &Fleet, limiter: &RateLimiter, what: &str) {
    match what {
        "splits" => split(limiter, &limits(), 8).await,
        "splits of hot shards" => {
            let _ = fleet.dynamo.stream();
            for mut item in fleet.dynamo.items() {
                if item["SK"]["S"] == "#STATE" {
                    item["hot"] = json!({"N": fleet.now().0.to_string()});
                    sharded::add(&mut item, "v", 1);
                    fleet.dynamo.put(&item);
                }
            }
            let records = batches::stream(&fleet.dynamo, fleet.now());
            let (table, event) = (fleet.dynamo.table().await, batches::event(&records));
            let handled = aggregator::deliver_text(&table, &event, fleet.now()).await;
            assert_eq!(handled.summary.splits, 4);
        }
        // Shards that differ by the change stay apart until it is finished.
        "merges" => drop(limiter.admin().set_shards("e-1", "gpt-4", &limits(), 1).await.unwrap()),
        "another change" => {
            let edit = limiter.admin().edit_balances("e-1", "gpt-4").top_up("tpm", 0);
            let _ = edit.send().await.unwrap();
        }
        _ => {}
    }
}

/// The shards whose writes fail are all subsets of four.
#[tokio::test(start_paused = true)]
async fn i7_a_change_that_reached_some_shards_is_finished_by_its_key() {
    for failing in 0..16_u32 {
        for between in BETWEEN {
            let (fleet, [limiter, other]) = Fleet::of().await;
            split(&limiter, &limits(), 4).await;
            for (shard, left) in [0, 100, 200, 248].into_iter().enumerate() {
                drain(&fleet, u32::try_from(shard).unwrap(), "tpm", tokens(left));
            }
            let edit = async |limiter: &RateLimiter| {
                let edit = limiter.admin().edit_balances("e-1", "gpt-4").top_up("tpm", 400);
                edit.idempotency_key("k").send().await
            };
            fleet.dynamo.fail_when(move |request| {
                let pk = request["Key"]["PK"]["S"].as_str().unwrap_or_default();
                let is_shard = request["Key"]["SK"]["S"] == "#STATE";
                let shard: Option<u32> = pk.rsplit('#').next().and_then(|last| last.parse().ok());
                let fails = is_shard && shard.is_some_and(|shard| failing & (1 << shard) > 0);
                fails.then_some(Fault::Forbidden)
            });
            let first = edit(&limiter).await;
            assert_eq!(first.is_ok(), failing == 0, "{failing:b}: {first:?}");
            fleet.dynamo.fail_when(|_| None);
            pass(secs(1)).await;
            happen(&fleet, &other, between).await;
            let case = format!("{failing:b} failed, then {between}");
            for _ in 0..2 {
                let again = edit(&other).await.unwrap();
                let is_known = matches!(again.outcome, OperationOutcome::AppliedBefore(_));
                assert!(is_known, "{case}: {again:?}");
                assert_eq!(holds(&fleet, "tpm").await, tokens(948), "{case}");
            }
            // Nothing of it keeps the shards apart.
            pass(secs(1)).await;
            split(&other, &limits(), 1).await;
            assert_eq!(holds(&fleet, "tpm").await, tokens(948), "{case}");
        }
    }
}

/// A transaction is cancelled by any write beside it. So none has a shard in it.
#[tokio::test(start_paused = true)]
async fn a_bucket_in_use_is_changed_without_a_stop() {
    for count in [1, 4] {
        for change in 0..4 {
            let (fleet, [limiter]) = Fleet::of().await;
            let level = ConfigLevel::Resource(resource("gpt-4"));
            configure(&limiter, &level, limits()).await;
            split(&limiter, &limits(), count).await;
            let _ = granted(&limiter, &limits(), &[("tpm", 100)]).await;
            pass(secs(60)).await;
            fleet.dynamo.fail_transactions(|request| {
                request.to_string().contains("#STATE").then_some(Fault::Conflict)
            });
            // From the second write on, another process takes a token before each.
            fleet.trouble(vec![None; 40], Some("tpm"));
            let _ = granted(&limiter, &limits(), &[("tpm", 1)]).await;
            let before = holds(&fleet, "tpm").await;
            let edit = || limiter.admin().edit_balances("e-1", "gpt-4");
            let outcome = match change {
                0 => edit().top_up("tpm", 50).send().await.unwrap().outcome,
                1 => edit().set("tpm", 200).send().await.unwrap().outcome,
                2 => edit().reset_all().send().await.unwrap().outcome,
                _ => {
                    let next = [Limit::custom("tpm", 2_000, 1, 366 * 86_400_000).unwrap()];
                    configure(&limiter, &level, next).await;
                    limiter.admin().apply_limits("e-1", "gpt-4").send().await.unwrap().outcome
                }
            };
            assert_eq!(outcome, OperationOutcome::Applied);
            let taken = tokens(foreign_takes(&fleet));
            assert!(taken > tokens(0));
            let after = holds(&fleet, "tpm").await;
            match change {
                0 => assert_eq!(after, before + tokens(50) - taken),
                1 => assert!(after <= tokens(200) && after >= tokens(200) - taken),
                2 => assert!(after <= tokens(1_000) && after >= tokens(1_000) - taken),
                _ => assert!(
                    shards::shards(&fleet)
                        .await
                        .iter()
                        .all(|shard| { shard.limits["tpm"].rule.capacity == tokens(2_000) })
                ),
            }
        }
    }
}

/// The process that began a change may have ended, and its bucket may have been deleted and created
/// again since, with limits that the change does not fit.
#[tokio::test(start_paused = true)]
async fn a_change_that_was_left_holds_up_no_later_one_of_a_bucket_created_since() {
    let slots = Limit::concurrent("tpm", 8).unwrap();
    let many =
        |letter: char| (0..20).map(move |at| Limit::per_day(&format!("{letter}{at}"), 9).unwrap());
    let lefts = [
        EditChange::Limits {
            limits: vec![slots.clone()],
            version: Some(LimitsVersion::of_release(7)),
            is_own: true,
        },
        EditChange::Limits {
            limits: many('a').collect(),
            version: Some(LimitsVersion::of_release(7)),
            is_own: true,
        },
        EditChange::Balances([(LimitName::new("gone").unwrap(), BalanceStep::Fill)].into()),
        EditChange::Balances(
            [(LimitName::new("tpm").unwrap(), BalanceStep::Set(tokens(5)))].into(),
        ),
    ];
    for (left, count) in lefts.iter().flat_map(|left| [(left, 1), (left, 2)]) {
        let (fleet, at) = (Fleet::new().await, format!("{left:?}, {count} shards"));
        let (limiter, table) = (fleet.limiter().await, fleet.dynamo.table().await);
        split(&limiter, &limits(), count).await;
        for letter in ['b', 'c'] {
            let more: Vec<_> = many(letter).take(19).collect();
            let _ = granted(&limiter, &more, &[(&format!("{letter}0"), 1)]).await;
        }
        let edit = BucketEdit { id: EditId::new(fleet.now(), 1, None), change: left.clone() };
        let begin = edit.begin(&shards::key(0));
        table.update(&begin, ReturnValues::None).await.unwrap();
        let next = limiter.admin().edit_balances("e-1", "gpt-4").drain("tpm").send().await;
        assert_eq!(next.unwrap().outcome, OperationOutcome::Applied, "{at}");
        assert_eq!(holds(&fleet, "tpm").await, tokens(0), "{at}");
        for shard in shards::shards(&fleet).await {
            assert_eq!(shard.limits["tpm"].rule.kind(), LimitKind::Rate, "{at}");
        }
    }
}

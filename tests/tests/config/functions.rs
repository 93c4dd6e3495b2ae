//! Functions of a release before quotas skip buckets that have one, so no quota is written before the
//! deployed functions are known to know them.

use std::time::Duration;

use serde_json::json;
use weirgate::{
    Config, ConfigChange, ConfigLevel, Decision, Error, Limit, OnUnavailable, RateLimiter,
};
use weirgate_testkit::{Fault, Lines, Process};

use crate::fixtures::fleet::{Fleet, pass, secs};
use crate::fixtures::stored::{File, configure, on, take_of};

const PK: &str = "FUNCTIONS";
const SK: &str = "#VERSION";

/// A fleet on a table whose functions never ran.
async fn unmarked() -> Fleet {
    let fleet = Fleet::new().await;
    fleet.dynamo.delete(PK, SK);
    fleet
}

/// A process of the deployed reconciler.
async fn reconciler(fleet: &Fleet) -> Process {
    let table = fleet.dynamo.table().await;
    Process::start(weirgate_reconciler::function, table, &Lines::default())
}

fn quotas() -> [Limit; 2] {
    ["tpm=quota:10/month", "tpm=session:10/5h"].map(|text| text.parse().unwrap())
}

/// Takes by a limit that the call brings.
async fn bring(limiter: &RateLimiter, limit: &Limit) -> Result<Decision, Error> {
    let limits = std::slice::from_ref(limit);
    let ask = limiter.acquire("e-1", "gpt-4").limits(limits);
    ask.take("tpm", 1).send().await
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.expect_err("older functions may be deployed");
    assert!(matches!(error, Error::FunctionsTooOld { .. }), "{error}");
    assert!(!error.is_transient());
    for part in ["namespace default", "item FUNCTIONS", "deploy", "one run of the reconciler"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_quota_is_refused_on_every_surface_until_the_functions_ran() {
    let fleet = unmarked().await;
    let text = "weirgate: 1\nresources:\n  gpt-4:\n    limits:\n      tpm: quota:10/month\n";
    let file = File::new(text);
    let by_file = fleet.builder().await.limits_file(file.limits());
    let by_file = by_file.build().await.unwrap();
    let limiter = fleet.limiter().await;
    let admin = limiter.admin();
    let level = on("e-1", "gpt-4");
    let before = fleet.dynamo.items();
    for quota in quotas() {
        refused(bring(&limiter, &quota).await);
        let limits = [quota.clone()];
        refused(admin.set_shards("e-1", "gpt-4", &limits, 2).await);
        let config = Config::of([quota]);
        refused(admin.set_config(&level, &config).await);
        refused(admin.replace_config(&level, 0, Some(&config)).await);
        let change = ConfigChange::Replace(config.clone());
        refused(admin.change_config(&level, &change, None).await);
        refused(admin.check_configs(&[(level.clone(), Some(config))]).await);
    }
    refused(take_of(&by_file, ["e-1", "gpt-4"], "tpm", 1).await);
    refused(by_file.admin().apply_limits("e-1", "gpt-4").send().await);
    assert_eq!(fleet.dynamo.items(), before, "nothing is written");

    reconciler(&fleet).await.invoke("{}", "run", None).await.unwrap();
    pass(secs(5)).await;
    for quota in quotas() {
        assert!(bring(&limiter, &quota).await.unwrap().is_granted());
        configure(&limiter, &level, [quota]).await;
    }
    assert!(take_of(&by_file, ["e-2", "gpt-4"], "tpm", 1).await.unwrap().is_granted());
}

#[tokio::test(start_paused = true)]
async fn rates_slots_and_schedules_do_not_ask_for_the_functions() {
    let fleet = unmarked().await;
    fleet.dynamo.fail_reads(|_, request| {
        assert!(!request.to_string().contains(PK), "{request}");
        None
    });
    let limiter = fleet.limiter().await;
    for limit in ["tpm=600/minute", "tpm=600/minute,schedule=0 8 * * * for 1h scale 2/1"] {
        configure(&limiter, &ConfigLevel::System, [limit.parse().unwrap()]).await;
        assert!(take_of(&limiter, ["e-1", "gpt-4"], "tpm", 1).await.unwrap().is_granted());
    }
    let slots = Limit::concurrent("slots", 2).unwrap();
    configure(&limiter, &on("e-2", "gpt-4"), [slots]).await;
}

#[tokio::test(start_paused = true)]
async fn the_functions_are_asked_for_once_and_while_they_are_too_old_once_in_5_s() {
    let fleet = unmarked().await;
    let limiter = fleet.limiter().await;
    let [quota, _] = quotas();
    let reads = || {
        let operations = fleet.dynamo.take_operations();
        operations.get("BatchGetItem").copied().unwrap_or_default()
    };
    // Of the switches of the namespace.
    let _ = limiter
        .acquire("e-0", "gpt-4")
        .limits(&[Limit::per_day("tpm", 9).unwrap()])
        .take("tpm", 1)
        .send()
        .await;
    let _ = reads();
    for expected in [1, 0, 0] {
        let all = (0..20).map(|_| bring(&limiter, &quota));
        futures_util::future::join_all(all).await.into_iter().for_each(refused);
        assert_eq!(reads(), expected);
        pass(secs(2)).await;
    }
    // 6 s after the read.
    refused(bring(&limiter, &quota).await);
    assert_eq!(reads(), 1);
    reconciler(&fleet).await.invoke("{}", "run", None).await.unwrap();
    pass(secs(5)).await;
    let _ = reads();
    assert!(bring(&limiter, &quota).await.unwrap().is_granted());
    assert_eq!(reads(), 2, "of the mark and the bucket");
    assert!(bring(&limiter, &quota).await.unwrap().is_granted());
    assert_eq!(reads(), 0);
    fleet.dynamo.delete(PK, SK);
    pass(Duration::from_secs(86_400)).await;
    assert!(bring(&limiter, &quota).await.unwrap().is_granted(), "it is known");
}

/// One that knows something else: the mark is added, and what it says stays.
#[tokio::test(start_paused = true)]
async fn two_reconcilers_that_mark_at_once_add_the_mark_to_what_the_item_says() {
    let fleet = unmarked().await;
    fleet.dynamo.put(&json!({"PK": {"S": PK}, "SK": {"S": SK}, "other": {"N": "1"}}));
    let limiter = fleet.limiter().await;
    let [quota, _] = quotas();
    refused(bring(&limiter, &quota).await);
    let (one, other) = (reconciler(&fleet).await, reconciler(&fleet).await);
    let both = tokio::join!(one.invoke("{}", "one", None), other.invoke("{}", "other", None));
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    let marked = fleet.dynamo.item(PK, SK);
    assert_eq!((&marked["quotas"]["BOOL"], &marked["other"]["N"]), (&json!(true), &json!("1")));
    // A process marks once.
    let _ = fleet.writes();
    one.invoke("{}", "again", None).await.unwrap();
    assert_eq!(fleet.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_fails_is_written_by_the_next_run() {
    let fleet = unmarked().await;
    let process = reconciler(&fleet).await;
    fleet.fail(&[Fault::Forbidden]);
    process.invoke("{}", "one", None).await.unwrap();
    assert!(fleet.dynamo.item(PK, SK).is_null());
    process.invoke("{}", "two", None).await.unwrap();
    assert_eq!(fleet.dynamo.item(PK, SK)["quotas"]["BOOL"], true);
}

/// The policies of an older stack do not allow the read.
#[tokio::test(start_paused = true)]
async fn a_mark_that_may_not_be_read_counts_as_missing() {
    let (fleet, [limiter]) = Fleet::of().await;
    fleet
        .dynamo
        .fail_reads(|_, request| request.to_string().contains(PK).then_some(Fault::Forbidden));
    refused(bring(&limiter, &quotas()[0]).await);
}

/// A process that starts in an outage decides as `on_unavailable` says, also by a quota.
#[tokio::test(start_paused = true)]
async fn in_an_outage_a_first_quota_is_decided_locally() {
    let fleet = Fleet::new().await;
    let local = OnUnavailable::Local { percent: 100 };
    let limiter = fleet.limiter_with(|builder| builder.on_unavailable(local)).await;
    fleet.fail_reads(Fault::LoseRequest);
    fleet.fail_writes(Fault::LoseRequest);
    let mut granted = 0;
    for _ in 0..12 {
        granted += i32::from(bring(&limiter, &quotas()[0]).await.unwrap().is_granted());
    }
    assert_eq!(granted, 10);
}

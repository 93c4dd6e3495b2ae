//! Plans that do not exist: what acquires of their entities say.

use std::sync::{Arc, Mutex};
use weirgate_tests::stored::delete_config;

use weirgate::{ConfigLevel, Decision, Error, OnUnavailable, PlanName, PlanUse, RateLimiter};
use weirgate_testkit::Fault;

use crate::fixtures::fleet::{Fleet, millis, pass, secs};
use crate::fixtures::stored::{
    File, child, configure, of_entity, of_plan, of_plan_on, plan, rpm, set_plan, take_of,
};

const COUNT: &str = "#ENTITIES";

/// The plan that an answer names as missing.
fn missing(decision: &Decision) -> Option<&PlanName> {
    match decision {
        Decision::Granted(grant) => grant.missing_plan(),
        Decision::Denied(denied) => denied.missing_plan.as_ref(),
        Decision::NeverFits(never) => never.missing_plan.as_ref(),
        Decision::Disabled(_) => panic!("nothing is disabled"),
    }
}

async fn told(limiter: &RateLimiter, of: [&str; 2], amount: i64) -> Option<String> {
    let decision = take_of(limiter, of, "rpm", amount).await.unwrap();
    missing(&decision).map(ToString::to_string)
}

/// The sort keys of each read from now on.
fn reads(fleet: &Fleet) -> Arc<Mutex<Vec<Vec<String>>>> {
    let reads = Arc::<Mutex<Vec<Vec<String>>>>::default();
    let seen = Arc::clone(&reads);
    fleet.dynamo.fail_reads(move |operation, request| {
        if operation == "BatchGetItem" {
            let keys = request["RequestItems"]["weirgate"]["Keys"].as_array();
            let sk = |key: &serde_json::Value| key["SK"]["S"].as_str().unwrap().to_owned();
            let read = keys.unwrap().iter().map(sk).collect();
            seen.lock().unwrap().push(read);
        }
        None
    });
    reads
}

/// Leaves the entities with a plan of which no level has a configuration.
async fn orphaned(admin: &RateLimiter, ids: &[&str]) {
    configure(admin, &ConfigLevel::System, [rpm(60)]).await;
    configure(admin, &of_plan("pro"), [rpm(600)]).await;
    for id in ids {
        set_plan(admin, id, "pro").await.unwrap();
    }
    let deleted = admin.admin().delete_plan(&plan("pro"), true).await;
    assert_eq!(deleted.unwrap(), 1);
}

/// Each kind of answer, from the table and from the cache.
#[tokio::test(start_paused = true)]
async fn every_answer_names_a_plan_that_does_not_exist() {
    let (fleet, [admin, limiter]) = Fleet::of().await;
    configure(&admin, &of_plan("pro"), [rpm(600)]).await;
    set_plan(&admin, "e-1", "pro").await.unwrap();
    assert_eq!(told(&admin, ["e-1", "gpt-4"], 1).await, None);
    orphaned(&admin, &["e-1", "e-2"]).await;
    let pro = Some("pro".to_owned());
    // At once in the process that has deleted the plan.
    assert_eq!(told(&admin, ["e-1", "gpt-4"], 1).await, pro);
    assert_eq!(told(&limiter, ["e-1", "gpt-4"], 50).await, pro);
    assert_eq!(told(&limiter, ["lone", "gpt-4"], 1).await, None);
    assert_eq!(told(&limiter, ["e-1", "gpt-4"], 61).await, pro, "never");
    for _ in 0..2 {
        assert_eq!(told(&limiter, ["e-1", "gpt-4"], 55).await, pro, "denied");
    }
    let _ = fleet.dynamo.take_operations();
    assert_eq!(told(&limiter, ["e-1", "gpt-4"], 55).await, pro, "cached");
    assert_eq!(fleet.dynamo.take_operations().len(), 0, "it is cached");
    let both = ["lone", "e-2"].map(|id| limiter.acquire(id, "gpt-4").take("rpm", 1));
    let both = limiter.acquire_all(both).send().await.unwrap();
    let both = both.granted().expect("both have tokens");
    let named: Vec<_> = both.iter().map(|grant| grant.missing_plan()).collect();
    assert_eq!(named, [None, Some(&plan("pro"))]);
    // Limits in the call are in the place of the plan's.
    let brought = limiter.acquire("e-1", "other").limits(&[rpm(5)]);
    let brought = brought.take("rpm", 1).send().await.unwrap();
    assert_eq!(missing(&brought), None);
    // So are an entity's own, but the plan is missing on other resources.
    configure(&admin, &of_entity("e-2"), [rpm(9)]).await;
    assert_eq!(told(&admin, ["e-2", "gpt-4"], 1).await, pro);
}

#[tokio::test(start_paused = true)]
async fn an_entity_without_limits_is_told_that_its_plan_does_not_exist() {
    let (_fleet, [admin]) = Fleet::of().await;
    orphaned(&admin, &["e-1"]).await;
    let _ = admin.admin().delete_config(&ConfigLevel::System).await;
    let error = take_of(&admin, ["e-1", "gpt-4"], "rpm", 1).await;
    let error = error.unwrap_err();
    assert!(
        matches!(&error, Error::NotConfigured { missing_plan, .. } if *missing_plan == Some(plan("pro")))
    );
    assert_eq!(
        error.to_string(),
        "no limits are configured for entity e-1, whose plan pro does not exist, on resource gpt-4: run `weirgate \
         limits set --plan pro rpm=600/minute`, or give limits with the call"
    );
    let error = take_of(&admin, ["lone", "gpt-4"], "rpm", 1).await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "no limits are configured for entity lone on resource gpt-4: run `weirgate limits set --resource gpt-4 \
         rpm=600/minute`, or give limits with the call"
    );
}

#[tokio::test(start_paused = true)]
async fn a_plan_with_limits_on_another_resource_exists() {
    let (fleet, [admin, limiter]) = Fleet::of().await;
    orphaned(&admin, &["e-1", "team"]).await;
    let set = admin.admin().set_entity(&child("user", "team")).await;
    set.unwrap();
    let pro = Some("pro".to_owned());
    assert_eq!(told(&limiter, ["e-1", "gpt-4"], 1).await, pro);
    assert_eq!(told(&limiter, ["user", "gpt-4"], 1).await, pro, "a parent's");
    configure(&admin, &of_plan_on("pro", "other"), [rpm(7)]).await;
    assert_eq!(told(&admin, ["e-1", "gpt-4"], 1).await, None);
    assert_eq!(told(&fleet.limiter().await, ["user", "gpt-4"], 1).await, None);
    // Others know it after the TTL, and forget it after the TTL.
    pass(secs(61)).await;
    assert_eq!(told(&limiter, ["e-1", "gpt-4"], 1).await, None);
    let deleted = admin.admin().delete_plan(&plan("pro"), true).await;
    assert_eq!(deleted.unwrap(), 1);
    pass(secs(61)).await;
    assert_eq!(told(&limiter, ["e-1", "gpt-4"], 1).await, pro);
}

#[tokio::test(start_paused = true)]
async fn whether_a_plan_exists_is_read_once_a_plan_and_time_and_only_without_limits_of_it() {
    let (fleet, [admin, limiter]) = Fleet::of().await;
    orphaned(&admin, &["a", "b", "c"]).await;
    configure(&admin, &of_plan("free"), [rpm(9)]).await;
    set_plan(&admin, "d", "free").await.unwrap();
    let reads = reads(&fleet);
    let counts = async |id: &'static str| {
        let _ = take_of(&limiter, [id, "gpt-4"], "rpm", 1).await.unwrap();
        let reads = std::mem::take(&mut *reads.lock().unwrap());
        let is_count = |read: &&Vec<String>| read.iter().any(|sk| sk == COUNT);
        let counts: Vec<_> = reads.iter().filter(is_count).cloned().collect();
        assert!(counts.iter().all(|read| read.len() == 1), "{counts:?}");
        (counts.len(), reads.len())
    };
    assert_eq!(counts("lone").await, (0, 1));
    assert_eq!(counts("d").await, (0, 2));
    assert_eq!(counts("a").await, (1, 3));
    for id in ["b", "c"] {
        assert_eq!(counts(id).await, (0, 1), "{id}");
    }
    for _ in 0..50 {
        assert_eq!(counts("a").await, (0, 0));
        pass(secs(1)).await;
    }
    pass(secs(60)).await;
    assert_eq!(counts("a").await, (1, 2));
}

/// Nothing but the answer whether a plan exists depends on the read of it.
#[tokio::test(start_paused = true)]
async fn a_read_of_a_plan_that_fails_tells_nothing_and_fails_no_acquire() {
    for fault in [
        Fault::LoseRequest,
        Fault::ServerError,
        Fault::Forbidden,
        Fault::Throttle { key_range: true },
    ] {
        let (fleet, [admin]) = Fleet::of().await;
        let entities: Vec<_> = (1..=10).map(|at| format!("e-{at}")).collect();
        let entities: Vec<_> = entities.iter().map(String::as_str).collect();
        orphaned(&admin, &entities).await;
        let limiter = fleet.limiter().await;
        let count = Arc::new(Mutex::new(0));
        let seen = Arc::clone(&count);
        fleet.dynamo.fail_reads(move |_, request| {
            let is_count = request.to_string().contains(COUNT);
            *seen.lock().unwrap() += usize::from(is_count);
            is_count.then_some(fault)
        });
        let began = tokio::time::Instant::now();
        for entity in entities.iter().chain(&entities) {
            let told = told(&limiter, [entity, "gpt-4"], 1).await;
            assert_eq!(told, None, "{fault:?}");
        }
        assert!(began.elapsed() < secs(3), "{fault:?}");
        let read = std::mem::take(&mut *count.lock().unwrap());
        // One read, and what a request that fails is repeated for.
        assert!((1..=5).contains(&read), "{fault:?}: {read} reads");
        fleet.fail_reads(None);
        pass(secs(61)).await;
        let pro = Some("pro".to_owned());
        assert_eq!(told(&limiter, ["e-1", "gpt-4"], 1).await, pro, "{fault:?}");
        fleet
            .dynamo
            .fail_reads(move |_, request| request.to_string().contains(COUNT).then_some(fault));
        pass(secs(61)).await;
        assert_eq!(told(&limiter, ["e-1", "gpt-4"], 1).await, pro, "as before, {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_names_the_plan_as_before() {
    let (fleet, [admin]) = Fleet::of().await;
    orphaned(&admin, &["e-1"]).await;
    let limiter =
        fleet.limiter_with(|builder| builder.on_unavailable(OnUnavailable::Local { percent: 50 }));
    let limiter = limiter.await;
    let pro = Some("pro".to_owned());
    assert_eq!(told(&limiter, ["e-1", "gpt-4"], 1).await, pro);
    fleet.fail_reads(Fault::LoseRequest);
    fleet.fail_writes(Fault::LoseRequest);
    for after in [0, 61, 61] {
        pass(secs(after)).await;
        let decision = take_of(&limiter, ["e-1", "gpt-4"], "rpm", 20).await.unwrap();
        assert!(decision.is_granted());
        assert_eq!(missing(&decision), Some(&plan("pro")), "after {after} s");
        let decision = take_of(&limiter, ["e-1", "gpt-4"], "rpm", 30).await.unwrap();
        assert!(matches!(&decision, Decision::Denied(denied) if denied.degraded.is_some()));
        assert_eq!(missing(&decision), Some(&plan("pro")), "after {after} s");
    }
}

/// The file of a process has the plan, or gives an entity a plan that the table has, or neither.
#[tokio::test(start_paused = true)]
async fn plans_of_limits_files_exist_by_the_file_or_by_the_table() {
    let (fleet, [admin]) = Fleet::of().await;
    orphaned(&admin, &["e-1"]).await;
    configure(&admin, &of_plan_on("big", "other"), [rpm(7)]).await;
    let text = "weirgate: 1\nplans:\n  pro:\n    resources:\n      other:\n        limits:\n          rpm: 300/minute\n\
                entities:\n  e-2:\n    plan: big\n  e-3:\n    plan: gone\n  e-4:\n    plan: pro\n";
    let file = File::new(text);
    let limiter = fleet.builder().await.limits_file(file.limits());
    let limiter = limiter.build().await.unwrap();
    for (id, expected) in [("e-1", None), ("e-2", None), ("e-3", Some("gone")), ("e-4", None)] {
        let named = told(&limiter, [id, "gpt-4"], 1).await;
        assert_eq!(named.as_deref(), expected, "{id}");
    }
}

async fn plans(limiter: &RateLimiter) -> Vec<(String, u64, u64)> {
    let (mut plans, mut after) = (vec![], None);
    loop {
        let page = limiter.admin().plans(after.as_ref()).await.unwrap();
        assert_eq!(page.unreadable, []);
        let row = |PlanUse { plan, entities, levels }| (plan.to_string(), entities, levels);
        plans.extend(page.items.into_iter().map(row));
        after = page.next;
        if after.is_none() {
            return plans;
        }
    }
}

/// However levels are set, replaced and deleted, and whatever answers are lost.
#[tokio::test(start_paused = true)]
async fn a_plan_counts_its_levels_and_entities() {
    let (fleet, [admin]) = Fleet::of().await;
    let mut turn = 0;
    fleet.dynamo.fail_transactions(move |_| {
        turn += 1;
        [None, Some(Fault::LoseAnswer), Some(Fault::Conflict)][turn % 3]
    });
    let of = |name: &str, entities, levels| (name.to_owned(), entities, levels);
    let [all, on] = [of_plan("pro"), of_plan_on("pro", "gpt-4")];
    for tokens in [1, 1, 2, 3] {
        configure(&admin, &all, [rpm(tokens)]).await;
        configure(&admin, &on, [rpm(tokens)]).await;
    }
    configure(&admin, &of_plan("free"), [rpm(1)]).await;
    assert_eq!(plans(&admin).await, [of("free", 0, 1), of("pro", 0, 2)]);
    for id in ["e-1", "e-2"] {
        set_plan(&admin, id, "pro").await.unwrap();
    }
    for _ in 0..2 {
        delete_config(&admin, &on).await;
    }
    let refused = admin.admin().delete_config(&all).await.unwrap_err();
    assert!(refused.to_string().contains("plan pro is in use"), "{refused}");
    assert_eq!(plans(&admin).await, [of("free", 0, 1), of("pro", 2, 1)]);
    let version = admin.admin().read_configs(std::slice::from_ref(&on)).await.unwrap()[0].version;
    let config = weirgate::Config::of([rpm(4)]);
    assert!(admin.admin().replace_config(&on, version, Some(&config)).await.unwrap());
    assert_eq!(plans(&admin).await[1], of("pro", 2, 2));
    let _ = admin.admin().delete_plan(&plan("pro"), true).await.unwrap();
    let _ = admin.admin().delete_plan(&plan("free"), false).await.unwrap();
    assert_eq!(plans(&admin).await, [of("free", 0, 0), of("pro", 2, 0)]);
}

/// Both of two operators count, whatever they do to the plan at once.
#[tokio::test(start_paused = true)]
async fn levels_that_change_at_once_are_counted() {
    for offset in 0..40 {
        let fleet = Fleet::slow(millis(10)).await;
        let (one, other) = (fleet.limiter().await, fleet.limiter().await);
        configure(&one, &of_plan_on("pro", "a"), [rpm(1)]).await;
        let [one_admin, other_admin] = [&one, &other].map(RateLimiter::admin);
        let (set, deleted, moved) = tokio::join!(
            async { configure(&one, &of_plan_on("pro", "b"), [rpm(1)]).await },
            async {
                pass(millis(offset * 5)).await;
                other_admin.delete_config(&of_plan_on("pro", "a")).await
            },
            set_plan(&one, "e-1", "pro"),
        );
        let () = set;
        let count = plans(&other).await;
        let levels = one_admin.configs(&weirgate::ConfigFilter::Plan(plan("pro")), None).await;
        let levels = u64::try_from(levels.unwrap().items.len()).unwrap();
        let entities = u64::from(moved.is_ok());
        assert!(levels > 0 || entities == 0, "{offset}");
        assert_eq!(
            count,
            [("pro".to_owned(), entities, levels)],
            "{offset}: {deleted:?}, {moved:?}"
        );
    }
}

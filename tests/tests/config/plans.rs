//! Plans: limits of all entities that have one.

use std::collections::BTreeMap;
use weirgate_tests::stored::{exempt, set_entity, stop};

use proptest::prelude::*;
use weirgate::{
    AuditChange, AuditSubject, Config, ConfigFilter, ConfigLevel, Decision, EffectiveLimits,
    Granularity, Limit, PlanName, RateLimiter, UsageScope,
};
use weirgate_shared::{EntityKey, Namespace};

use crate::fixtures::fleet::{Fleet, START, config, pass, runtime, secs};
use crate::fixtures::stored::{
    File, capacity, child, configure, entity, of_entity, of_plan, of_plan_on, of_resource, on,
    plan, resource, rpm, set_plan, take_of,
};

/// Requires that an error has these words.
fn assert_says(error: &impl std::fmt::Display, words: &[&str]) {
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

async fn effective(limiter: &RateLimiter, [id, on]: [&str; 2]) -> EffectiveLimits {
    let (id, on) = (entity(id), resource(on));
    limiter.admin().effective_limits(&id, &on).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_first_level_with_limits_wins_and_plans_are_between_entity_and_resource() {
    let (fleet, [admin]) = Fleet::of().await;
    let levels = ConfigLevel::of_entity(&entity("e-1"), Some(&plan("pro")), &resource("gpt-4"));
    assert_eq!(levels.len(), 6);
    for (level, tokens) in levels.iter().zip(1..) {
        configure(&admin, level, [rpm(tokens * 100)]).await;
    }
    set_plan(&admin, "e-1", "pro").await.unwrap();
    for (level, tokens) in levels.iter().zip(1..) {
        let limiter = fleet.limiter().await;
        assert_eq!(capacity(&limiter, ["e-1", "gpt-4"]).await, tokens * 100, "{level}");
        let effective = effective(&limiter, ["e-1", "gpt-4"]).await;
        assert_eq!(effective.buckets[0].level.as_ref(), Some(level));
        assert_eq!(effective.levels.len(), 6);
        if *level != ConfigLevel::System {
            match level.plan() {
                // The last level of a plan that is in use.
                Some(_) if *level == of_plan("pro") => {
                    admin.admin().delete_plan(&plan("pro"), true).await.unwrap();
                }
                _ => assert!(admin.admin().delete_config(level).await.unwrap()),
            }
        }
    }
    // Other entities have none of it.
    configure(&admin, &of_plan("pro"), [rpm(7)]).await;
    assert_eq!(capacity(&fleet.limiter().await, ["e-2", "gpt-4"]).await, 600);
}

/// Numbers of keys in the reads of limits from now on.
fn reads(fleet: &Fleet) -> std::sync::Arc<std::sync::Mutex<Vec<usize>>> {
    let sizes = std::sync::Arc::<std::sync::Mutex<Vec<usize>>>::default();
    let seen = std::sync::Arc::clone(&sizes);
    fleet.dynamo.fail_reads(move |operation, request| {
        if operation == "BatchGetItem" {
            let keys = request["RequestItems"]["weirgate"]["Keys"].as_array();
            seen.lock().unwrap().push(keys.unwrap().len());
        }
        None
    });
    sizes
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_read_once_per_process_and_time_and_others_pay_nothing_for_it() {
    let (fleet, [admin, limiter]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(600)]).await;
    configure(&admin, &of_plan("pro"), [rpm(6_000)]).await;
    for id in ["a", "b", "c"] {
        set_plan(&admin, id, "pro").await.unwrap();
    }
    let reads = reads(&fleet);
    let take = |id: &'static str| take_of(&limiter, [id, "gpt-4"], "rpm", 1);
    let taken = || std::mem::take(&mut *reads.lock().unwrap());
    let _ = take("lone").await.unwrap();
    // Four levels, the entity, the switches, the schema, the bucket.
    assert_eq!(taken(), [8], "without a plan");
    let _ = take("a").await.unwrap();
    // Two levels and the entity; the bucket; then both levels of the plan.
    assert_eq!(taken(), [4, 2], "the first with the plan");
    for id in ["b", "c"] {
        let _ = take(id).await.unwrap();
        assert_eq!(taken(), [4], "{id}");
    }
    for _ in 0..50 {
        let _ = take("a").await.unwrap();
        pass(secs(1)).await;
    }
    assert_eq!(taken(), [0; 0]);
    pass(secs(60)).await;
    let _ = take("a").await.unwrap();
    // Six levels, the entity, the switches.
    assert_eq!(taken(), [8], "all in one request, once the plan is known");
}

/// Gives entities the plan that the first one has, as `set_plan` does.
fn copy_entity(fleet: &Fleet, ids: &[String]) {
    let of = |id: &String| EntityKey {
        namespace: Namespace::new("default").unwrap(),
        entity: entity(id),
    };
    let mut item = fleet.dynamo.item(&of(&ids[0]).item_key().pk, "#META");
    for id in &ids[1..] {
        let key = of(id);
        let ((gsi2pk, gsi2sk), (gsi3pk, gsi3sk)) = (key.by_plan(&plan("pro")), key.by_namespace());
        for (name, text) in [
            ("PK", &key.item_key().pk),
            ("entity_id", id),
            ("GSI2PK", &gsi2pk),
            ("GSI2SK", &gsi2sk),
            ("GSI3PK", &gsi3pk),
            ("GSI3SK", &gsi3sk),
        ] {
            assert!(item[name]["S"].is_string(), "{name}");
            item[name]["S"] = text.as_str().into();
        }
        fleet.dynamo.put(&item);
    }
}

/// For 1,000 entities, or with `FULL` in the environment for 100,000, of which 1,000 acquire.
#[tokio::test(start_paused = true)]
async fn a_change_of_a_plan_is_one_write_and_reaches_all_its_entities() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &of_plan("pro"), [rpm(100)]).await;
    let most = match std::env::var_os("FULL") {
        Some(_) => 100_000,
        None => 1_000,
    };
    let ids: Vec<_> = (0..most).map(|at| format!("e-{at}")).collect();
    set_plan(&admin, &ids[0], "pro").await.unwrap();
    copy_entity(&fleet, &ids);
    let processes = [fleet.limiter().await, fleet.limiter().await];
    let capacity = async |at: usize, id: &String| {
        let decision = take_of(&processes[at % 2], [id, "gpt-4"], "rpm", 1).await;
        let grant = decision.unwrap().granted().expect("there are tokens");
        grant.limits()[0].capacity.whole_tokens()
    };
    let asked: Vec<_> = ids.iter().step_by(most / 1_000).enumerate().collect();
    for (at, id) in &asked {
        assert_eq!(capacity(*at, id).await, 100, "{id}");
    }
    let _ = fleet.dynamo.take_operations();
    configure(&admin, &of_plan("pro"), [rpm(250)]).await;
    let operations = fleet.dynamo.take_operations();
    assert_eq!(operations["TransactWriteItems"], 1, "{operations:?}");
    assert_eq!(operations.get("UpdateItem"), None);
    pass(secs(61)).await;
    for (at, id) in asked {
        assert_eq!(capacity(at, id).await, 250, "{id}");
    }
}

/// Also where a process still knows the plan of before.
#[tokio::test(start_paused = true)]
async fn i1_moving_to_and_fro_a_thousand_times_admits_no_more_than_the_greater_plan() {
    let (fleet, [admin, stale]) = Fleet::of().await;
    let per_day = |tokens| Limit::per_day("rpm", tokens).unwrap();
    configure(&admin, &of_plan("free"), [per_day(10)]).await;
    configure(&admin, &of_plan("pro"), [per_day(100)]).await;
    let (mut admitted, began) = (0, fleet.now());
    for turn in 0..1_000 {
        let name = if turn % 2 == 0 { "pro" } else { "free" };
        assert!(set_plan(&admin, "e-1", name).await.unwrap());
        for limiter in [&admin, &stale] {
            let decision = take_of(limiter, ["e-1", "gpt-4"], "rpm", 3).await;
            admitted += 3 * i64::from(decision.unwrap().is_granted());
        }
        if turn % 7 == 0 {
            pass(secs(1)).await;
        }
    }
    let refilled = 100 * (fleet.now().0 - began.0) / 86_400_000 + 1;
    assert!((1..=100 + refilled).contains(&admitted), "{admitted}");
}

/// A process may have read the changes of a plan after an entity left it, and still know the plan as that
/// of the entity.
#[tokio::test(start_paused = true)]
async fn a_process_that_knows_the_plan_of_before_does_not_overrule_the_new_one() {
    let (fleet, [admin, stale]) = Fleet::of().await;
    configure(&admin, &of_plan("free"), [rpm(10)]).await;
    configure(&admin, &of_plan("pro"), [rpm(100)]).await;
    for id in ["e-1", "e-2"] {
        set_plan(&admin, id, "pro").await.unwrap();
        assert_eq!(capacity(&stale, [id, "gpt-4"]).await, 100);
    }
    set_plan(&admin, "e-1", "free").await.unwrap();
    for tokens in 101..=110 {
        configure(&admin, &of_plan("pro"), [rpm(tokens)]).await;
    }
    assert_eq!(capacity(&admin, ["e-2", "gpt-4"]).await, 110);
    pass(secs(2)).await;
    for _ in 0..3 {
        let _ = capacity(&stale, ["e-2", "gpt-4"]).await;
    }
    assert_eq!(capacity(&stale, ["e-1", "other"]).await, 110, "it knows no better");
    for limiter in [&fleet.limiter().await, &admin, &stale] {
        assert_eq!(capacity(limiter, ["e-1", "other"]).await, 10);
        pass(secs(2)).await;
    }
}

/// What changes while processes with caches of any age take from the bucket.
#[derive(Debug, Clone)]
enum Step {
    /// Sets the limits of a level so many times.
    Set(usize, i64, usize),
    Delete(usize),
    Move(usize),
    DeleteEntity,
    /// A process takes of a bucket, with what it has cached.
    Take(usize, usize),
    Pass(u64),
}

const PLANS: [&str; 3] = ["", "free", "pro"];
/// By the last ones, levels of plans are read while the entity of the first is cached.
const BUCKETS: [[&str; 2]; 4] =
    [["e-1", "gpt-4"], ["e-1", "other"], ["e-2", "gpt-4"], ["e-3", "gpt-4"]];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..6_usize, 1..50_i64, 1..6_usize).prop_map(|(at, tokens, times)| Step::Set(at, tokens, times)),
        1 => (0..6_usize).prop_map(Step::Delete),
        4 => (0..3_usize).prop_map(Step::Move),
        1 => Just(Step::DeleteEntity),
        8 => (0..2_usize, 0..4_usize).prop_map(|(process, bucket)| Step::Take(process, bucket)),
        2 => (1..40_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(config(40))]

    /// The limits of a bucket are those of the newest configuration, whatever was in force before: no
    /// move between plans, and no process that knows an older plan, can keep others.
    #[test]
    fn the_newest_plan_overrules(steps in prop::collection::vec(step(), 1..30)) {
        runtime().block_on(async {
            let (fleet, [admin, one, other]) = Fleet::of().await;
            configure(&admin, &ConfigLevel::System, [rpm(1_000)]).await;
            for (id, name) in [("e-2", "free"), ("e-3", "pro")] {
                configure(&admin, &of_plan(name), [rpm(1_000)]).await;
                set_plan(&admin, id, name).await.unwrap();
            }
            let levels = [
                of_plan("free"),
                of_plan("pro"),
                of_plan_on("free", "gpt-4"),
                of_plan_on("pro", "gpt-4"),
                of_resource("gpt-4"),
                of_entity("e-1"),
            ];
            for step in steps {
                match step {
                    Step::Set(at, tokens, times) => {
                        for time in 0..i64::try_from(times).unwrap() {
                            configure(&admin, &levels[at], [rpm(1_000 * tokens + time)]).await;
                        }
                    }
                    Step::Delete(at) => drop(admin.admin().delete_config(&levels[at]).await),
                    Step::Move(at) => drop(set_plan(&admin, "e-1", PLANS[at]).await),
                    Step::DeleteEntity => {
                        admin.admin().delete_entity(&entity("e-1")).await.unwrap();
                    }
                    Step::Take(process, bucket) => {
                        let limiter = [&one, &other][process];
                        let _ = take_of(limiter, BUCKETS[bucket], "rpm", 1).await.unwrap();
                    }
                    Step::Pass(seconds) => pass(secs(seconds)).await,
                }
            }
            // Before the caches of the others end, a process that knows all, and after it they too.
            let fresh = fleet.limiter().await;
            let all = [&fresh, &one, &other];
            for (processes, wait) in [(&all[..1], 0), (&all, 61)] {
                pass(secs(wait)).await;
                for (of, limiter) in BUCKETS.iter().flat_map(|of| processes.iter().map(move |by| (of, by))) {
                    let expected = effective(&admin, *of).await;
                    let expected = expected.buckets[0].limits[0].rule().capacity.whole_tokens();
                    assert_eq!(capacity(limiter, *of).await, expected, "{of:?}");
                }
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_must_have_limits_and_one_in_use_is_not_deleted() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(60)]).await;
    let error = set_plan(&admin, "acme", "pro").await.unwrap_err();
    assert_says(&error, &["plan pro has no limits", "limits set --plan pro"]);
    assert_eq!(admin.admin().entity(&entity("acme")).await.unwrap(), None);
    configure(&admin, &of_plan("pro"), [rpm(600)]).await;
    configure(&admin, &of_plan_on("pro", "gpt-4"), [rpm(700)]).await;
    for id in ["acme", "globex", "initech"] {
        assert!(set_plan(&admin, id, "pro").await.unwrap());
        assert!(!set_plan(&admin, id, "pro").await.unwrap(), "again");
    }
    set_plan(&admin, "initech", "").await.unwrap();
    assert!(admin.admin().delete_config(&of_plan("pro")).await.unwrap());
    let last = of_plan_on("pro", "gpt-4");
    let error = admin.admin().delete_config(&last).await.unwrap_err();
    assert_says(
        &error,
        &["plan pro is in use: entities with it are 2,", "plans delete pro --force"],
    );
    let error = admin.admin().delete_plan(&plan("pro"), false).await;
    assert_says(&error.unwrap_err(), &["are 2,"]);
    assert_eq!(capacity(&fleet.limiter().await, ["acme", "gpt-4"]).await, 700);

    assert_eq!(admin.admin().delete_plan(&plan("pro"), true).await.unwrap(), 1);
    let limiter = fleet.limiter().await;
    assert_eq!(capacity(&limiter, ["acme", "gpt-4"]).await, 60);
    let missing_plan = effective(&limiter, ["acme", "gpt-4"]).await.missing_plan;
    assert_eq!(missing_plan, Some(plan("pro")));
    configure(&admin, &of_plan_on("pro", "other"), [rpm(1)]).await;
    let missing_plan = effective(&limiter, ["acme", "gpt-4"]).await.missing_plan;
    assert_eq!(missing_plan, None, "it has limits elsewhere");
    for name in ["", "a/b", "a#b", "a b", "-a", &"a".repeat(65)] {
        assert_says(&PlanName::new(name).unwrap_err(), &["plan", "1 to 64 of A-Z"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_move_keeps_the_kinds_of_limits() {
    let (_fleet, [admin]) = Fleet::of().await;
    configure(&admin, &of_plan("free"), [rpm(60)]).await;
    let slots = Limit::concurrent("rpm", 5).unwrap();
    configure(&admin, &of_plan("odd"), [slots.clone()]).await;
    set_plan(&admin, "e-1", "free").await.unwrap();
    assert_eq!(capacity(&admin, ["e-1", "gpt-4"]).await, 60);
    let error = set_plan(&admin, "e-1", "odd").await.unwrap_err();
    assert_says(&error, &["limit \"rpm\" of plan odd must stay", "bucket of e-1 on gpt-4"]);
    let error = admin.admin().set_config(&of_plan("free"), &Config::of([slots])).await;
    assert_says(&error.unwrap_err(), &["must stay", "e-1 on gpt-4"]);
    // Away from the plan, another level decides.
    configure(&admin, &of_resource("gpt-4"), [Limit::concurrent("rpm", 9).unwrap()]).await;
    let error = set_plan(&admin, "e-1", "").await.unwrap_err();
    assert_says(&error, &["of resource gpt-4 must stay", "e-1 on gpt-4"]);
    assert_eq!(capacity(&admin, ["e-1", "gpt-4"]).await, 60);
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_a_plan_reaches_its_entities_and_their_descendants() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(600)]).await;
    configure(&admin, &of_plan("free"), [rpm(60)]).await;
    for id in ["e-1", "team"] {
        set_plan(&admin, id, "free").await.unwrap();
    }
    set_entity(&admin, &child("user", "team")).await;
    let limiter = fleet.limiter().await;
    let is_disabled = async |id: &str| {
        let brought = limiter.acquire(id, "gpt-4").limits(&[rpm(9)]).take("rpm", 1);
        let both = [
            take_of(&limiter, [id, "gpt-4"], "rpm", 1).await.unwrap(),
            brought.send().await.unwrap(),
        ];
        let both = both.map(|decision| matches!(decision, Decision::Disabled(_)));
        assert_eq!(both[0], both[1], "with limits in the call");
        both[0]
    };
    assert!(!is_disabled("e-1").await);
    stop(&admin, &of_plan_on("free", "gpt-4")).await;
    pass(secs(61)).await;
    assert!(is_disabled("e-1").await && is_disabled("user").await);
    assert!(!is_disabled("lone").await);
    exempt(&admin, &of_entity("e-1")).await;
    pass(secs(61)).await;
    assert!(!is_disabled("e-1").await && is_disabled("user").await);
    // A system that is stopped goes on for a plan that is exempt.
    stop(&admin, &ConfigLevel::System).await;
    exempt(&admin, &of_plan_on("free", "gpt-4")).await;
    pass(secs(61)).await;
    assert!(!is_disabled("e-1").await && is_disabled("lone").await);
}

#[tokio::test(start_paused = true)]
async fn a_limits_file_has_plans_and_gives_them_to_entities() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &of_plan("pro"), [rpm(100)]).await;
    configure(&admin, &of_plan("free"), [rpm(50)]).await;
    set_plan(&admin, "e-2", "free").await.unwrap();
    set_plan(&admin, "e-3", "free").await.unwrap();
    let text = "weirgate: 1\nplans:\n  pro:\n    resources:\n      gpt-4:\n        limits:\n          rpm: 300/minute\n  \
                edge:\n    limits:\n      rpm: 400/minute\nentities:\n  e-1:\n    plan: pro\n  e-2:\n    plan: edge\n";
    let file = File::new(text);
    let limiter = fleet.builder().await.limits_file(file.limits());
    let limiter = limiter.build().await.unwrap();
    for (id, expected) in [("e-1", 300), ("e-2", 400), ("e-3", 50)] {
        assert_eq!(capacity(&limiter, [id, "gpt-4"]).await, expected, "{id}");
    }
    for (text, expected) in [
        ("plans:\n  a/b:\n    limits:\n      rpm: 1/minute\n", "plan \"a/b\" is not a valid name"),
        ("plans:\n  a:\n    plan: b\n", "plan a cannot have a plan"),
        ("entities:\n  e:\n    plan: a#b\n", "plan \"a#b\" is not a valid name"),
        ("plans:\n  a:\n    parent: b\n", "\"parent\" is unknown"),
    ] {
        let text = format!("weirgate: 1\n{text}");
        let error = weirgate::LimitsFileContents::parse("limits.yaml", text).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn plans_are_listed_reported_and_audited() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &of_plan("pro"), [rpm(100)]).await;
    configure(&admin, &of_plan_on("pro", "gpt-4"), [rpm(200)]).await;
    configure(&admin, &on("e-1", "gpt-4"), [rpm(300)]).await;
    for id in ["e-1", "e-2"] {
        set_plan(&admin, id, "pro").await.unwrap();
    }
    // After the first seconds of an hour, in which processes may still count in the last one.
    pass(secs(10)).await;
    for (id, on) in [("e-1", "gpt-4"), ("e-2", "gpt-4"), ("e-2", "other"), ("lone", "gpt-4")] {
        let acquire = admin.acquire(id, on).limits(&[rpm(9)]).take("rpm", 2);
        assert!(acquire.send().await.unwrap().is_granted());
    }
    pass(secs(60)).await;
    let listed = async |of: ConfigFilter| {
        let (mut levels, mut after) = (vec![], None);
        loop {
            let page = admin.admin().configs(&of, after.as_ref()).await.unwrap();
            levels.extend(page.items.into_iter().map(|(level, _)| level));
            after = page.next;
            if after.is_none() {
                levels.sort();
                return levels;
            }
        }
    };
    let both = [of_plan_on("pro", "gpt-4"), of_plan("pro")];
    assert_eq!(listed(ConfigFilter::Plans).await, both);
    assert_eq!(listed(ConfigFilter::Plan(plan("pro"))).await, both);
    let all = [on("e-1", "gpt-4"), both[0].clone(), both[1].clone()];
    assert_eq!(listed(ConfigFilter::All).await, all);
    let on_resource = [on("e-1", "gpt-4"), both[0].clone()];
    assert_eq!(listed(ConfigFilter::Resource(resource("gpt-4"))).await, on_resource);
    assert_eq!(listed(ConfigFilter::Entities).await, []);

    let used = async |scope: UsageScope| {
        let report = admin.admin();
        let range = START..fleet.now();
        let report = report.usage_report(scope, Granularity::Hourly, range).unwrap();
        let (mut used, mut after) = (BTreeMap::new(), None);
        loop {
            let page = report.page(after.as_ref()).await.unwrap();
            for row in page.items {
                let of = format!("{} {}", row.entity, row.resource);
                used.insert(of, row.usage.tokens["rpm"].whole_tokens());
            }
            after = page.next;
            if after.is_none() {
                return used.into_iter().collect::<Vec<_>>();
            }
        }
    };
    let row = |of: &str| (of.to_owned(), 2);
    let all = UsageScope::Plan(plan("pro"), None);
    let rows = [row("e-1 gpt-4"), row("e-2 gpt-4"), row("e-2 other")];
    assert_eq!(used(all).await, rows);
    let one = UsageScope::Plan(plan("pro"), Some(resource("other")));
    assert_eq!(used(one).await, [row("e-2 other")]);

    // More entities in a part of the list than a page has.
    let part = |id: &String| {
        let namespace = Namespace::new("default").unwrap();
        let key = EntityKey { namespace, entity: entity(id) };
        key.by_plan(&plan("pro")).0
    };
    let mut many: Vec<_> = (1_000..9_999).map(|at| format!("many-{at}")).collect();
    many.retain(|id| part(id).ends_with("#03"));
    many.truncate(120);
    for id in &many {
        set_plan(&admin, id, "pro").await.unwrap();
        let acquire = admin.acquire(id, "many").limits(&[rpm(9)]).take("rpm", 2);
        assert!(acquire.send().await.unwrap().is_granted());
    }
    let all = UsageScope::Plan(plan("pro"), Some(resource("many")));
    let rows: Vec<_> = many.iter().map(|id| row(&format!("{id} many"))).collect();
    assert_eq!(used(all).await, rows);

    let page = admin.admin().audit(&AuditSubject::Plan(plan("pro")), None).await.unwrap();
    assert_eq!(page.items.len(), 2);
    let of_entity = AuditSubject::Entity(entity("e-2"));
    let page = admin.admin().audit(&of_entity, None).await.unwrap();
    let moved = page.items.iter().find_map(|event| match &event.change {
        AuditChange::Entity { before, after, .. } => Some((before.clone(), after.clone())),
        _ => None,
    });
    let (before, after) = moved.unwrap();
    assert_eq!((before, after.unwrap().plan), (None, Some(plan("pro"))));
}

//! Plans where they meet files, deletions, stops, and each other.

use std::time::Duration;
use weirgate_tests::stored::{delete_config, set_config, set_entity, start, stop};

use weirgate::{
    Config, ConfigLevel, Decision, Entity, Error, Granularity, Limit, LiveLeases, Purge,
    RateLimiter, UsageScope,
};
use weirgate_testkit::Fault;

use crate::fixtures::fleet::{Fleet, START, keys_read, millis, pass, rpm, secs};
use crate::fixtures::stored::{
    File, capacity, configure, entity, of_entity, of_plan, of_plan_on, of_resource, on, plan,
    resource, set_plan, take_of,
};

/// A file moves an entity from one plan of the table to another one, which had fewer changes.
#[tokio::test(start_paused = true)]
async fn a_file_that_moves_an_entity_to_another_plan_of_the_table_is_followed() {
    let (fleet, [admin]) = Fleet::of().await;
    for tokens in 100..=105 {
        configure(&admin, &of_plan("pro"), [rpm(tokens)]).await;
    }
    configure(&admin, &of_plan("free"), [rpm(10)]).await;
    let text = |name: &str| format!("weirgate: 1\nentities:\n  e-1:\n    plan: {}\n", name);
    for (name, expected) in [("pro", 105), ("free", 10)] {
        let file = File::new(&text(name));
        let limiter = fleet.builder().await.limits_file(file.limits());
        let limiter = limiter.build().await.unwrap();
        pass(secs(120)).await;
        let _ = capacity(&limiter, ["e-1", "gpt-4"]).await;
        pass(secs(120)).await;
        assert_eq!(capacity(&limiter, ["e-1", "gpt-4"]).await, expected, "{name}");
    }
}

/// A plan that only a file gave is taken away: the limits of the system hold again.
#[tokio::test(start_paused = true)]
async fn a_file_that_takes_a_plan_of_the_table_away_is_followed() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(60)]).await;
    configure(&admin, &of_plan("pro"), [rpm(6_000)]).await;
    let file = File::new("weirgate: 1\nentities:\n  e-1:\n    plan: pro\n");
    let limiter = fleet.builder().await.limits_file(file.limits());
    let limiter = limiter.build().await.unwrap();
    assert_eq!(capacity(&limiter, ["e-1", "gpt-4"]).await, 6_000);
    drop(limiter);
    let limiter = fleet.limiter().await;
    for _ in 0..5 {
        pass(secs(120)).await;
        let _ = capacity(&limiter, ["e-1", "gpt-4"]).await;
    }
    assert_eq!(capacity(&limiter, ["e-1", "gpt-4"]).await, 60);
}

/// A plan whose level on a resource has slots under the name of a rate of wider levels.
#[tokio::test(start_paused = true)]
async fn a_forced_deletion_of_a_plan_is_whole_or_changes_nothing() {
    let (_fleet, [admin]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(60)]).await;
    configure(&admin, &of_plan("pro"), [rpm(600)]).await;
    let slots = Limit::concurrent("rpm", 5).unwrap();
    let level = of_plan_on("pro", "gpt-4");
    set_config(&admin, &level, &Config::of([slots])).await;
    set_plan(&admin, "e-1", "pro").await.unwrap();
    assert_eq!(capacity(&admin, ["e-1", "gpt-4"]).await, 5);
    let deleted = admin.admin().delete_plan(&plan("pro"), true).await;
    let left = [
        admin.admin().config(&of_plan("pro")).await.unwrap().is_some(),
        admin.admin().config(&level).await.unwrap().is_some(),
    ];
    assert_eq!(left[0], left[1], "half of the plan is left: {deleted:?}");
}

/// Level by level, where the narrower one sorts first: the plan as a whole leaves no conflict.
#[tokio::test(start_paused = true)]
async fn a_plan_is_deleted_whatever_its_levels_say_among_each_other() {
    let (_fleet, [admin]) = Fleet::of().await;
    let slots = |count| Config::of([Limit::concurrent("rpm", count).unwrap()]);
    let set = async |level: &ConfigLevel, config: &Config| {
        set_config(&admin, level, config).await;
    };
    set(&of_plan("pro"), &Config::of([rpm(600)])).await;
    // The resource sorts before `_default_`.
    set(&of_plan_on("pro", "GPT"), &slots(5)).await;
    set(&of_resource("GPT"), &slots(9)).await;
    set_plan(&admin, "e-1", "pro").await.unwrap();
    let _ = take_of(&admin, ["e-1", "GPT"], "rpm", 1).await.unwrap();
    let deleted = admin.admin().delete_plan(&plan("pro"), true).await;
    assert!(deleted.is_ok(), "{deleted:?}");
}

/// An operator stopped the system, and one entity: the answer to all others was known without a read.
#[tokio::test(start_paused = true)]
async fn a_stopped_system_reads_no_entity_because_another_entity_is_stopped() {
    let (fleet, [admin, limiter]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(600)]).await;
    stop(&admin, &of_entity("other")).await;
    stop(&admin, &ConfigLevel::System).await;
    let is_disabled = async |id: &str| {
        let ask = limiter.acquire(id, "gpt-4").limits(&[rpm(5)]).take("rpm", 1);
        let decision = ask.send().await.unwrap();
        matches!(decision, Decision::Disabled(_))
    };
    assert!(is_disabled("first").await);
    let read = keys_read(&fleet);
    read.lock().unwrap().clear();
    for at in 0..20 {
        assert!(is_disabled(&format!("e-{at}")).await);
    }
    assert_eq!(read.lock().unwrap().len(), 0, "keys read: {read:?}");
}

/// Two operators delete the last two levels of a plan that is in use, at once.
#[tokio::test(start_paused = true)]
async fn a_plan_in_use_keeps_a_level_if_two_delete_its_last_two_at_once() {
    for offset in 0..60 {
        let fleet = Fleet::slow(millis(10)).await;
        let (one, other) = (fleet.limiter().await, fleet.limiter().await);
        configure(&one, &of_plan("pro"), [rpm(600)]).await;
        configure(&one, &of_plan_on("pro", "gpt-4"), [rpm(700)]).await;
        set_plan(&one, "e-1", "pro").await.unwrap();
        let levels = [of_plan("pro"), of_plan_on("pro", "gpt-4")];
        let (one_admin, other_admin) = (one.admin(), other.admin());
        let both = tokio::join!(one_admin.delete_config(&levels[0]), async {
            pass(millis(offset * 5)).await;
            other_admin.delete_config(&levels[1]).await
        });
        let is_left = one.admin().has_plan(&plan("pro")).await.unwrap();
        assert!(is_left, "both were deleted, {offset}: {both:?}");
    }
}

/// Two moves at once: the version is above both, and the entity has one of the plans.
#[tokio::test(start_paused = true)]
async fn two_moves_at_once_leave_one_plan_that_all_follow() {
    let (fleet, [one, other]) = Fleet::of().await;
    configure(&one, &of_plan("free"), [rpm(10)]).await;
    configure(&one, &of_plan("pro"), [rpm(100)]).await;
    configure(&one, &of_plan("big"), [rpm(1_000)]).await;
    set_plan(&one, "e-1", "free").await.unwrap();
    assert_eq!(capacity(&one, ["e-1", "gpt-4"]).await, 10);
    let _ = tokio::join!(set_plan(&one, "e-1", "pro"), set_plan(&other, "e-1", "big"));
    let now = one.admin().entity(&entity("e-1")).await.unwrap().unwrap();
    let expected = if now.plan == Some(plan("pro")) { 100 } else { 1_000 };
    for limiter in [&fleet.limiter().await, &one, &other] {
        pass(secs(61)).await;
        assert_eq!(capacity(limiter, ["e-1", "gpt-4"]).await, expected);
    }
}

/// Deleted or erased, and made again without a plan, an entity is in no list of its plan, and has the
/// limits of others.
#[tokio::test(start_paused = true)]
async fn an_entity_that_is_gone_and_made_again_has_nothing_of_its_plan() {
    for is_erased in [false, true] {
        let (fleet, [admin]) = Fleet::of().await;
        configure(&admin, &ConfigLevel::System, [rpm(60)]).await;
        for tokens in 600..610 {
            configure(&admin, &of_plan("pro"), [rpm(tokens)]).await;
        }
        let id = entity("e-1");
        set_plan(&admin, "e-1", "pro").await.unwrap();
        assert_eq!(capacity(&admin, ["e-1", "gpt-4"]).await, 609);
        let end = async || match is_erased {
            true => {
                let report = admin.admin().erase_entity(&id, LiveLeases::Refuse).await;
                report.unwrap().entity
            }
            false => admin.admin().delete_entity(&id).await.unwrap(),
        };
        assert!(end().await);
        assert!(!end().await, "again");
        assert_eq!(admin.admin().entity(&id).await.unwrap(), None);
        assert_eq!(admin.admin().entity_description(&id).await.unwrap(), None);
        let listed = async || {
            let page = admin.admin().plan_entities(&plan("pro"), None).await;
            page.unwrap().items
        };
        assert_eq!(listed().await, []);
        assert_eq!(capacity(&fleet.limiter().await, ["e-1", "gpt-4"]).await, 60);
        if is_erased {
            pass(secs(3_600)).await;
            assert_eq!(capacity(&admin, ["e-1", "gpt-4"]).await, 60);
        }
        set_entity(&admin, &Entity::new(id.clone())).await;
        assert_eq!(listed().await, []);
        set_plan(&admin, "e-1", "pro").await.unwrap();
        assert_eq!(capacity(&fleet.limiter().await, ["e-1", "gpt-4"]).await, 609);
        configure(&admin, &on("e-1", "gpt-4"), [rpm(5)]).await;
        assert_eq!(capacity(&fleet.limiter().await, ["e-1", "gpt-4"]).await, 5);
        delete_config(&admin, &on("e-1", "gpt-4")).await;
        set_plan(&admin, "e-1", "").await.unwrap();
        configure(&admin, &of_resource("gpt-4"), [rpm(30)]).await;
        assert_eq!(capacity(&fleet.limiter().await, ["e-1", "gpt-4"]).await, 30);
    }
}

#[tokio::test(start_paused = true)]
async fn a_parents_missing_plan_is_told() {
    let (_fleet, [admin]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(60)]).await;
    configure(&admin, &of_plan("pro"), [rpm(600)]).await;
    set_plan(&admin, "team", "pro").await.unwrap();
    let user = Entity::new(entity("user")).child_of(entity("team"), true);
    set_entity(&admin, &user).await;
    admin.admin().delete_plan(&plan("pro"), true).await.unwrap();
    let effective = admin.admin();
    let effective = effective.effective_limits(&entity("user"), &resource("gpt-4")).await;
    let effective = effective.unwrap();
    assert_eq!(effective.buckets.len(), 2);
    assert_eq!(effective.missing_plan, Some(plan("pro")), "the team's plan has no limits");
}

async fn purge(limiter: &RateLimiter) {
    stop(limiter, &ConfigLevel::System).await;
    pass(secs(61)).await;
    let mut after = None;
    loop {
        let admin = limiter.admin();
        let page = Purge::after(admin.purge_namespace("default"), after.clone());
        let page = page.send().await.unwrap();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    start(limiter, &ConfigLevel::System).await;
    pass(secs(61)).await;
}

/// The version after a purge is above every sum before it, also after many moves between plans.
#[tokio::test(start_paused = true)]
async fn a_purged_namespace_follows_its_new_limits_after_many_moves() {
    let (fleet, [admin]) = Fleet::of().await;
    for round in 1..=3 {
        configure(&admin, &ConfigLevel::System, [rpm(60 + round)]).await;
        configure(&admin, &of_plan("pro"), [rpm(600)]).await;
        let limiter = fleet.limiter().await;
        assert_eq!(capacity(&limiter, ["e-1", "gpt-4"]).await, 60 + round, "round {round}");
        for turn in 0..400 {
            set_plan(&admin, "e-1", if turn % 2 == 0 { "pro" } else { "" }).await.unwrap();
        }
        assert_eq!(capacity(&fleet.limiter().await, ["e-1", "gpt-4"]).await, 60 + round);
        purge(&admin).await;
    }
}

/// A page has one bucket's rows of up to 744 hours.
#[tokio::test(start_paused = true)]
async fn a_page_of_a_plans_usage_is_bounded_as_the_pages_of_others_are() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &of_plan("pro"), [rpm(600)]).await;
    set_plan(&admin, "e-1", "pro").await.unwrap();
    pass(secs(10)).await;
    for _ in 0..4 {
        for on in ["a", "b", "c"] {
            let _ = take_of(&admin, ["e-1", on], "rpm", 1).await.unwrap();
        }
        pass(Duration::from_secs(20 * 86_400)).await;
    }
    let report = admin.admin();
    let scope = UsageScope::Plan(plan("pro"), None);
    let report = report.usage_report(scope, Granularity::Hourly, START..fleet.now());
    let report = report.unwrap();
    let mut after = None;
    loop {
        let page = report.page(after.as_ref()).await.unwrap();
        let resources: std::collections::BTreeSet<_> =
            page.items.iter().map(|row| row.resource.to_string()).collect();
        assert!(resources.len() <= 1, "a page has {} rows of {resources:?}", page.items.len());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
}

/// A plan and a schedule at once: through a boundary, moves and a removed schedule, the bucket follows.
#[tokio::test(start_paused = true)]
async fn plans_with_schedules_are_followed_through_boundaries_and_moves() {
    let (fleet, [admin]) = Fleet::of().await;
    let limit = |text: &str| [text.parse::<Limit>().unwrap()];
    // The tests begin on a Friday at 18:00.
    let doubled = "rpm=100/minute,schedule=0 19 * * * for 1h scale 2/1";
    let halved = "rpm=50/minute,schedule=30 18 * * * for 1h scale 1/2";
    configure(&admin, &of_plan("pro"), limit(doubled)).await;
    configure(&admin, &of_plan("free"), limit(halved)).await;
    configure(&admin, &of_resource("gpt-4"), [rpm(7)]).await;
    let processes = [fleet.limiter().await, fleet.limiter().await];
    let mut plans = ["pro", "free", "", "free", "pro", ""].into_iter().cycle();
    for minute in (0..180).step_by(4) {
        let name = plans.next().unwrap();
        set_plan(&admin, "e-1", name).await.unwrap();
        // The stale ones write what they know.
        for process in &processes {
            let _ = take_of(process, ["e-1", "gpt-4"], "rpm", 1).await.unwrap();
        }
        let at = minute;
        let expected = match name {
            "pro" if (60..120).contains(&at) => 200,
            "pro" => 100,
            "free" if (30..90).contains(&at) => 25,
            "free" => 50,
            _ => 7,
        };
        let fresh = fleet.limiter().await;
        assert_eq!(capacity(&fresh, ["e-1", "gpt-4"]).await, expected, "{name:?} at {minute}");
        assert_eq!(capacity(&admin, ["e-1", "gpt-4"]).await, expected, "{name:?} at {minute}");
        let passed = u64::try_from(fleet.now().0 - START.0).unwrap();
        let until = u64::try_from(minute + 4).unwrap() * 60_000;
        pass(Duration::from_millis(until - passed)).await;
    }
}

/// The aggregate limits of an ancestor with a plan, for callers that bring limits with `.cascading()`.
#[tokio::test(start_paused = true)]
async fn a_parents_plan_limits_a_cascade() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &of_plan("pro"), [rpm(5)]).await;
    configure(&admin, &of_resource("gpt-4"), [rpm(100)]).await;
    set_plan(&admin, "team", "pro").await.unwrap();
    let user = weirgate::Entity::new(entity("user")).child_of(entity("team"), true);
    set_entity(&admin, &user).await;
    let limiter = fleet.limiter().await;
    for expected in [true, false] {
        let decision = take_of(&limiter, ["user", "gpt-4"], "rpm", 4).await.unwrap();
        assert_eq!(decision.is_granted(), expected);
    }
    let brought = limiter.acquire("user", "other").limits(&[rpm(100)]).cascading().take("rpm", 6);
    assert!(!brought.send().await.unwrap().is_granted(), "the team's plan has 5");
}

/// `set_plan` says: at once for this limiter. A cached denial of the plan before must not outlast it.
#[tokio::test(start_paused = true)]
async fn a_move_ends_the_cached_denials_of_its_limiter() {
    let per_day = |tokens| Limit::per_day("rpm", tokens).unwrap();
    for moves in [false, true] {
        let (_fleet, [admin]) = Fleet::of().await;
        configure(&admin, &of_plan("free"), [per_day(10)]).await;
        configure(&admin, &of_plan("pro"), [per_day(1_000_000)]).await;
        set_plan(&admin, "e-1", "free").await.unwrap();
        let take = |amount| take_of(&admin, ["e-1", "gpt-4"], "rpm", amount);
        assert!(take(10).await.unwrap().is_granted());
        assert!(!take(5).await.unwrap().is_granted());
        assert!(!take(20).await.unwrap().is_granted());
        match moves {
            true => drop(set_plan(&admin, "e-1", "pro").await.unwrap()),
            false => configure(&admin, &of_plan("free"), [per_day(1_000_000)]).await,
        }
        for _ in 0..2 {
            let _ = take(5).await.unwrap();
            pass(secs(5)).await;
        }
        // 10 s of 1,000,000 a day refill 115.
        let second = take(5).await.unwrap();
        assert!(second.is_granted(), "moves {moves}: {second:?}");
    }
}

/// A plan that only a limits file gives is stopped as one of the table.
#[tokio::test(start_paused = true)]
async fn a_stop_of_a_plan_reaches_entities_that_have_it_by_a_file() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(60)]).await;
    let text = "weirgate: 1\nplans:\n  edge:\n    limits:\n      rpm: 400/minute\nentities:\n  e-1:\n    plan: edge\n";
    let file = crate::fixtures::stored::File::new(text);
    let limiter = fleet.builder().await.limits_file(file.limits());
    let limiter = limiter.build().await.unwrap();
    assert_eq!(capacity(&limiter, ["e-1", "gpt-4"]).await, 400);
    stop(&admin, &of_plan("edge")).await;
    pass(secs(61)).await;
    for (id, expected) in [("e-1", true), ("e-2", false)] {
        let decision = take_of(&limiter, [id, "gpt-4"], "rpm", 1).await.unwrap();
        let is_stopped = matches!(decision, weirgate::Decision::Disabled(_));
        assert_eq!(is_stopped, expected, "{id}");
    }
}

/// The ways in which the last level of a plan is deleted without force.
async fn delete_last(limiter: &RateLimiter, by_level: bool) -> Result<(), Error> {
    let admin = limiter.admin();
    if by_level {
        for level in [of_plan_on("pro", "gpt-4"), of_plan("pro")] {
            let _ = admin.delete_config(&level).await?;
        }
        return Ok(());
    }
    admin.delete_plan(&plan("pro"), false).await.map(drop)
}

/// Whatever is between the requests of a deletion and a move, which gets its plan by `set_plan` or
/// `set_entity`, from no plan or from another one.
#[tokio::test(start_paused = true)]
async fn an_entity_that_gets_a_plan_while_it_is_deleted_keeps_it_or_is_refused() {
    let (mut kept, mut deleted) = (0, 0);
    for (offset, by_level) in (0..40).flat_map(|at| [(at, false), (at, true)]) {
        let fleet = Fleet::slow(millis(10)).await;
        let (one, other) = (fleet.limiter().await, fleet.limiter().await);
        configure(&one, &of_plan("free"), [rpm(10)]).await;
        configure(&one, &of_plan_on("pro", "gpt-4"), [rpm(700)]).await;
        if offset % 2 == 0 {
            configure(&one, &of_plan("pro"), [rpm(600)]).await;
            set_plan(&one, "e-1", "free").await.unwrap();
        }
        let (deletion, moved) = tokio::join!(delete_last(&one, by_level), async {
            pass(millis(offset * 25)).await;
            let of_pro = Entity::new(entity("e-1")).on_plan(plan("pro"));
            match by_level {
                false => set_plan(&other, "e-1", "pro").await.map(drop),
                true => other.admin().set_entity(&of_pro).await,
            }
        });
        let found = one.admin().entity(&entity("e-1")).await.unwrap();
        let has_pro = found.is_some_and(|found| found.plan == Some(plan("pro")));
        let is_left = one.admin().has_plan(&plan("pro")).await.unwrap();
        let case = format!("{offset}, {by_level}: {deletion:?}, {moved:?}");
        assert_eq!((has_pro, is_left), (moved.is_ok(), deletion.is_err()), "{case}");
        assert!(is_left || !has_pro, "a plan that does not exist, {case}");
        (kept, deleted) = (kept + i32::from(is_left), deleted + i32::from(!is_left));
    }
    assert!(kept > 0 && deleted > 0, "{kept} kept, {deleted} deleted");
}

/// An index that has not heard of the entity yet.
#[tokio::test(start_paused = true)]
async fn a_plan_is_in_use_whatever_the_index_knows() {
    let (fleet, [admin]) = Fleet::of().await;
    configure(&admin, &of_plan("pro"), [rpm(600)]).await;
    set_plan(&admin, "e-1", "pro").await.unwrap();
    let mut item = fleet.dynamo.item("default/ENTITY#e-1", "#META");
    for key in ["GSI2PK", "GSI2SK"] {
        assert!(item.as_object_mut().unwrap().remove(key).is_some());
    }
    fleet.dynamo.put(&item);
    for by_level in [false, true] {
        let error = delete_last(&admin, by_level).await.unwrap_err().to_string();
        let says = "plan pro is in use: entities with it are 1: give them another plan, or run `weirgate plans";
        assert!(error.starts_with(says), "{error}");
    }
    assert!(admin.admin().has_plan(&plan("pro")).await.unwrap());
}

/// Each entity counts once, however it gets and leaves its plan, and whatever answers are lost.
#[tokio::test(start_paused = true)]
async fn a_plan_that_all_entities_left_can_be_deleted() {
    let (fleet, [admin]) = Fleet::of().await;
    for name in ["free", "pro"] {
        configure(&admin, &of_plan(name), [rpm(600)]).await;
    }
    let mut turn = 0;
    fleet.dynamo.fail_transactions(move |_| {
        turn += 1;
        [None, Some(Fault::LoseAnswer), Some(Fault::Conflict)][turn % 3]
    });
    for id in ["e-1", "e-2", "e-3", "e-4"] {
        for name in ["pro", "pro", "free", "pro"] {
            let _ = set_plan(&admin, id, name).await.unwrap();
        }
    }
    let count = |name: &str| {
        let item = fleet.dynamo.item(&format!("default/PLAN#{name}"), "#ENTITIES");
        item["entities"]["N"].as_str().unwrap().to_owned()
    };
    assert_eq!([count("pro"), count("free")], ["4", "0"]);
    let _ = set_plan(&admin, "e-1", "").await.unwrap();
    assert!(admin.admin().delete_entity(&entity("e-2")).await.unwrap());
    let erased = admin.admin();
    let erased = erased.erase_entity(&entity("e-3"), LiveLeases::Refuse).await;
    assert!(erased.unwrap().entity);
    assert!(delete_last(&admin, false).await.is_err(), "e-4 has it");
    // By force it stays the plan of the entity, which leaves it afterwards.
    assert_eq!(admin.admin().delete_plan(&plan("pro"), true).await.unwrap(), 1);
    configure(&admin, &of_plan("pro"), [rpm(60)]).await;
    assert!(delete_last(&admin, false).await.is_err(), "e-4 has it again");
    let _ = set_plan(&admin, "e-4", "free").await.unwrap();
    assert_eq!([count("pro"), count("free")], ["0", "1"]);
    delete_last(&admin, true).await.unwrap();
    assert!(!admin.admin().has_plan(&plan("pro")).await.unwrap());
}

/// All writes of their moves are to one item.
#[tokio::test(start_paused = true)]
async fn many_entities_get_one_plan_at_once() {
    let fleet = Fleet::slow(millis(10)).await;
    let limiter = fleet.limiter().await;
    configure(&limiter, &of_plan("pro"), [rpm(600)]).await;
    let ids: Vec<_> = (0..50).map(|at| format!("e-{at}")).collect();
    let moves = ids.iter().map(|id| set_plan(&limiter, id, "pro"));
    let moves = futures_util::future::join_all(moves).await;
    assert!(moves.iter().all(|moved| matches!(moved, Ok(true))), "{moves:?}");
    let item = fleet.dynamo.item("default/PLAN#pro", "#ENTITIES");
    assert_eq!(item["entities"]["N"], "50");
}

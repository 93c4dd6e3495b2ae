//! Levels that an operator stops, exempts and starts.

use std::sync::{Arc, Mutex};
use weirgate_tests::assert_has;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::{exempt, set_entity, start, stop};

use serde_json::json;
use weirgate::{
    AuditChange, AuditSubject, Config, ConfigLevel, ConfigStatus, Decision, Error, Limit,
    OnUnavailable, OperationOutcome, RateLimiter, Switch,
};
use weirgate_testkit::Fault;

use crate::fixtures::fleet::{Fleet, ask, granted, millis, pass, secs};
use crate::fixtures::stored::{
    child, configure, entity, of_entity, of_plan, of_resource, on, resource, rpm, take_of,
};

fn limits() -> [Limit; 1] {
    [rpm(1_000)]
}

fn gpt4() -> ConfigLevel {
    of_resource("gpt-4")
}

fn own() -> ConfigLevel {
    on("e-1", "gpt-4")
}

/// The level at which a request is stopped; `None` if it is granted.
async fn stopped(decision: impl Future<Output = Result<Decision, Error>>) -> Option<ConfigLevel> {
    match decision.await.unwrap() {
        Decision::Disabled(disabled) => disabled.stopped_at,
        Decision::Granted(_) => None,
        other => panic!("{other:?} is neither stopped nor granted"),
    }
}

async fn stopped_in_code(limiter: &RateLimiter) -> Option<ConfigLevel> {
    stopped(ask(limiter, &limits(), &[("rpm", 1)]).send()).await
}

/// Also the switch of a plan without a configuration.
#[tokio::test(start_paused = true)]
async fn a_stop_says_what_it_changed_and_shows_in_peeks_and_lists() {
    for level in [gpt4(), of_plan("pro")] {
        let (_fleet, [operator]) = Fleet::of().await;
        let report = operator.admin().stop(&level).send().await.unwrap();
        let outcome = (report.outcome, report.before, report.after);
        assert_eq!(outcome, (OperationOutcome::Applied, None, Some(Switch::Stopped)));
        let peeked = operator.peek("e-1", "gpt-4").limits(&limits()).send().await.unwrap();
        assert_eq!(peeked.status == ConfigStatus::Disabled, level == gpt4());
        let switches = async || operator.admin().switches().await.unwrap().items;
        assert_eq!(switches().await, [(level.clone(), Switch::Stopped)]);
        start(&operator, &level).await;
        assert_eq!(switches().await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn the_narrowest_switch_decides_and_a_stopped_parent_stops_its_children() {
    let (_fleet, [limiter]) = Fleet::of().await;
    configure(&limiter, &ConfigLevel::System, limits()).await;
    set_entity(&limiter, &child("e-1", "team")).await;
    let configured = async |id| stopped(take_of(&limiter, [id, "gpt-4"], "rpm", 1)).await;
    stop(&limiter, &ConfigLevel::System).await;
    assert_eq!(configured("e-1").await, Some(ConfigLevel::System));
    // A child goes on although its parent falls under a wider stop.
    let child = of_entity("e-1");
    exempt(&limiter, &child).await;
    assert_eq!(configured("e-1").await, None);
    assert_eq!(configured("team").await, Some(ConfigLevel::System));
    start(&limiter, &child).await;
    exempt(&limiter, &gpt4()).await;
    assert_eq!(configured("e-1").await, None);
    // A stop of the parent itself is meant for its children.
    let team = of_entity("team");
    stop(&limiter, &team).await;
    assert_eq!(configured("e-1").await, Some(team.clone()));
    // Also a request that takes nothing from the parent.
    assert_eq!(stopped_in_code(&limiter).await, Some(team.clone()));
    let cascading = ask(&limiter, &limits(), &[("rpm", 1)]).cascading();
    assert_eq!(stopped(cascading.send()).await, Some(team.clone()));
    stop(&limiter, &own()).await;
    assert_eq!(stopped_in_code(&limiter).await, Some(own()));
    let expected = [
        (own(), Switch::Stopped),
        (team, Switch::Stopped),
        (gpt4(), Switch::Exempt),
        (ConfigLevel::System, Switch::Stopped),
    ];
    assert_eq!(limiter.admin().switches().await.unwrap().items, expected);
}

/// The monotonic clock of a frozen function stands still.
#[tokio::test(start_paused = true)]
async fn a_stop_is_known_after_a_freeze_before_anything_is_granted() {
    let (fleet, [operator, caller]) = Fleet::of().await;
    let _ = granted(&caller, &limits(), &[("rpm", 1)]).await;
    stop(&operator, &gpt4()).await;
    fleet.clock.skew(3_600_000);
    assert_eq!(stopped_in_code(&caller).await, Some(gpt4()));
}

/// Whether the tokens come with time or from another grant: the request looks at the switches as
/// others do.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_ends_when_it_is_stopped() {
    for limit in [Limit::concurrent("l", 1), Limit::per_hour("l", 1)] {
        let (_fleet, [operator, caller]) = Fleet::of().await;
        let limits = [limit.unwrap()];
        let held = granted(&caller, &limits, &[("l", 1)]).await;
        let waiting = || ask(&caller, &limits, &[("l", 1)]).wait_up_to(secs(7_200));
        let began = tokio::time::Instant::now();
        let stopping = async {
            pass(secs(1)).await;
            operator.admin().stop(&own()).send().await.unwrap()
        };
        let (level, _) = tokio::join!(stopped(waiting().send()), stopping);
        assert_eq!(level, Some(own()));
        assert!(began.elapsed() <= secs(61), "{:?}", began.elapsed());
        // One that is not stopped gets its token anyway.
        start(&operator, &own()).await;
        pass(secs(60)).await;
        drop(held);
        assert_eq!(stopped(waiting().send()).await, None);
    }
}

/// What an operator configures while a request waits for tokens.
#[derive(Debug, Clone, Copy)]
enum Change {
    Disabled,
    Lowered,
    Unlimited,
    /// The entity gets a parent that has nothing left.
    Parent,
}

/// Its attempts after a wait go by the limits that are in force then, as a new request's do.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_goes_by_limits_that_change_meanwhile() {
    use Change::{Disabled, Lowered, Parent, Unlimited};
    for (change, is_of_several) in [Disabled, Lowered, Unlimited, Parent]
        .into_iter()
        .flat_map(|change| [(change, false), (change, true)])
    {
        let what = format!("{change:?}, of several: {is_of_several}");
        let (fleet, [operator]) = Fleet::of().await;
        let caller = fleet.limiter_with(|builder| builder.config_ttl(secs(5)));
        let caller = caller.await;
        let slots = |count| [Limit::concurrent("slots", count).unwrap()];
        configure(&operator, &ConfigLevel::System, slots(2)).await;
        let take = async |limiter: &RateLimiter, entity| {
            let acquire = limiter.acquire(entity, "gpt-4").take("slots", 2);
            let decision = acquire.lease(secs(86_400)).send().await;
            decision.unwrap().granted().unwrap()
        };
        let _parents = take(&operator, "team").await;
        let held = take(&caller, "e-1").await;
        let began = tokio::time::Instant::now();
        let waiting = async {
            let acquire = caller.acquire("e-1", "gpt-4").take("slots", 2);
            let wait = secs(15);
            let decision = match is_of_several {
                false => acquire.wait_up_to(wait).send().await.unwrap().map(|_| ()),
                true => {
                    let other = caller.acquire("e-2", "gpt-4").take("slots", 1);
                    let both = caller.acquire_all([acquire, other]).wait_up_to(wait);
                    both.send().await.unwrap().map(|_| ())
                }
            };
            (decision, began.elapsed())
        };
        let changing = async {
            pass(secs(1)).await;
            let own = own();
            let status = match change {
                Disabled => ConfigStatus::Disabled,
                Lowered => return configure(&operator, &own, slots(1)).await,
                Unlimited => ConfigStatus::Unlimited,
                Parent => {
                    let entity = child("e-1", "team");
                    return operator.admin().set_entity(&entity).await.unwrap();
                }
            };
            let config = Config { status, ..Config::default() };
            operator.admin().set_config(&own, &config).await.unwrap();
        };
        let returning = async {
            pass(secs(10)).await;
            let _ = held.release().await.unwrap();
        };
        let ((decision, after), (), ()) = tokio::join!(waiting, changing, returning);
        let is_as_expected = match change {
            Disabled => matches!(decision, Decision::Disabled(_)),
            Lowered => matches!(decision, Decision::NeverFits(_)),
            Unlimited => decision.is_granted(),
            Parent => matches!(decision, Decision::Denied(_)),
        };
        assert!(is_as_expected, "{what}: {decision:?}");
        let most = if matches!(change, Parent) { 16 } else { 7 };
        assert!(after <= secs(most), "{what}: {after:?}");
    }
}

/// The switches are read beside the take. What was taken goes back, and counts as no acquire.
#[tokio::test(start_paused = true)]
async fn i3_a_stopped_request_leaves_nothing_taken_and_no_acquire() {
    let fleet = Fleet::slow(secs(1)).await;
    let (operator, caller) = (fleet.limiter().await, fleet.limiter().await);
    let _ = granted(&caller, &limits(), &[("rpm", 1)]).await;
    stop(&operator, &gpt4()).await;
    pass(secs(61)).await;
    assert_eq!(stopped_in_code(&caller).await, Some(gpt4()));
    pass(secs(5)).await;
    assert_eq!(fleet.tk_tc("rpm").await, (1_000_000, 1_000));
    assert_eq!(fleet.bucket().await.acquires.total, 1);
    // A request that is dropped when its tokens are taken, and the switches are still being read:
    // their read begins when that of another dropped request ends.
    start(&operator, &gpt4()).await;
    pass(secs(61)).await;
    let ask = || ask(&caller, &limits(), &[("rpm", 1)]).send();
    let first = tokio::time::timeout(millis(950), ask());
    let second = async {
        tokio::time::sleep(millis(100)).await;
        tokio::time::timeout(millis(1_400), ask()).await
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_err() && second.is_err());
    pass(secs(5)).await;
    assert_eq!(fleet.tk_tc("rpm").await, (1_000_000, 1_000));
    assert_eq!(fleet.bucket().await.acquires.total, 1);
}

/// One read of one item per process and minute, in the request that reads the bucket.
#[tokio::test(start_paused = true)]
async fn a_stop_reaches_requests_with_less_time_than_a_read_takes() {
    let fleet = Fleet::slow(millis(20)).await;
    let (limiter, operator) = (fleet.limiter().await, fleet.limiter().await);
    let _ = granted(&limiter, &limits(), &[("rpm", 1)]).await;
    stop(&operator, &ConfigLevel::System).await;
    pass(secs(61)).await;
    let limits = limits();
    let short = || ask(&limiter, &limits, &[("rpm", 1)]).timeout(millis(5)).send();
    let _ = short().await;
    pass(millis(100)).await;
    assert!(matches!(short().await, Ok(Decision::Disabled(_))));
    assert_eq!(limiter.stats().breaker_opened, 0);
}

#[tokio::test(start_paused = true)]
async fn requests_that_give_up_a_read_of_the_switches_leave_one_task_behind() {
    let fleet = Fleet::slow(secs(2)).await;
    let limiter = fleet.limiter().await;
    let (limits, before) = (limits(), tokio::runtime::Handle::current().metrics());
    let none = before.num_alive_tasks();
    let short = (0..500).map(|_| ask(&limiter, &limits, &[("rpm", 1)]).timeout(millis(5)).send());
    let all = futures_util::future::join_all(short).await;
    assert!(all.iter().all(Result::is_err));
    // The read, and the worker of the shard's queue.
    let left = before.num_alive_tasks() - none;
    assert!(left <= 3, "{left}");
}

#[tokio::test(start_paused = true)]
async fn switches_cost_one_read_per_process_and_ttl() {
    let (fleet, caller, meter) = Fleet::measured().await;
    let _ = granted(&fleet.limiter().await, &limits(), &[("rpm", 1)]).await;
    let _ = fleet.dynamo.take_operations();
    let _ = granted(&caller, &limits(), &[("rpm", 1)]).await;
    let first = fleet.dynamo.take_operations();
    assert_eq!(first["BatchGetItem"], 1);
    assert_eq!(first["UpdateItem"], 1);
    assert_eq!(first.len(), 2);
    let spent = meter.take();
    assert_eq!((spent.read, spent.table), (1.0, 1.0), "{spent:?}");
    for _ in 0..20 {
        let _ = granted(&caller, &limits(), &[("rpm", 1)]).await;
        pass(secs(2)).await;
    }
    assert_eq!(fleet.dynamo.take_operations().get("BatchGetItem"), None);
    pass(secs(20)).await;
    let _ = granted(&caller, &limits(), &[("rpm", 1)]).await;
    assert_eq!(fleet.dynamo.take_operations()["BatchGetItem"], 1);
}

/// The take that follows finds out whether the table can be used.
#[tokio::test(start_paused = true)]
async fn switches_that_cannot_be_read_stop_nothing_and_start_nothing() {
    let (fleet, [operator, caller]) = Fleet::of().await;
    let fails = Arc::new(Mutex::new(true));
    let until = Arc::clone(&fails);
    fleet.dynamo.fail_reads(move |_, request| {
        let text = request.to_string();
        (text.contains("#SWITCHES") && *until.lock().unwrap()).then_some(Fault::ServerError)
    });
    assert_eq!(stopped_in_code(&caller).await, None);
    *fails.lock().unwrap() = false;
    stop(&operator, &gpt4()).await;
    pass(secs(2)).await;
    assert_eq!(stopped_in_code(&caller).await, Some(gpt4()));
    *fails.lock().unwrap() = true;
    pass(secs(600)).await;
    assert_eq!(stopped_in_code(&caller).await, Some(gpt4()), "the last ones stay");
    // A damaged item neither.
    *fails.lock().unwrap() = false;
    let mut item = fleet.dynamo.item("default/SYSTEM#", "#SWITCHES");
    item["switches"] = json!({"S": "halted"});
    fleet.dynamo.put(&item);
    pass(secs(60)).await;
    assert_eq!(stopped_in_code(&caller).await, Some(gpt4()));
    let error = operator.admin().start(&gpt4()).send().await.unwrap_err();
    assert!(
        matches!(&error, Error::UnreadableItem { sk, .. } if sk == "#SWITCHES")
            && error.to_string().contains("switches"),
        "{error}"
    );
}

/// Every place of a switch, and every type of value: its level counts as stopped, and all others
/// are as they were.
#[tokio::test(start_paused = true)]
async fn a_switch_that_cannot_be_read_stops_its_level_and_hides_no_other() {
    let places = [
        ("system", Some(ConfigLevel::System)),
        ("resource#gpt-4", Some(gpt4())),
        ("entity#e-1", Some(of_entity("e-1"))),
        ("entity#e-1#gpt-4", Some(own())),
        ("tenant#e-1", None),
        ("resource#", None),
    ];
    let values = [
        json!({"S": "paused"}),
        json!({"S": "Exempt"}),
        json!({"N": "1"}),
        json!({"BOOL": false}),
        json!({"NULL": true}),
        json!({"L": [{"S": "stopped"}]}),
        json!({"M": {"S": {"S": "exempt"}}}),
    ];
    for (place, level) in places {
        for value in &values {
            let (fleet, [operator]) = Fleet::of().await;
            let other = of_entity("e-2");
            let third = of_resource("zzz");
            stop(&operator, &other).await;
            stop(&operator, &third).await;
            let mut item = fleet.dynamo.item("default/SYSTEM#", "#SWITCHES");
            item["switches"]["M"][place] = value.clone();
            fleet.dynamo.put(&item);

            // A process that has read nothing before.
            let caller = fleet.limiter().await;
            assert_eq!(stopped_in_code(&caller).await, level, "{place} {value}");
            let ask = caller.acquire("e-2", "api").limits(&limits());
            let stopped_at = stopped(ask.take("rpm", 1).send()).await;
            assert_eq!(stopped_at, Some(other.clone()), "{place} {value}");

            // Others are listed and changed, and it stays as it is.
            let listed = async || operator.admin().switches().await.unwrap();
            let list = listed().await;
            assert_eq!((list.items.len(), list.unreadable.len()), (2, 1));
            let error = &list.unreadable[0].error;
            let has_place = error.contains(&format!("switches.{place} "));
            assert!(has_place && !error.contains("delete the item"), "{error}");
            start(&operator, &third).await;
            exempt(&operator, &other).await;
            let stored = fleet.dynamo.item("default/SYSTEM#", "#SWITCHES");
            assert_eq!(stored["switches"]["M"][place], *value);
            let list = listed().await;
            assert_eq!(list.items, [(other.clone(), Switch::Exempt)]);
            assert_eq!(list.unreadable.len(), 1);

            // It is replaced by whatever is set.
            let Some(level) = level.clone() else { continue };
            let report = operator.admin().stop(&level).send().await.unwrap();
            assert_eq!(report.outcome, OperationOutcome::Applied);
            let list = listed().await;
            assert!(list.items.contains(&(level.clone(), Switch::Stopped)));
            assert_eq!((list.items.len(), list.unreadable.len()), (2, 0));
            fleet.dynamo.put(&item);
            start(&operator, &level).await;
            let list = listed().await;
            assert_eq!((list.items.len(), list.unreadable.len()), (2, 0));
        }
    }
}

/// Nor does a decision for outages that cannot be read.
#[tokio::test(start_paused = true)]
async fn a_decision_for_outages_that_cannot_be_read_hides_no_switch() {
    for policy in [None, Some(OnUnavailable::Deny)] {
        let (fleet, [operator]) = Fleet::of().await;
        stop(&operator, &gpt4()).await;
        let mut item = fleet.dynamo.item("default/SYSTEM#", "#SWITCHES");
        item["on_unavailable"] = json!({"S": "guess"});
        fleet.dynamo.put(&item);
        let caller = fleet.limiter().await;
        assert_eq!(stopped_in_code(&caller).await, Some(gpt4()));
        start(&operator, &gpt4()).await;
        let stored = fleet.dynamo.item("default/SYSTEM#", "#SWITCHES");
        assert_eq!(stored["on_unavailable"], item["on_unavailable"]);
        assert_eq!(operator.admin().switches().await.unwrap().unreadable.len(), 1);
        assert!(operator.admin().stored_on_unavailable().await.is_err());
        let _ = operator.admin().store_on_unavailable(policy).send().await.unwrap();
        assert_eq!(operator.admin().stored_on_unavailable().await.unwrap(), policy);
        assert!(operator.admin().switches().await.unwrap().unreadable.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn i7_a_stop_is_made_once_per_key_and_every_change_has_an_event() {
    let (fleet, [limiter]) = Fleet::of().await;
    let stop =
        async || limiter.admin().stop(&gpt4()).idempotency_key("INC-1").send().await.unwrap();
    assert_eq!(
        limiter.admin().stop(&gpt4()).dry_run().send().await.unwrap().outcome,
        OperationOutcome::DryRun
    );
    assert_eq!(limiter.admin().switches().await.unwrap().items, []);
    let at = fleet.now();
    assert_eq!(stop().await.outcome, OperationOutcome::Applied);
    pass(secs(1)).await;
    let again = limiter.admin().stop(&gpt4()).send().await.unwrap();
    assert_has!(again, outcome: OperationOutcome::Unchanged, before: Some(Switch::Stopped));
    start(&limiter, &gpt4()).await;
    // A late repetition of the stop.
    let late = stop().await;
    assert_has!(late, outcome: OperationOutcome::AppliedBefore(at), before: None, after: None);
    assert_eq!(limiter.admin().switches().await.unwrap().items, []);
    let error = limiter.admin().stop(&own()).idempotency_key("INC-1").send().await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("\"INC-1\" was used for another change, \"stop resource gpt-4\"")
            && text.contains("use a new key"),
        "{text}"
    );
    let error = limiter.admin().stop(&own()).idempotency_key("").send().await.unwrap_err();
    assert!(error.to_string().contains("idempotency key \"\" is not a valid name"), "{error}");
    let events =
        limiter.admin().audit(&AuditSubject::Resource(resource("gpt-4")), None).await.unwrap();
    let changes: Vec<_> = events.items.into_iter().map(|event| event.change).collect();
    let change = |before, after| AuditChange::Switch { level: gpt4(), before, after };
    assert_eq!(changes, [change(Some(Switch::Stopped), None), change(None, Some(Switch::Stopped))]);
}

#[tokio::test(start_paused = true)]
async fn i7_a_stop_is_made_although_responses_are_lost_and_others_stop_too() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::ServerErrorApplied] {
        let (fleet, [limiter]) = Fleet::of().await;
        let mut left = 1;
        fleet.dynamo.fail_transactions(move |_| {
            left -= 1;
            (left >= 0).then_some(fault)
        });
        let report = limiter.admin().stop(&gpt4()).send().await.unwrap();
        assert_eq!(report.outcome, OperationOutcome::Applied, "{fault:?}");
        let events =
            limiter.admin().audit(&AuditSubject::Resource(resource("gpt-4")), None).await.unwrap();
        assert_eq!(events.items.len(), 1, "{fault:?}");
    }
    let (_fleet, [one, other]) = Fleet::of().await;
    let (gpt4, own) = (gpt4(), own());
    let (first, second) =
        tokio::join!(one.admin().stop(&gpt4).send(), other.admin().stop(&own).send());
    assert_eq!(first.unwrap().outcome, OperationOutcome::Applied);
    assert_eq!(second.unwrap().outcome, OperationOutcome::Applied);
    assert_eq!(one.admin().switches().await.unwrap().items.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn more_switches_than_fit_are_refused() {
    let (fleet, [limiter]) = Fleet::of().await;
    let level = |at: usize| ConfigLevel::Entity(entity(&format!("e-{at}")));
    let all = (0..200).map(|at| (format!("entity#e-{at}"), json!({"S": "stopped"})));
    let all: serde_json::Map<_, _> = all.collect();
    fleet.dynamo.put(&json!({
        "PK": {"S": "default/SYSTEM#"}, "SK": {"S": "#SWITCHES"}, "cv": {"N": "1"}, "switches": {"M": all},
    }));
    let error = limiter.admin().stop(&level(200)).send().await.unwrap_err();
    assert!(error.to_string().starts_with("entity e-200 has no room: 200 levels"), "{error}");
    start(&limiter, &level(7)).await;
    assert_eq!(
        limiter.admin().stop(&level(200)).send().await.unwrap().outcome,
        OperationOutcome::Applied
    );
}

/// Every limiter knew it before the outage.
#[tokio::test(start_paused = true)]
async fn a_stored_decision_for_outages_replaces_that_of_limiters_and_requests() {
    let (fleet, [operator, caller]) = Fleet::of().await;
    let policy = OnUnavailable::Local { percent: 10 };
    let store = async |policy| {
        let report = operator.admin().store_on_unavailable(policy).send().await?;
        Ok::<_, weirgate::Error>((report.outcome, report.before))
    };
    let applied = OperationOutcome::Applied;
    assert_eq!(store(Some(policy)).await.unwrap(), (applied, None));
    // Switches stay as they are.
    stop(&operator, &own()).await;
    start(&operator, &own()).await;
    assert_eq!(operator.admin().stored_on_unavailable().await.unwrap(), Some(policy));
    let _ = granted(&caller, &limits(), &[("rpm", 1)]).await;
    let fails = |request: &serde_json::Value| (!request.is_null()).then_some(Fault::ServerError);
    fleet.dynamo.fail_when(fails);
    fleet.fail_reads(Fault::ServerError);
    let deny = ask(&caller, &limits(), &[("rpm", 100)]).on_unavailable(OnUnavailable::Deny);
    let first = taken(deny).await;
    assert!(first.degraded().is_some());
    let Decision::Denied(denied) = ask(&caller, &limits(), &[("rpm", 100)]).send().await.unwrap()
    else {
        panic!("the local bucket is empty");
    };
    assert!(denied.degraded.is_some());
    fleet.fail_writes(None);
    fleet.fail_reads(None);
    pass(secs(60)).await;
    assert_eq!(store(None).await.unwrap(), (applied, Some(policy)));
    let unchanged = OperationOutcome::Unchanged;
    assert_eq!(store(None).await.unwrap(), (unchanged, None));
    let error = store(Some(OnUnavailable::Local { percent: 0 })).await;
    assert!(error.unwrap_err().to_string().contains("percent must be 1 to 100, got 0"));
    let events = operator.admin().audit(&AuditSubject::System, None).await.unwrap().items;
    let change = |before, after| AuditChange::OnUnavailable { before, after };
    let changes: Vec<_> = events.into_iter().map(|event| event.change).collect();
    assert_eq!(changes, [change(Some(policy), None), change(None, Some(policy))]);
}

//! Every kind of request below a stopped level is stopped, whatever brings its limits and parents.

use std::collections::BTreeSet;
use weirgate_tests::stored::{set_config, set_entity, start, stop};

use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::timeout;
use weirgate::{
    Acquire, Builder, Config, ConfigLevel, ConfigStatus, Decision, Entity, Error, Grant, Limit,
    LimitMode, OnUnavailable, Prefetch, RateLimiter,
};
use weirgate_testkit::Fault;

use crate::fixtures::fleet::{Fleet, millis, pass, secs};
use crate::fixtures::stored::{File, entity, of_entity, of_resource, on, resource};

/// The answer to a request that is under way.
type Answer<'a> = BoxFuture<'a, Result<Decision<()>, Error>>;

/// What brings the limits of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitsFrom {
    Call,
    Release,
    CascadingCall,
    System,
    Own,
    File,
}

/// What brings the parents of a request: `team`, and its parent `org`; in a file `crew`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParentsFrom {
    Table,
    /// Parents that the entity does not cascade to.
    Beside,
    File,
    /// The file's parent in place of the table's.
    Both,
}

impl ParentsFrom {
    const fn is_in_table(self) -> bool {
        !matches!(self, Self::File)
    }

    const fn is_in_file(self) -> bool {
        matches!(self, Self::File | Self::Both)
    }
}

fn limits() -> [Limit; 3] {
    [
        Limit::per_minute("rpm", 6_000_000).unwrap(),
        Limit::per_minute("soft", 6_000_000).unwrap().in_mode(LimitMode::Soft),
        Limit::concurrent("slots", 1_000).unwrap(),
    ]
}

/// A table, a file, and the processes that use both.
struct World {
    fleet: Fleet,
    from: LimitsFrom,
    file: Option<File>,
}

impl World {
    async fn new(from: LimitsFrom, parents: ParentsFrom) -> Self {
        let (fleet, [admin]) = Fleet::of().await;
        let mut text = String::from("weirgate: 1\n");
        let level = match from {
            LimitsFrom::System => Some(ConfigLevel::System),
            LimitsFrom::Own => Some(on("e-1", "gpt-4")),
            _ => None,
        };
        if let Some(level) = level {
            let config = Config::of(limits());
            set_config(&admin, &level, &config).await;
        }
        if from == LimitsFrom::File {
            text += "system:\n  limits:\n    rpm: {per_minute: 6000000}\n    soft: {per_minute: 6000000, mode: soft}\n    slots: {concurrent: 1000}\n";
        }
        if parents.is_in_table() {
            for (id, parent) in [("e-1", "team"), ("team", "org")] {
                let entity = Entity::new(entity(id))
                    .child_of(entity(parent), parents != ParentsFrom::Beside);
                set_entity(&admin, &entity).await;
            }
        }
        if parents.is_in_file() {
            text += "entities:\n  e-1: {parent: crew}\n  crew: {parent: org}\n";
        }
        let has_file = from == LimitsFrom::File || parents.is_in_file();
        let file = has_file.then(|| File::new(&text));
        Self { fleet, from, file }
    }

    async fn builder(&self) -> Builder {
        let builder = self.fleet.builder().await;
        match &self.file {
            Some(file) => builder.limits_file(file.limits()),
            None => builder,
        }
    }

    async fn limiter(&self) -> RateLimiter {
        self.builder().await.build().await.unwrap()
    }

    async fn prefetching(&self) -> RateLimiter {
        let builder = self.builder().await;
        let builder = builder.prefetch("gpt-4", Prefetch::default());
        builder.build().await.unwrap()
    }

    fn ask<'a>(&self, limiter: &'a RateLimiter, id: &str, limit: &str) -> Acquire<'a> {
        let ask = limiter.acquire(id, "gpt-4").take(limit, 1);
        match self.from {
            LimitsFrom::Call => ask.limits(&limits()),
            LimitsFrom::Release => ask.limits(&limits()).limits_version(3),
            LimitsFrom::CascadingCall => ask.limits(&limits()).cascading(),
            LimitsFrom::System | LimitsFrom::Own | LimitsFrom::File => ask,
        }
    }

    /// One request of each kind, by its name.
    fn kinds<'a>(&self, limiter: &'a RateLimiter) -> Vec<(&'static str, Answer<'a>)> {
        let ask = |limit: &str| self.ask(limiter, "e-1", limit);
        let one = |ask: Acquire<'a>| ask.send().map(|all| all.map(|all| all.map(drop))).boxed();
        let several = limiter.acquire_all([ask("rpm")]);
        let several = several.send().map(|all| all.map(|all| all.map(drop)));
        vec![
            ("a rate", one(ask("rpm"))),
            ("slots", one(ask("slots"))),
            ("a lease", one(ask("rpm").lease(secs(5)))),
            ("up to", one(ask("soft").take_up_to("rpm", 1, 9))),
            ("soft", one(ask("soft"))),
            ("bypass", one(ask("rpm").bypass())),
            ("into debt", one(ask("rpm").into_debt())),
            ("shadow", one(ask("rpm").shadow())),
            ("waiting", one(ask("rpm").wait_up_to(secs(600)))),
            ("allowed in an outage", one(ask("rpm").on_unavailable(OnUnavailable::Allow))),
            ("several", several.boxed()),
        ]
    }

    async fn are_granted(&self, limiter: &RateLimiter, when: &str) {
        for (kind, request) in self.kinds(limiter) {
            let decision = request.await.unwrap();
            assert!(decision.is_granted(), "{when}: {kind}: {decision:?}");
        }
    }

    async fn are_stopped(&self, limiter: &RateLimiter, at: &ConfigLevel, when: &str, most: usize) {
        for (kind, request) in self.kinds(limiter).into_iter().take(most) {
            match request.await.unwrap() {
                Decision::Disabled(by) => {
                    assert_eq!(by.stopped_at.as_ref(), Some(at), "{when}: {kind}");
                }
                other => panic!("{when}: {kind}: {other:?}"),
            }
        }
    }

    async fn grant(&self, limiter: &RateLimiter) -> Grant {
        let decision = self.ask(limiter, "e-1", "rpm").send().await.unwrap();
        decision.granted().expect("nothing is stopped")
    }
}

/// The levels whose stop reaches the requests.
fn levels(parents: ParentsFrom) -> Vec<ConfigLevel> {
    let mut levels = vec![ConfigLevel::System, of_resource("gpt-4")];
    let mut ids = vec!["e-1", "org"];
    ids.extend(parents.is_in_table().then_some("team"));
    ids.extend(parents.is_in_file().then_some("crew"));
    for id in ids {
        levels.push(of_entity(id));
        levels.push(on(id, "gpt-4"));
    }
    levels
}

async fn check(from: LimitsFrom, parents: ParentsFrom) {
    let world = World::new(from, parents).await;
    let (operator, caller) = (world.limiter().await, world.limiter().await);
    let prefetching = world.prefetching().await;
    for limiter in [&operator, &caller, &prefetching] {
        world.are_granted(limiter, "before").await;
    }
    for level in levels(parents) {
        let when = |when: &str| format!("{from:?}, {parents:?}, {level}: {when}");
        let mut grant = world.grant(&caller).await;
        drop(world.grant(&operator).await);
        drop(world.grant(&prefetching).await);
        stop(&operator, &level).await;
        let stopped = async |limiter, at: &str, most| {
            world.are_stopped(limiter, &level, &when(at), most).await;
        };
        stopped(&operator, "at once in its process", 2).await;
        pass(secs(60)).await;
        stopped(&caller, "a minute later", usize::MAX).await;
        stopped(&prefetching, "with prefetched tokens", 1).await;
        let more = grant.take_more("rpm", 1).await.unwrap();
        assert!(matches!(more, Decision::Disabled(_)), "{more:?}");
        let _ = grant.adjust("rpm", 2).await.unwrap();
        let _ = grant.release().await.unwrap();
        let new = world.limiter().await;
        stopped(&new, "in a new process", 1).await;
        // The last answers stay in force.
        let fails = |_: &str, _: &serde_json::Value| Some(Fault::ServerError);
        world.fleet.dynamo.fail_reads(fails);
        pass(secs(60)).await;
        for limiter in [&operator, &caller] {
            stopped(limiter, "in an outage", 1).await;
        }
        world.fleet.fail_reads(None);
        start(&operator, &level).await;
        pass(secs(60)).await;
    }
}

/// Each place of limits and each place of parents, beside the common one and beside a file.
#[tokio::test(start_paused = true)]
async fn a_stop_reaches_every_kind_of_request_whatever_brings_its_limits() {
    for (from, parents) in [
        (LimitsFrom::Call, ParentsFrom::Table),
        (LimitsFrom::Call, ParentsFrom::Both),
        (LimitsFrom::Release, ParentsFrom::Beside),
        (LimitsFrom::CascadingCall, ParentsFrom::Table),
        (LimitsFrom::CascadingCall, ParentsFrom::File),
        (LimitsFrom::System, ParentsFrom::Table),
        (LimitsFrom::System, ParentsFrom::File),
        (LimitsFrom::Own, ParentsFrom::Both),
        (LimitsFrom::File, ParentsFrom::Table),
        (LimitsFrom::File, ParentsFrom::Both),
    ] {
        check(from, parents).await;
    }
}

/// Requests of others: of a sibling, on another resource, and of the parent of a stopped child.
#[tokio::test(start_paused = true)]
async fn a_stop_of_a_parent_on_a_resource_reaches_its_children_there_alone() {
    let world = World::new(LimitsFrom::Call, ParentsFrom::Table).await;
    let limiter = world.limiter().await;
    let stop = async |level: ConfigLevel| {
        stop(&limiter, &level).await;
    };
    stop(on("team", "api")).await;
    stop(of_entity("e-2")).await;
    world.are_granted(&limiter, "another resource").await;
    stop(of_entity("e-1")).await;
    let parent = world.ask(&limiter, "team", "rpm").send().await.unwrap();
    assert!(parent.is_granted(), "{parent:?}");
}

/// A stop costs a request of a child one read of each ancestor a minute, and others nothing.
#[tokio::test(start_paused = true)]
async fn ancestors_are_read_once_a_minute_while_an_entity_is_stopped() {
    let world = World::new(LimitsFrom::Call, ParentsFrom::Table).await;
    let caller = world.limiter().await;
    let reads = || {
        let operations = world.fleet.dynamo.take_operations();
        operations.get("BatchGetItem").copied().unwrap_or_default()
    };
    drop(world.grant(&caller).await);
    assert_eq!(
        {
            let _ = reads();
            drop(world.grant(&caller).await);
            reads()
        },
        0
    );
    let other = of_entity("e-2");
    stop(&world.limiter().await, &other).await;
    pass(secs(60)).await;
    for _minute in 0..3 {
        let _ = reads();
        for _ in 0..20 {
            drop(world.grant(&caller).await);
        }
        // The switches, the entity, its parent and the parent of that.
        let count = reads();
        assert!((1..=4).contains(&count), "{count}");
        pass(secs(60)).await;
    }
}

/// A change of switches tells its process of those of others too, and later reads may fail. Requests
/// that wait end at once.
#[tokio::test(start_paused = true)]
async fn a_stop_holds_at_once_in_its_process_whatever_reads_fail() {
    let slow = [Limit::per_hour("rph", 1).unwrap()];
    let mut ended = 0;
    for seed in 0..24 {
        let mut random = Rng::with_seed(seed);
        let (fleet, [operator, other]) = Fleet::of().await;
        let levels = [
            ConfigLevel::System,
            of_resource("gpt-4"),
            of_resource("slow"),
            of_entity("e-1"),
            of_entity("e-2"),
            on("e-1", "gpt-4"),
        ];
        let mut stopped = BTreeSet::new();
        for step in 0..random.usize(1..10) {
            fleet.fail_reads(None);
            for _ in 0..random.usize(..3) {
                change(&other, random.choice(&levels).unwrap(), random.bool(), &mut stopped).await;
            }
            let id = random.choice(["e-1", "e-2"]).unwrap();
            let ask = operator.acquire(id, "slow").limits(&slow).take("rph", 1);
            // The circuit breaker may still be open.
            let _ = ask.clone().send().await;
            let mut waiting = ask.wait_up_to(secs(7_200)).send().boxed();
            let begun = timeout(secs(random.u64(1..90)), &mut waiting).await;

            let faults = [None, Some(Fault::LoseAnswer), Some(Fault::Conflict)];
            let mut faults = random.choice(faults).unwrap().into_iter();
            fleet.dynamo.fail_transactions(move |_| faults.next());
            let level = random.choice(&levels).unwrap();
            change(&operator, level, random.u8(..4) > 0, &mut stopped).await;
            let fault = random.choice([Fault::ServerError, Fault::LoseRequest]).unwrap();
            let failing = random.choice(["", "#SWITCHES", "none"]).unwrap();
            let fails = move |_: &str, request: &serde_json::Value| {
                request.to_string().contains(failing).then_some(fault)
            };
            fleet.dynamo.fail_reads(fails);

            let at = format!("seed {seed}, step {step}: {stopped:?}, reads of {failing:?} fail");
            let is_stopped = |id: &str, on: &str| {
                let levels = ConfigLevel::of(&entity(id), &resource(on));
                levels.iter().any(|level| stopped.contains(level))
            };
            if begun.is_err() {
                let now = timeout(millis(1), &mut waiting).await;
                assert_eq!(now.is_ok(), is_stopped(id, "slow"), "{at}: {now:?}");
                ended += usize::from(now.is_ok());
            }
            for _ in 0..3 {
                for id in ["e-1", "e-2"] {
                    let ask = operator.acquire(id, "gpt-4").limits(&limits());
                    let answer = ask.take("rpm", 1).send().await;
                    let is_disabled = matches!(answer, Ok(Decision::Disabled(_)));
                    assert_eq!(is_disabled, is_stopped(id, "gpt-4"), "{at}: {id}: {answer:?}");
                }
                pass(secs(random.u64(1..90))).await;
            }
        }
    }
    assert!(ended > 5, "{ended} waits ended");
}

/// Stops or starts a level.
async fn change(
    limiter: &RateLimiter,
    level: &ConfigLevel,
    stops: bool,
    stopped: &mut BTreeSet<ConfigLevel>,
) {
    let admin = limiter.admin();
    let edit = if stops { admin.stop(level) } else { admin.start(level) };
    edit.send().await.unwrap();
    match stops {
        true => drop(stopped.insert(level.clone())),
        false => drop(stopped.remove(level)),
    }
}

/// A full list of switches has room for the system's, and so has one that cannot be read.
#[tokio::test(start_paused = true)]
async fn the_system_can_be_stopped_whatever_the_item_has() {
    let full: serde_json::Map<_, _> = (0..200)
        .map(|at| (format!("entity#e-{at}"), serde_json::json!({"S": "stopped"})))
        .collect();
    let cases = [
        serde_json::json!({"cv": {"N": "7"}, "switches": {"M": full}}),
        serde_json::json!({"cv": {"N": "7"}, "switches": {"S": "halted"}}),
        serde_json::json!({"cv": {"S": "many"}, "switches": {"M": {}}}),
        serde_json::json!({"switches": {"M": {"resource#a": {"S": "stopped"}}}}),
        serde_json::json!({"cv": {"N": "7"}}),
    ];
    for mut item in cases {
        let fleet = Fleet::new().await;
        item["PK"] = serde_json::json!({"S": "default/SYSTEM#"});
        item["SK"] = serde_json::json!({"S": "#SWITCHES"});
        fleet.dynamo.put(&item);
        let operator = fleet.limiter().await;
        let stopped = operator.admin().stop(&ConfigLevel::System).send().await;
        assert!(stopped.is_ok(), "{item}: {stopped:?}");
        for limiter in [&operator, &fleet.limiter().await] {
            let ask = limiter.acquire("x", "gpt-4").limits(&limits()).take("rpm", 1);
            let decision = ask.send().await.unwrap();
            assert!(matches!(decision, Decision::Disabled(_)), "{item}: {decision:?}");
        }
        let start = operator.admin().start(&ConfigLevel::System).send().await.unwrap();
        assert_eq!(start.before, Some(weirgate::Switch::Stopped));
    }
}

/// Reads and stops of other tenants: a tenant whose items cannot be read hides no stop.
#[tokio::test(start_paused = true)]
async fn limits_that_cannot_be_read_hide_no_stop() {
    for policy in [OnUnavailable::Error, OnUnavailable::Allow] {
        let (fleet, [operator, caller]) = Fleet::of().await;
        let config = Config::of(limits());
        let level = ConfigLevel::System;
        set_config(&operator, &level, &config).await;
        let ask = |id: &str| caller.acquire(id, "gpt-4").take("rpm", 1).on_unavailable(policy);
        assert!(ask("e-1").send().await.unwrap().is_granted());
        fleet.dynamo.fail_reads(|_, request| {
            request.to_string().contains("#CONFIG").then_some(Fault::ServerError)
        });
        pass(secs(59)).await;
        stop(&operator, &level).await;
        for _ in 0..3 {
            pass(secs(1)).await;
            let unknown = ask("e-2").send().await;
            assert!(!unknown.is_ok_and(|decision| decision.is_granted()));
        }
        pass(secs(58)).await;
        for id in ["e-1", "e-2"] {
            let decision = ask(id).send().await.unwrap();
            assert!(matches!(decision, Decision::Disabled(_)), "{id}: {decision:?}");
        }
    }
}

/// One in shadow mode is left out then, and those that are enforced have their time again.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_together_outlast_the_stop_of_one_in_shadow_mode() {
    for (is_stop, is_queued) in [(true, false), (true, true), (false, false), (false, true)] {
        let what = format!("stop: {is_stop}, queued: {is_queued}");
        let (fleet, [operator]) = Fleet::of().await;
        let caller = fleet.limiter_with(|builder| builder.config_ttl(secs(5)));
        let caller = caller.await;
        let limit = Limit::per_minute("rpm", 60).unwrap();
        set_config(&operator, &ConfigLevel::System, &Config::of([limit])).await;
        let ask = |id, amount| {
            let acquire = caller.acquire(id, "gpt-4").take("rpm", amount);
            acquire.timeout(secs(1))
        };
        assert!(ask("e-1", 60).send().await.unwrap().is_granted());
        let both = [ask("e-1", 60), ask("trial", 1).shadow()];
        let both = caller.acquire_all(both);
        let waiting = match is_queued {
            false => both.wait_up_to(secs(120)),
            true => both.queue_up_to(secs(120)),
        };
        let stopping = async {
            pass(secs(1)).await;
            let level = of_entity("trial");
            if is_stop {
                return stop(&operator, &level).await;
            }
            let config = Config { status: ConfigStatus::Disabled, ..Config::default() };
            set_config(&operator, &level, &config).await;
        };
        let (decision, ()) = tokio::join!(waiting.send(), stopping);
        assert!(decision.expect(&what).is_granted(), "{what}");
    }
}

//! Where a limiter is used: on its runtime, on others, on none, and after its runtime has ended.

use std::collections::BTreeSet;
use std::future::ready;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::runtime::Runtime;
use tokio::time::Instant;
use weirgate::blocking::Wait;
use weirgate::{
    AuditSubject, Clock, Config, ConfigChange, ConfigFilter, ConfigLevel, ConnectOptions, Decision,
    Entity, EntityDescription, EpochMillis, Error, Grant, Grants, Granularity, Limit, LiveLeases,
    Prefetch, RateLimiter, ScopeError, SystemClock, UsageReport, UsageScope, VendorReport, Window,
};
use weirgate_testkit::server::serve;
use weirgate_testkit::{Dynamo, Fault};
use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::{Fleet, ask, leased, millis, rpm, secs, slots};
use weirgate_tests::stored::{configure, entity, resource};

/// What the buckets of a scenario hold.
const SLOTS: i64 = 1_000;
/// After this time a call counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(60);

fn limits() -> [Limit; 2] {
    [slots(SLOTS), rpm(1_000_000)]
}

/// What a call can settle: a slot each.
struct Given {
    grant: Grant,
    grants: Grants,
}

type Call = for<'a> fn(&'a RateLimiter, Given) -> BoxFuture<'a, Result<(), Error>>;

macro_rules! calls {
    ($($name:literal, |$limiter:ident, $given:ident| $call:expr;)*) => {
        const CALLS: &[(&str, Call)] = &[$((
            $name,
            |$limiter, $given| Box::pin(async move { $call.map(drop) }),
        )),*];
    };
}

calls! {
    "Acquire::send", |limiter, _given| granted(ask(limiter, &limits(), TAKES).send().await);
    "Acquire::send_now", |limiter, _given| {
        granted(ask(limiter, &limits(), TAKES).send_now().await)
    };
    "Acquire::scope", |limiter, _given| {
        let scope = ask(limiter, &limits(), TAKES).scope(async |_| Ok::<_, Error>(()));
        scope.await.map_err(|error| match error {
            ScopeError::Limiter(error) | ScopeError::Work(error) => error,
            error => panic!("{error}"),
        })
    };
    "prefetched", |limiter, _given| {
        let request = limiter.acquire("e-1", "prefetched").limits(&[rpm(600)]).take("rpm", 1);
        granted(request.send().await)
    };
    "dropped", |_limiter, given| ready(Ok::<_, Error>(given)).await;
    "AcquireAll::send", |limiter, _given| {
        let one = |name| limiter.acquire(name, "gpt-4").limits(&limits()).take("slots", 1);
        granted(limiter.acquire_all([one("e-1"), one("e-2")]).send().await)
    };
    "AcquireAll::send_now", |limiter, _given| {
        let one = |name| limiter.acquire(name, "gpt-4").limits(&limits()).take("slots", 1);
        granted(limiter.acquire_all([one("e-1"), one("e-2")]).send_now().await)
    };
    "Grant::adjust", |_limiter, given| { let mut given = given; given.grant.adjust("rpm", 3).await };
    "Grant::adjust_milli", |_limiter, given| {
        let mut given = given;
        given.grant.adjust_milli("rpm", weirgate::MilliTokens(1_500)).await
    };
    "Grant::give_back_milli", |_limiter, given| {
        let mut given = given;
        given.grant.give_back_milli("rpm", weirgate::MilliTokens(500)).await
    };
    "Grant::give_back", |_limiter, given| { let mut given = given; given.grant.give_back("rpm", 1).await };
    "Grant::take_more", |_limiter, given| {
        let mut given = given;
        granted(given.grant.take_more("rpm", 1).await)
    };
    "Grant::take_more_of", |_limiter, given| {
        let mut given = given;
        granted(Grant::take_more_of(&mut given.grants, &[(0, "slots", 1)]).await)
    };
    "Grant::renew", |_limiter, given| { let mut given = given; given.grant.renew(secs(7_200)).await };
    "Grant::release_with", |_limiter, given| {
        given.grant.release_with(&[("rpm", weirgate::MilliTokens(500))], &[]).await
    };
    "Grant::release", |_limiter, given| given.grant.release().await;
    "Grant::roll_back", |_limiter, given| given.grant.roll_back().await;
    "Grant::vendor_said", |_limiter, given| given.grant.vendor_said(429, [("retry-after", "1")]).await;
    "RateLimiter::report_vendor", |limiter, _given| {
        limiter.report_vendor("e-4", "gpt-4", &VendorReport::new(429)).await
    };
    "PauseEdit::send", |limiter, _given| limiter.admin().resume("e-1", "gpt-4").send().await;
    "Grants::release", |_limiter, given| given.grants.release().await;
    "Grants::roll_back", |_limiter, given| given.grants.roll_back().await;
    "Peek::send", |limiter, _given| limiter.peek("e-1", "gpt-4").limits(&limits()).send().await;
    "Refund::send", |limiter, _given| {
        limiter.refund("e-1", "gpt-4").limits(&limits()).give_back("rpm", 0).send().await
    };
    "RateLimiter::usage", |limiter, _given| {
        limiter.usage("e-1", "gpt-4", Window::Daily, SystemClock.now()).await
    };
    "UsageReport::page", |limiter, _given| report(limiter).page(None).await;
    "UsageReport::total", |limiter, _given| report(limiter).total().await;
    "UsageReport::top", |limiter, _given| report(limiter).top(&"rpm".try_into().unwrap(), 3).await;
    "UsageReport::top_by_acquires", |limiter, _given| report(limiter).top_by_acquires(3).await;
    "RateLimiter::check", |limiter, _given| limiter.check().await;
    "Admin::create_table", |limiter, _given| match limiter.admin().create_table().await {
        Err(Error::Store(error)) if error.to_string().contains("exists") => Ok(()),
        other => other,
    };
    "Admin::config", |limiter, _given| limiter.admin().config(&ConfigLevel::System).await;
    "Admin::configs", |limiter, _given| limiter.admin().configs(&ConfigFilter::Resources, None).await;
    "Admin::read_configs", |limiter, _given| limiter.admin().read_configs(&[ConfigLevel::System]).await;
    "Admin::check_configs", |limiter, _given| limiter.admin().check_configs(&[(ConfigLevel::System, None)]).await;
    "Admin::change_config", |limiter, _given| {
        limiter.admin().change_config(&other(), &ConfigChange::Replace(config()), None).await
    };
    "Admin::effective_limits", |limiter, _given| {
        limiter.admin().effective_limits(&entity("e-1"), &resource("gpt-4")).await
    };
    "Admin::set_config", |limiter, _given| limiter.admin().set_config(&other(), &config()).await;
    "Admin::replace_config", |limiter, _given| {
        limiter.admin().replace_config(&ConfigLevel::Entity(entity("other")), 0, Some(&config())).await
    };
    "Admin::delete_config", |limiter, _given| limiter.admin().delete_config(&other()).await;
    "Admin::set_entity", |limiter, _given| limiter.admin().set_entity(&user()).await;
    "Admin::replace_entity", |limiter, _given| {
        limiter.admin().replace_entity(&user().id, None, Some(&user())).await
    };
    "Admin::order_entities", |limiter, _given| limiter.admin().order_entities(&[user()]).await;
    "Admin::entity", |limiter, _given| limiter.admin().entity(&user().id).await;
    "Admin::read_entities", |limiter, _given| limiter.admin().read_entities(&[user().id]).await;
    "Admin::entities", |limiter, _given| limiter.admin().entities(None).await;
    "Admin::children", |limiter, _given| limiter.admin().children(&user().id, None).await;
    "Admin::namespaces", |limiter, _given| limiter.admin().namespaces(None).await;
    "Admin::set_entity_description", |limiter, _given| {
        limiter.admin().set_entity(&user()).await?;
        limiter.admin().set_entity_description(&user().id, &EntityDescription::default()).await
    };
    "Admin::edit_entity_description", |limiter, _given| {
        limiter.admin().set_entity(&user()).await?;
        limiter.admin().edit_entity_description(&user().id, Ok::<_, Error>).await
    };
    "Admin::entity_description", |limiter, _given| limiter.admin().entity_description(&user().id).await;
    "Admin::check_entities", |limiter, _given| limiter.admin().check_entities(&[user()], &[]).await;
    "Admin::set_plan", |limiter, _given| limiter.admin().set_plan(&user().id, None).await;
    "Admin::has_plan", |limiter, _given| limiter.admin().has_plan(&"pro".try_into().unwrap()).await;
    "Admin::plan_entities", |limiter, _given| {
        limiter.admin().plan_entities(&"pro".try_into().unwrap(), None).await
    };
    "Admin::plans", |limiter, _given| limiter.admin().plans(None).await;
    "Admin::preview_plan_deletion", |limiter, _given| limiter.admin().preview_plan_deletion(&"pro".try_into().unwrap(), true).await;
    "Admin::delete_plan", |limiter, _given| limiter.admin().delete_plan(&"pro".try_into().unwrap(), true).await;
    "Admin::delete_entity", |limiter, _given| limiter.admin().delete_entity(&user().id).await;
    "Admin::erase_entity", |limiter, _given| {
        limiter.admin().erase_entity(&entity("gone"), LiveLeases::Refuse).await
    };
    "Admin::preview_erasure", |limiter, _given| {
        limiter.admin().preview_erasure(&entity("gone"), LiveLeases::Refuse).await
    };
    "Purge::send", |limiter, _given| limiter.admin().purge_namespace("default").dry_run().send().await;
    "Admin::audit_all", |limiter, _given| limiter.admin().audit_all(None).await;
    "Admin::audit", |limiter, _given| limiter.admin().audit(&AuditSubject::System, None).await;
    "Admin::last_changes", |limiter, _given| limiter.admin().last_changes(&AuditSubject::System, 5).await;
    "Admin::bucket", |limiter, _given| limiter.admin().bucket(&entity("e-1"), &resource("gpt-4")).await;
    "Admin::entity_buckets", |limiter, _given| limiter.admin().entity_buckets(&entity("e-1"), None).await;
    "Admin::resource_buckets", |limiter, _given| {
        limiter.admin().resource_buckets(&resource("gpt-4"), None).await
    };
    "Admin::resource_buckets_starting_with", |limiter, _given| {
        limiter.admin().resource_buckets_starting_with(&resource("gpt-4"), "e", None).await
    };
    "Admin::leases", |limiter, _given| limiter.admin().leases("e-1", "gpt-4").await;
    "Admin::release_lease", |limiter, _given| limiter.admin().release_lease("e-1", "gpt-4", "none").await;
    "Admin::set_shards", |limiter, _given| limiter.admin().set_shards("e-3", "gpt-4", &[rpm(600)], 2).await;
    "LimitsEdit::send", |limiter, _given| {
        limiter.admin().set_config(&other(), &config()).await?;
        limiter.admin().apply_limits("e-3", "other").send().await
    };
    "BalanceEdit::send", |limiter, _given| {
        limiter.admin().edit_balances("e-1", "gpt-4").reset("rpm").send().await
    };
    "PolicyEdit::send", |limiter, _given| limiter.admin().store_on_unavailable(None).send().await;
    "Admin::stored_on_unavailable", |limiter, _given| limiter.admin().stored_on_unavailable().await;
    "SwitchEdit::send", |limiter, _given| limiter.admin().stop(&other()).send().await;
    "Admin::switches", |limiter, _given| limiter.admin().switches().await;
    "Admin::switches_in_force", |limiter, _given| limiter.admin().switches_in_force().await;
    "RateLimiter::shutdown", |limiter, _given| limiter.shutdown().await;
}

const TAKES: &[(&str, i64)] = &[("slots", 1), ("rpm", 2)];

fn granted<T>(decision: Result<Decision<T>, Error>) -> Result<T, Error> {
    Ok(decision?.granted().expect("there is enough"))
}

fn report(limiter: &RateLimiter) -> UsageReport<'_> {
    let now = SystemClock.now();
    let range = EpochMillis(now.0 - 1_000)..now;
    let scope = UsageScope::Resource(resource("gpt-4"));
    limiter.admin().usage_report(scope, Granularity::Hourly, range).unwrap()
}

fn config() -> Config {
    Config::of([rpm(60)])
}

fn other() -> ConfigLevel {
    ConfigLevel::Resource(resource("other"))
}

fn user() -> Entity {
    Entity::new(entity("user"))
}

#[test]
fn every_public_call_is_among_those_that_are_made_everywhere() {
    // Where a limiter is built, what tests an application, and what passes calls on to a grant.
    let elsewhere = ["Builder::", "FakeClock::", "testing::", "tower::"];
    let api = include_str!("../../../data/api.txt").lines();
    let calls = api.filter_map(|line| line.strip_prefix("pub async fn weirgate::"));
    let name = |call: &str| {
        let mut depth = 0;
        let path = call.split('(').next().unwrap_or_default().chars();
        let path = path.filter(|c| {
            depth += i32::from(*c == '<');
            let is_name = depth == 0;
            depth -= i32::from(*c == '>');
            is_name
        });
        path.collect::<String>()
    };
    let public: BTreeSet<_> = calls.map(name).collect();
    let is_here = |name: &&String| !elsewhere.iter().any(|prefix| name.starts_with(prefix));
    let public: BTreeSet<_> = public.iter().filter(is_here).map(String::as_str).collect();
    let here = CALLS.iter().map(|(name, _)| *name).filter(|name| name.contains("::"));
    assert_eq!(public, here.collect());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavor {
    CurrentThread,
    MultiThread,
}

fn runtime(flavor: Flavor) -> Runtime {
    let mut builder = match flavor {
        Flavor::CurrentThread => tokio::runtime::Builder::new_current_thread(),
        Flavor::MultiThread => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Where a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Home,
    /// `.wait()` on a worker of the home runtime.
    HomeWorker,
    /// `.wait()` within `spawn_blocking` of the home runtime.
    HomeBlocking,
    Other(Flavor),
    /// `.wait()` within `spawn_blocking` of another runtime.
    OtherBlocking(Flavor),
    /// `.wait()` on a thread without a runtime.
    Wait,
    /// A thread without a runtime, by another executor.
    Bare,
}

const ELSEWHERE: [Place; 6] = [
    Place::Other(Flavor::CurrentThread),
    Place::Other(Flavor::MultiThread),
    Place::OtherBlocking(Flavor::CurrentThread),
    Place::OtherBlocking(Flavor::MultiThread),
    Place::Wait,
    Place::Bare,
];

/// Makes a call at a place. It may neither panic nor hang.
fn at<T: Send + 'static>(
    place: Place,
    home: Option<&Arc<Runtime>>,
    call: impl Future<Output = T> + Send + 'static,
) -> T {
    let (send, done) = channel();
    let home = home.cloned();
    let at_home = || home.as_deref().expect("the runtime runs");
    let other = match place {
        Place::Other(flavor) | Place::OtherBlocking(flavor) => Some(runtime(flavor)),
        _ => None,
    };
    match place {
        Place::HomeWorker => drop(at_home().spawn(async move { send.send(call.wait()) })),
        Place::HomeBlocking => drop(at_home().spawn_blocking(move || send.send(call.wait()))),
        Place::OtherBlocking(_) => {
            let other = other.as_ref().expect("it was made");
            drop(other.spawn_blocking(move || send.send(call.wait())));
        }
        _ => drop(thread::spawn(move || {
            send.send(match (place, other) {
                (Place::Other(_), Some(other)) => other.block_on(call),
                (Place::Bare, _) => park_until(call),
                (Place::Wait, _) => call.wait(),
                _ => home.expect("the runtime runs").block_on(call),
            })
        })),
    }
    let error = |error| panic!("a call at {place:?} panicked or hangs: {error}");
    done.recv_timeout(HANGS_AFTER).unwrap_or_else(error)
}

/// Runs a future without tokio.
fn park_until<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Builds a limiter on HTTP.
async fn connected(endpoint: String) -> RateLimiter {
    let connection = ConnectOptions { local_endpoint: Some(endpoint), ..ConnectOptions::default() };
    let builder = RateLimiter::builder("weirgate").connection(connection);
    let builder = builder.prefetch("prefetched", Prefetch::default());
    builder.build().await.unwrap()
}

/// Returns what a call may settle.
async fn given(limiter: &RateLimiter) -> Given {
    let hour = secs(3_600);
    let one = ask(limiter, &limits(), TAKES).lease(hour).send();
    let all = limiter.acquire_all([ask(limiter, &limits(), TAKES).lease(hour)]);
    Given { grant: granted(one.await).unwrap(), grants: granted(all.send().await).unwrap() }
}

/// Builds a limiter, with what each call may settle.
async fn prepare(endpoint: String) -> (RateLimiter, Vec<Given>) {
    let limiter = connected(endpoint).await;
    let given = join_all(CALLS.iter().map(|_| given(&limiter))).await;
    (limiter, given)
}

/// Requires that all slots return.
async fn all_slots_return(endpoint: String) {
    let limiter = connected(endpoint).await;
    let all = ask(&limiter, &limits(), &[("slots", SLOTS)]);
    let _ = granted(all.wait_up_to(HANGS_AFTER).send().await).unwrap();
}

fn table() -> String {
    serve(&Dynamo::new().wait())
}

#[test]
fn a_limiter_on_a_runtime_with_threads_works_everywhere() {
    let home = Arc::new(runtime(Flavor::MultiThread));
    let own = [Place::Home, Place::HomeWorker, Place::HomeBlocking];
    for place in own.into_iter().chain(ELSEWHERE) {
        let endpoint = table();
        let (limiter, given) = at(Place::Home, Some(&home), prepare(endpoint.clone()));
        for ((name, call), given) in CALLS.iter().zip(given) {
            let limiter = limiter.clone();
            let done = at(place, Some(&home), async move { call(&limiter, given).await });
            done.unwrap_or_else(|error| panic!("{name} at {place:?}: {error}"));
        }
        at(Place::Home, Some(&home), all_slots_return(endpoint));
    }
}

/// The error comes with the first poll. What the calls were given returns once the runtime runs.
#[test]
fn a_limiter_on_a_current_thread_runtime_refuses_at_once_what_comes_from_elsewhere() {
    let home = Arc::new(runtime(Flavor::CurrentThread));
    for place in [Place::Home, Place::HomeBlocking].into_iter().chain(ELSEWHERE) {
        let endpoint = table();
        let (limiter, given) = at(Place::Home, Some(&home), prepare(endpoint.clone()));
        for ((name, call), given) in CALLS.iter().zip(given) {
            let limiter = limiter.clone();
            let done = match place {
                Place::Home => at(place, Some(&home), async move { call(&limiter, given).await }),
                _ => at(place, Some(&home), async move { at_once(call(&limiter, given)) }),
            };
            match (place, *name) {
                (Place::Home, _) | (_, "dropped") => done.unwrap(),
                _ => refused(name, place, done, "build it on a multi-thread runtime"),
            }
        }
        at(Place::Home, Some(&home), all_slots_return(endpoint));
    }
}

#[test]
fn a_limiter_whose_runtime_has_ended_refuses_at_once() {
    for flavor in [Flavor::CurrentThread, Flavor::MultiThread] {
        for place in ELSEWHERE {
            let home = Arc::new(runtime(flavor));
            let (limiter, given) = at(Place::Home, Some(&home), prepare(table()));
            end(home);
            for ((name, call), given) in CALLS.iter().zip(given) {
                let limiter = limiter.clone();
                let done = at(place, None, async move { at_once(call(&limiter, given)) });
                match *name {
                    "dropped" => done.unwrap(),
                    _ => refused(name, place, done, "build it on a runtime that lives"),
                }
            }
        }
    }
}

#[test]
fn a_limiter_that_was_built_by_waiting_works_everywhere() {
    for place in ELSEWHERE {
        let endpoint = table();
        let (limiter, given) = prepare(endpoint.clone()).wait();
        for ((name, call), given) in CALLS.iter().zip(given) {
            let limiter = limiter.clone();
            let done = at(place, None, async move { call(&limiter, given).await });
            done.unwrap_or_else(|error| panic!("{name} at {place:?}: {error}"));
        }
        all_slots_return(endpoint).wait();
    }
}

#[test]
fn a_limiter_is_not_built_without_a_runtime() {
    let error = park_until(RateLimiter::builder("weirgate").build()).unwrap_err();
    assert!(matches!(&error, Error::Invalid(text) if text.contains(".build().wait()")), "{error}");
}

/// The caller cannot roll back again, so the refusal must not cost the tokens.
#[test]
fn a_rollback_that_is_refused_is_made_by_the_home_runtime() {
    let home = runtime(Flavor::CurrentThread);
    let table = home.block_on(async { Dynamo::new().await.table().await });
    let build = async { RateLimiter::builder("weirgate").table(table).build().await };
    let limiter = home.block_on(build).unwrap();
    let limits = [Limit::per_day("rpd", 10).unwrap()];
    let take = || async { granted(ask(&limiter, &limits, &[("rpd", 10)]).send().await) };
    for _ in 0..3 {
        let grant = home.block_on(take()).expect("the last rollback was made");
        assert!(at_once(grant.roll_back()).is_err());
        home.block_on(limiter.shutdown()).unwrap();
    }
}

/// A clock that holds a poll until its runtime has ended, if that is possible.
#[derive(Debug, Clone)]
struct Holding {
    begun: Arc<Mutex<Option<Sender<()>>>>,
    ended: Arc<Mutex<Receiver<()>>>,
}

impl Clock for Holding {
    fn now(&self) -> EpochMillis {
        if let Some(begun) = self.begun.lock().unwrap().take() {
            begun.send(()).unwrap();
            let _ = self.ended.lock().unwrap().recv_timeout(millis(200));
        }
        SystemClock.now()
    }
}

/// A timer of a runtime that has ended panics.
#[test]
fn a_runtime_ends_between_the_polls_from_elsewhere() {
    let home = Arc::new(runtime(Flavor::MultiThread));
    let ((begin, begun), (end_it, ended)) = (channel(), channel());
    let clock = Holding { begun: Arc::default(), ended: Arc::new(Mutex::new(ended)) };
    let by = clock.clone();
    let limiter = at(Place::Home, Some(&home), async move {
        let table = Dynamo::new().await.table_by(by).await;
        let builder = RateLimiter::builder("weirgate").table(table);
        builder.build().await.unwrap()
    });
    *clock.begun.lock().unwrap() = Some(begin);
    let call =
        thread::spawn(move || park_until(ask(&limiter, &limits(), &[("rpm", 1)]).send()).map(drop));
    begun.recv().unwrap();
    end(home);
    let _ = end_it.send(());
    let error = call.join().expect("it does not panic").unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains("has ended"), "{error}");
}

#[test]
fn a_runtime_that_ends_ends_the_calls_from_elsewhere() {
    for round in 0..20 {
        let home = Arc::new(runtime(Flavor::MultiThread));
        // Half of them read their limits first.
        let is_given = round % 2 == 0;
        let limiter = at(Place::Home, Some(&home), async move {
            let latency = Duration::from_micros(50 * round);
            let table = Dynamo::new().await.with_latency(latency).table().await;
            let builder = RateLimiter::builder("weirgate").table(table);
            let limiter = builder.config_ttl(Duration::ZERO).build().await.unwrap();
            configure(&limiter, &ConfigLevel::System, limits()).await;
            limiter
        });
        let decided = Arc::<AtomicU32>::default();
        let (send, done) = channel();
        for _ in 0..4 {
            let (limiter, decided, send) = (limiter.clone(), Arc::clone(&decided), send.clone());
            thread::spawn(move || {
                let error = loop {
                    let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
                    let acquire = match is_given {
                        true => acquire.limits(&limits()),
                        false => acquire,
                    };
                    match park_until(acquire.send()) {
                        Ok(_) => decided.fetch_add(1, Ordering::Relaxed),
                        Err(error) => break error,
                    };
                };
                send.send(error)
            });
        }
        drop(send);
        while decided.load(Ordering::Relaxed) < 8 {
            thread::yield_now();
        }
        end(home);
        for _ in 0..4 {
            let error = done.recv_timeout(HANGS_AFTER).expect("a call panicked or hangs");
            let text = error.to_string();
            assert!(text.contains("has ended"), "{text}");
            let is_read = text.contains("BatchGetItem");
            assert_eq!(
                error.is_unknown(),
                !matches!(error, Error::Invalid(_)) && !is_read,
                "{text}"
            );
        }
    }
}

fn end(home: Arc<Runtime>) {
    drop(Arc::into_inner(home).expect("no call is under way"));
}

fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("the first poll has the answer")
}

fn refused(name: &str, place: Place, done: Result<(), Error>, remedy: &str) {
    match done {
        Err(Error::Invalid(text)) if text.contains(remedy) => {}
        other => panic!("{name} at {place:?}: {other:?}"),
    }
}

/// Whatever is called waits no longer than the limiter was told, for a table that answers nothing; but what
/// settles awaits its write for 3 s, to know what became of it.
#[tokio::test(start_paused = true)]
async fn i9_every_call_ends_within_its_timeout_on_a_silent_table() {
    let timeout = millis(700);
    let mut late = vec![];
    for (name, call) in CALLS {
        let fleet = Fleet::new().await;
        let limiter = fleet.limiter_with(|builder| builder.timeout(timeout)).await;
        let given = given(&limiter).await;
        fleet.dynamo.stall_when(|_, _| true);
        let began = Instant::now();
        let done = call(&limiter, given).await;
        let took = began.elapsed();
        let is_settling = name.starts_with("Grant") || *name == "Admin::create_table";
        let most = if is_settling { secs(3) } else { timeout };
        if took > most + millis(20) {
            late.push(format!("{name}: {took:?}, {done:?}"));
        }
    }
    assert_eq!(late, [""; 0]);
}

/// Builds a limiter with this timeout, and takes from all eight shards of a bucket under a lease.
async fn parts_of_eight(fleet: &Fleet, timeout: Duration) -> (RateLimiter, Grant) {
    let limits = [Limit::custom("tpm", 800, 1, 86_400_000).unwrap(), slots(80)];
    split(&fleet.limiter().await, &limits, 8).await;
    let limiter = fleet.limiter_with(|builder| builder.timeout(timeout)).await;
    let grant = leased(&limiter, &limits, &[("tpm", 700)], secs(3_600)).await;
    assert_eq!(grant.parts(), 8);
    (limiter, grant)
}

#[tokio::test(start_paused = true)]
async fn i9_many_parts_are_settled_in_the_time_of_one_on_a_silent_table() {
    for settling in ["renew", "release", "roll_back"] {
        let fleet = Fleet::new().await;
        let (_limiter, mut grant) = parts_of_eight(&fleet, millis(700)).await;
        fleet.dynamo.stall_when(|_, _| true);
        let began = Instant::now();
        let done = match settling {
            "renew" => grant.renew(secs(7_200)).await,
            "release" => grant.release().await,
            _ => grant.roll_back().await,
        };
        let took = began.elapsed();
        assert!(took <= secs(3) + millis(20), "{settling}: {took:?}, {done:?}");
        assert!(done.unwrap_err().is_unknown(), "{settling}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_shard_keeps_no_lease_of_another_from_being_renewed() {
    for shard in 0..8 {
        let fleet = Fleet::new().await;
        let (limiter, mut grant) = parts_of_eight(&fleet, secs(5)).await;
        let throttled = format!("#gpt-4#{shard}\"");
        fleet.dynamo.fail_when(move |write| {
            let is_it = write.to_string().contains(&throttled);
            is_it.then_some(Fault::Throttle { key_range: true })
        });
        let error = grant.renew(secs(7_200)).await.unwrap_err();
        assert!(matches!(error, Error::Halfway(_)), "{shard}: {error}");
        let leases = limiter.admin().leases("e-1", "gpt-4").await.unwrap().items;
        let last = leases.iter().map(|lease| lease.expires_at).max();
        let renewed = leases.iter().filter(|lease| Some(lease.expires_at) == last);
        assert_eq!((renewed.count(), leases.len()), (7, 8), "{shard}");
    }
}

//! The backend as a caller meets it: over HTTP, by the SDK, with both functions running.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate::{
    ConfigLevel, ConnectOptions, Decision, Entity, EntityId, Error, Limit, LimitsFileContents,
    PlanName, RateLimiter, SystemClock, Window, WindowUsage,
};
use weirgate_local::{LocalBackend, Options, StartError, Work, limits};
use weirgate_store::{Clock, connect};
use weirgate_testkit::{Dynamo, Fault, Temporary};

/// A folder that is removed at the end.
struct Scratch(Temporary);

impl Scratch {
    fn new() -> Self {
        Self(Temporary::folder())
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.0.join("limits.yaml");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }
}

fn connection(backend: &LocalBackend) -> ConnectOptions {
    ConnectOptions {
        local_endpoint: Some(backend.endpoint_url().to_owned()),
        ..ConnectOptions::default()
    }
}

/// A process of an application.
async fn caller(backend: &LocalBackend) -> RateLimiter {
    let builder = RateLimiter::builder(&backend.options().table);
    let limiter = builder.connection(connection(backend)).build().await;
    limiter.unwrap()
}

/// Takes a token from the bucket `user-1` on `gpt-4`.
async fn take(limiter: &RateLimiter, limits: &[Limit]) -> Decision {
    let mut request = limiter.acquire("user-1", "gpt-4");
    if !limits.is_empty() {
        request = request.limits(limits);
    }
    request.take("rpm", 1).send().await.unwrap()
}

/// Deletes the bucket's item, as DynamoDB does when it expires.
async fn delete_bucket(backend: &LocalBackend) {
    let client = connect(connection(backend)).await.client;
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let request = client.delete_item().table_name("weirgate");
    let request = request.key("PK", text("default/BUCKET#user-1#gpt-4#0"));
    request.key("SK", text("#STATE")).send().await.unwrap();
}

async fn usage(limiter: &RateLimiter) -> WindowUsage {
    let now = SystemClock.now();
    let usage = limiter.usage("user-1", "gpt-4", Window::Daily, now);
    usage.await.unwrap()
}

/// Waits until `is_so`, for at most half a minute.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what} never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn quick() -> Options {
    Options { reconcile_every: Duration::from_millis(100), ..Options::default() }
}

const LIMITS: &str = "
weirgate: 1
system:
  limits:
    rpm: {per_minute: 600}
entities:
  user-1:
    parent: team-a
    limits:
      rpm: {per_minute: 60}
";

#[tokio::test]
async fn limits_of_a_file_are_enforced_and_a_parent_is_taken_from_as_well() {
    let scratch = Scratch::new();
    let options = Options { limits: Some(scratch.file(LIMITS)), ..quick() };
    let backend = LocalBackend::start(options).await.unwrap();
    let limiter = caller(&backend).await;
    let user = EntityId::new("user-1").unwrap();
    let level = ConfigLevel::Entity(user.clone());
    let config = limiter.admin().config(&level).await.unwrap().unwrap();
    assert_eq!(config.limits, [Limit::per_minute("rpm", 60).unwrap()]);
    let expected = Entity::new(user.clone()).child_of(EntityId::new("team-a").unwrap(), true);
    assert_eq!(limiter.admin().entity(&user).await.unwrap(), Some(expected));

    let decision = limiter.acquire("user-1", "gpt-4").take("rpm", 60).send().await;
    assert!(decision.unwrap().is_granted());
    let decision = take(&limiter, &[]).await;
    assert!(matches!(decision, Decision::Denied(_)), "{decision:?}");
    let parent = limiter.acquire("team-a", "gpt-4").take("rpm", 541).send().await;
    assert!(!parent.unwrap().is_granted(), "60 of 600 are gone");
    backend.stop().await;
}

#[tokio::test]
async fn the_reconciler_returns_the_slots_of_a_holder_that_crashed() {
    let backend = LocalBackend::start(quick()).await.unwrap();
    let limiter = caller(&backend).await;
    let limits = [Limit::concurrent("rpm", 1).unwrap()];
    let request = limiter.acquire("user-1", "gpt-4").limits(&limits);
    let lease = request.take("rpm", 1).lease(Duration::from_secs(1));
    let Decision::Granted(grant) = lease.send().await.unwrap() else {
        panic!("the slot is free");
    };
    // A crashed holder releases nothing.
    std::mem::forget(grant);
    // Nothing else is asked of the bucket: an acquire would reclaim the slot by itself.
    until("the release", async || {
        let actions = backend.actions().after(0);
        let is_release = |work: &Work| work.to_string() == "1 lease released";
        actions.iter().any(|action| is_release(&action.work))
    })
    .await;
    assert_eq!(limiter.admin().leases("user-1", "gpt-4").await.unwrap().items, []);
    assert!(take(&limiter, &limits).await.is_granted());
    backend.stop().await;
}

#[tokio::test]
async fn a_folder_has_the_table_after_a_restart_and_nothing_is_counted_twice() {
    let scratch = Scratch::new();
    let options =
        Options { data: Some(scratch.data()), limits: Some(scratch.file(LIMITS)), ..quick() };
    let backend = LocalBackend::start(options.clone()).await.unwrap();
    let limiter = caller(&backend).await;
    assert!(take(&limiter, &[]).await.is_granted());
    delete_bucket(&backend).await;
    until("the usage", async || usage(&limiter).await.usage.acquires == 1).await;
    assert!(take(&limiter, &[]).await.is_granted());
    backend.stop().await;

    let options = Options { limits: None, ..options };
    let backend = LocalBackend::start(options.clone()).await.unwrap();
    let limiter = caller(&backend).await;
    assert_eq!(usage(&limiter).await.usage.acquires, 2);
    assert!(take(&limiter, &[]).await.is_granted(), "limits are there");
    delete_bucket(&backend).await;
    // Both acquires of the second item, of which the first process had handled one record.
    until("the copies", async || usage(&limiter).await.usage.acquires == 3).await;

    let error = LocalBackend::start(options).await.unwrap_err();
    assert!(error.to_string().contains("is in use by another process"), "{error}");
    backend.stop().await;
}

#[tokio::test]
async fn a_taken_port_is_named_with_the_remedy_and_stopping_frees_it() {
    let backend = LocalBackend::start(quick()).await.unwrap();
    let (_, port) = backend.endpoint_url().rsplit_once(':').unwrap();
    let same_port = Options { port: port.parse().unwrap(), ..quick() };
    let error = LocalBackend::start(same_port.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::PortTaken(_)), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("port {port} of 127.0.0.1 is in use: choose another one, or 0 for any free one")
    );
    backend.stop().await;
    LocalBackend::start(same_port).await.unwrap().stop().await;
}

#[tokio::test]
async fn a_wrong_limits_file_is_named_with_line_and_column_and_nothing_is_started() {
    let scratch = Scratch::new();
    let options = Options {
        data: Some(scratch.data()),
        limits: Some(scratch.file("weirgate: 1\nsystem:\n  limits:\n    rpm: {per_minute: 0}\n")),
        ..quick()
    };
    let error = LocalBackend::start(options).await.unwrap_err();
    let place = format!("{}:4:10: ", scratch.0.join("limits.yaml").display());
    assert!(error.to_string().starts_with(&place), "{error}");
    assert!(!scratch.data().exists(), "the folder was not made");
}

/// Returns a limits file of entities below `root`, each with a parent before it in a shuffled order, so
/// without a cycle.
fn random_file(rng: &mut impl FnMut(usize) -> usize) -> (String, Vec<Entity>) {
    let mut names = ["root", "a", "b", "c", "d", "e"];
    for at in (2..names.len()).rev() {
        names.swap(at, 1 + rng(at));
    }
    let per_minute = 1 + rng(100);
    let mut text = format!(
        "weirgate: 1\nsystem: {{limits: {{rpm: {{per_minute: {per_minute}}}}}}}\nentities:\n"
    );
    let mut entities = vec![];
    for (at, name) in names.iter().enumerate().skip(1) {
        let parent = names[rng(at)];
        text += &format!("  {name}: {{parent: {parent}}}\n");
        let entity = Entity::new(EntityId::new(*name).unwrap());
        entities.push(entity.child_of(EntityId::new(parent).unwrap(), true));
    }
    (text, entities)
}

#[tokio::test]
async fn each_valid_file_is_applied_to_the_folder_of_another_one() {
    let scratch = Scratch::new();
    // A fixed sequence, so that a failure repeats.
    let mut state = 11_u64;
    let mut rng = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    };
    for round in 0..12 {
        let (text, entities) = random_file(&mut rng);
        let options =
            Options { data: Some(scratch.data()), limits: Some(scratch.file(&text)), ..quick() };
        let backend = LocalBackend::start(options).await;
        let backend = backend.unwrap_or_else(|error| panic!("{round}: {error}: {text}"));
        let limiter = caller(&backend).await;
        let ids: Vec<_> = entities.iter().map(|entity| entity.id.clone()).collect();
        let stored = limiter.admin().read_entities(&ids).await.unwrap();
        let expected: Vec<_> = entities.into_iter().map(Some).collect();
        assert_eq!(stored, expected, "{round}: {text}");
        backend.stop().await;
    }
}

#[tokio::test]
async fn a_file_that_the_table_refuses_changes_nothing() {
    let scratch = Scratch::new();
    let options = |text: &str| Options {
        data: Some(scratch.data()),
        limits: Some(scratch.file(text)),
        ..quick()
    };
    let backend = LocalBackend::start(options(LIMITS)).await.unwrap();
    let limiter = caller(&backend).await;
    let parent = Entity::new(EntityId::new("team-b").unwrap());
    let parent = parent.child_of(EntityId::new("user-1").unwrap(), false);
    limiter.admin().set_entity(&parent).await.unwrap();
    backend.stop().await;
    // With what the table has, a cycle.
    let cycle = LIMITS.replace("team-a", "team-b").replace("600", "700");
    let refused = LocalBackend::start(options(&cycle)).await;
    assert!(matches!(refused, Err(StartError::Limits(_))), "{refused:?}");
    let options = Options { data: Some(scratch.data()), ..quick() };
    let backend = LocalBackend::start(options).await.unwrap();
    let system = caller(&backend).await.admin().config(&ConfigLevel::System).await;
    let limits = system.unwrap().unwrap().limits;
    assert_eq!(limits, [Limit::per_minute("rpm", 600).unwrap()]);
    backend.stop().await;
}

/// Whatever the table answers to the change of an entity.
#[tokio::test]
async fn an_entity_that_cannot_be_set_is_an_error() {
    const FILE: &str =
        "weirgate: 1\nsystem: {limits: {rpm: 5/minute}}\nentities: {user: {parent: team}}\n";
    let dynamo = Dynamo::new().await;
    let limiter = RateLimiter::builder("").table(dynamo.table().await);
    let limiter = limiter.build().await.unwrap();
    let contents = LimitsFileContents::parse("limits.yaml", FILE.to_owned()).unwrap();
    let mut number = 0;
    dynamo.fail_transactions(move |_| {
        number += 1;
        (number > 1).then_some(Fault::Forbidden)
    });
    let error = limits::apply(&limiter, &contents).await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error}");
}

/// Of the entities after one that is refused, whatever they are to become.
#[tokio::test]
async fn a_refused_entity_takes_no_parent_from_others() {
    let dynamo = Dynamo::new().await;
    let limiter = RateLimiter::builder("").table(dynamo.table().await);
    let limiter = limiter.build().await.unwrap();
    let entity = |id: &str, parent: Option<&str>| {
        let entity = Entity::new(EntityId::new(id).unwrap());
        match parent {
            Some(parent) => entity.child_of(EntityId::new(parent).unwrap(), true),
            None => entity,
        }
    };
    let before = ["a", "stays", "moves", "leaves"].map(|id| entity(id, Some("team")));
    for entity in &before {
        limiter.admin().set_entity(entity).await.unwrap();
    }
    for parent in ["team", "other"] {
        let after = [
            entity("a", Some(parent)).on_plan(PlanName::new("missing").unwrap()),
            before[1].clone(),
            entity("moves", Some("other")),
            entity("leaves", None),
        ];
        let mut stored = before.clone().map(Some);
        let refused = limits::replace_next(&limiter, &mut stored, &after, 0).await;
        assert!(
            matches!(&refused, Err(Error::Invalid(text)) if text.contains("missing")),
            "{refused:?}"
        );
        let ids = before.clone().map(|entity| entity.id);
        let found = limiter.admin().read_entities(&ids).await.unwrap();
        assert_eq!(found, before.clone().map(Some), "{parent}");
    }
}

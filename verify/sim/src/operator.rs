//! An operator's process: changes limits and balances, splits, deletes, erases, purges and stops
//! while others call.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use weirgate::{
    Config, ConfigLevel, Entity, Error, Limit, LimitsFileContents, LiveLeases, OperationOutcome,
    RateLimiter,
};
use weirgate_shared::{BUCKET_SK, BucketKey, attr};

use crate::fault::Kind;
use crate::ledger::SharedLedger;
use crate::limiter::{CONFIG_TTL, limiter};
use crate::network::{Network, OPERATOR};
use crate::scenario::{CLASS, Plan, Source};
use crate::stored_shard::is_hostile;
use crate::stream_check::Sender;
use crate::world::World;

/// Attempts of an operation whose outcome is not known.
const ATTEMPTS: usize = 5;
/// Time after which no request of a caller that has stopped is under way any more.
const CALLS_END: Duration = Duration::from_secs(30);

/// The operator, and what it has begun.
#[derive(Debug)]
pub struct Operator {
    world: World,
    limiter: RateLimiter,
    /// A level that is stopped, and until when.
    stopped: Option<(ConfigLevel, Instant)>,
    /// When the bucket was closed whose entity is erased later.
    closed: Option<Instant>,
}

impl Operator {
    /// Starts the operator's process.
    pub async fn start(world: &World) -> Self {
        let limiter = limiter(&Network::new(world, OPERATOR), &world.clock(), false).await;
        Self { world: world.clone(), limiter, stopped: None, closed: None }
    }

    /// Does what an operator does from time to time. `is_late` in the second half of a run.
    pub async fn act(&mut self, ledger: &SharedLedger, is_late: bool) {
        let world = &self.world.clone();
        let scenario = world.scenario();
        let at = world.rng().usize(..scenario.buckets.len());
        let plan = &scenario.buckets[at];
        let operator = &self.limiter;
        // It would make an erased bucket again.
        if scenario.is_sharded && world.strikes(Kind::Resharded) && !world.is_closed(at) {
            let shards = 1 << world.rng().u32(0..=2);
            let done = operator
                .admin()
                .set_shards(&plan.entity, &plan.resource, &plan.limits, shards)
                .await;
            world.note(|| format!("{} in {shards} shards: {done:?}", plan.entity));
        }
        if world.strikes(Kind::BalanceEdited) {
            edit_balance(world, operator, ledger, at).await;
        }
        if let Some(later) = plan.later.as_ref().filter(|_| scenario.is_configured)
            && world.strikes(Kind::ConfigChanged)
        {
            // Before there is a bucket it would have the other kind, and keep it.
            let may_change =
                !scenario.changes_kind || !bucket_items(world, &plan.entity).is_empty();
            let limits = if world.rng().bool() && may_change { later } else { &plan.limits };
            let done = operator.admin().set_config(&level(&plan.entity), &config(limits)).await;
            world.note(|| format!("{} configured: {done:?}", plan.entity));
        }
        if world.threatens(Kind::ItemDeleted) {
            delete_items(world, ledger, at);
        }
        if self.stopped.is_none() && world.threatens(Kind::NamespacePurged) {
            self.purge(ledger).await;
        }
        if is_late && scenario.rate(Kind::EntityErased) > 0 {
            self.erase().await;
        }
        self.stop_or_start(plan).await;
    }

    /// Closes the last bucket, and erases its entity once its callers have stopped.
    async fn erase(&mut self) {
        let (world, last) = (&self.world, self.world.scenario().buckets.len() - 1);
        let closed = *self.closed.get_or_insert_with(|| {
            world.close(last);
            Instant::now()
        });
        if Instant::now() < closed + CALLS_END || world.counts().of(Kind::EntityErased) > 0 {
            return;
        }
        let entity = &world.scenario().buckets[last].entity;
        let id = entity.as_str().try_into().expect("a name like others");
        let done = self.limiter.admin().erase_entity(&id, LiveLeases::Discard).await;
        world.note(|| format!("{entity} erased: {done:?}"));
        if done.is_ok() {
            world.count(Kind::EntityErased);
        }
    }

    /// Stops the namespace, purges it and configures it again, to be started soon.
    async fn purge(&mut self, ledger: &SharedLedger) {
        let (world, operator) = (&self.world, &self.limiter);
        self.stopped = Some((ConfigLevel::System, Instant::now()));
        if operator.admin().stop(&ConfigLevel::System).send().await.is_err() {
            return;
        }
        world.pass(CONFIG_TTL + Duration::from_secs(1)).await;
        world.count(Kind::NamespacePurged);
        for at in 0..world.scenario().buckets.len() {
            ledger.lock().remakes(world.scenario(), at, world.now().0);
        }
        let mut after = None;
        for _ in 0..ATTEMPTS {
            let purge = operator.admin().purge_namespace("default").after(after.clone());
            match purge.send().await {
                Ok(page) if page.next.is_none() => {
                    world.note(|| format!("purged: {page:?}"));
                    break;
                }
                Ok(page) => after = page.next,
                Err(error) => world.note(|| format!("not purged: {error}")),
            }
        }
        configure(world).await;
    }

    /// Stops a level for a while. Nothing is granted by the operator's own process then, whatever
    /// becomes of its requests.
    async fn stop_or_start(&mut self, plan: &Plan) {
        let (world, operator) = (&self.world, &self.limiter);
        let Some((level, until)) = &self.stopped else {
            if !world.threatens(Kind::LevelStopped) {
                return;
            }
            let levels = levels(plan);
            let level = levels[world.operator_rng().usize(..levels.len())].clone();
            if operator.admin().stop(&level).send().await.is_ok() {
                world.count(Kind::LevelStopped);
                world.note(|| format!("{level} stopped"));
                self.stopped = Some((level, Instant::now() + 2 * CONFIG_TTL));
            }
            return;
        };
        if Instant::now() < *until {
            let buckets = world.scenario().buckets.iter().filter(|_| world.violations().is_empty());
            for plan in buckets.filter(|plan| levels(plan).contains(level)) {
                let ask = operator.acquire(&plan.entity, &plan.resource).take("rate", 1);
                if ask.limits(&plan.limits).send().await.is_ok_and(|it| it.is_granted()) {
                    world.violated(format!("stop: {level} is stopped, and its stopper is granted"));
                }
            }
        } else if operator.admin().start(level).send().await.is_ok() {
            world.note(|| format!("{level} started"));
            self.stopped = None;
        }
    }

    /// Starts what is stopped.
    pub async fn end(self) {
        if let Some((level, _)) = self.stopped {
            let done = operator(&self.world).await.admin().start(&level).send().await;
            self.world.note(|| format!("{level} started: {done:?}"));
        }
    }
}

/// Returns the levels that a bucket is of.
pub fn levels(plan: &Plan) -> [ConfigLevel; 4] {
    let entity = plan.entity.as_str().try_into().expect("a name");
    [
        ConfigLevel::System,
        ConfigLevel::Resource(plan.resource.as_str().try_into().expect("a name")),
        ConfigLevel::Entity(entity),
        level(&plan.entity),
    ]
}

fn level(entity: &str) -> ConfigLevel {
    ConfigLevel::EntityResource(
        entity.try_into().expect("a name"),
        "api".try_into().expect("a name"),
    )
}

/// Returns the items of an entity's buckets.
fn bucket_items(world: &World, entity: &str) -> Vec<Value> {
    let mut items = world.dynamo().items();
    items.retain(|item| {
        let pk = item["PK"]["S"].as_str().unwrap_or_default();
        let key = BucketKey::parse(pk).filter(|_| item["SK"]["S"] == BUCKET_SK);
        key.is_some_and(|key| key.entity.as_str() == entity && !is_hostile(pk))
    });
    items
}

/// Deletes the item of a bucket that is not split.
fn delete_items(world: &World, ledger: &SharedLedger, at: usize) {
    let entity = &world.scenario().buckets[at].entity;
    let mut keys = vec![];
    let items = bucket_items(world, entity).into_iter();
    for item in items.filter(|item| item["rf"].is_object()) {
        if item[attr::ESCROW].is_object() {
            // The split would make the new half again.
            return;
        }
        keys.push(item["PK"]["S"].as_str().unwrap_or_default().to_owned());
    }
    if keys.len() != 1 {
        return;
    }
    ledger.lock().remakes(world.scenario(), at, world.now().0);
    for key in &keys {
        world.dynamo().delete(key, BUCKET_SK);
        world.count(Kind::ItemDeleted);
    }
    world.check_stream(&Sender {
        name: "deleter",
        is_told: true,
        sent: world.now(),
        is_alone: true,
    });
    world.note(|| format!("{keys:?} deleted"));
}

/// Returns the limiter of an operator without faults.
pub async fn operator(world: &World) -> RateLimiter {
    let table = world.dynamo().table().await;
    let operator = RateLimiter::builder("weirgate").table(table).build();
    operator.await.expect("the settings are good")
}

/// Returns the configuration of these limits, whose callers are all of their class.
fn config(limits: &[Limit]) -> Config {
    let has_classes = limits.iter().any(|limit| !limit.classes().is_empty());
    Config {
        class: has_classes.then(|| CLASS.try_into().expect("a name like others")),
        ..Config::of(limits)
    }
}

/// Writes limits and parents to where the release in force has them, without faults.
pub async fn configure(world: &World) {
    let operator = operator(world).await;
    let scenario = world.scenario();
    let limits = |plan: &Plan| {
        let later = plan.later.clone().filter(|_| world.has_moved());
        later.unwrap_or_else(|| plan.limits.clone())
    };
    let configs = scenario.buckets.iter();
    let configs = configs.map(|plan| (level(&plan.entity), config(&limits(plan))));
    world.write_limits_file(LimitsFileContents { configs: configs.collect(), entities: vec![] });
    let is_in_table = world.source() == Source::Table;
    for plan in scenario.buckets.iter().filter(|_| is_in_table) {
        operator
            .admin()
            .set_config(&level(&plan.entity), &config(&limits(plan)))
            .await
            .expect("the table is there");
        if let Some(parent) = plan.parent {
            let name = |name: &str| name.try_into().expect("a name like others");
            let parent = Some(name(&scenario.buckets[parent].entity));
            let entity = Entity { id: name(&plan.entity), parent, cascades: true, plan: None };
            operator.admin().set_entity(&entity).await.expect("the table is there");
        }
    }
}

/// Resets, drains or tops up a rate or a quota of a bucket. While the outcome is not known, the operator calls
/// again with the same key.
async fn edit_balance(world: &World, operator: &RateLimiter, ledger: &SharedLedger, at: usize) {
    let plan = &world.scenario().buckets[at];
    let limits: Vec<_> = plan.used_up().collect();
    let (choice, kind, part) = {
        let mut rng = world.aws_rng();
        (rng.usize(..limits.len().max(1)), rng.u32(..3), rng.i64(1..=4))
    };
    let Some((limit, of)) = limits.get(choice) else {
        return;
    };
    let of_limit = (at, *limit);
    let capacity = plan.most(*limit) / 1000;
    let (name, added) = (of.name().as_str(), (capacity / part).max(1));
    let key = format!("edit-{}", world.now().0);
    let edit = || {
        let edit = operator.admin().edit_balances(&plan.entity, &plan.resource);
        let edit = edit.idempotency_key(key.as_str());
        match kind {
            0 => edit.reset(name),
            1 => edit.drain(name),
            _ => edit.top_up(name, added),
        }
    };
    let most = match kind {
        0 => capacity,
        1 => 0,
        _ => added,
    };
    ledger.lock().adds(of_limit, most * 1000, world.now().0);
    for _ in 0..ATTEMPTS {
        let done = edit().send().await;
        world.note(|| format!("{} of {} edited ({kind}, {added}): {done:?}", name, plan.entity));
        let amount = match &done {
            Ok(report) if report.outcome == OperationOutcome::Unchanged => 0,
            Ok(_) => most,
            // There is no room, or no item.
            Err(Error::Invalid(_)) => 0,
            Err(_) => continue,
        };
        ledger.lock().added(of_limit, amount * 1000, world.now().0);
        return;
    }
}

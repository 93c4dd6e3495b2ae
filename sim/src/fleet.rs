//! The processes that call: started, skewed, killed, started again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use weirgate::{
    Config, ConfigLevel, Entity, Error, Limit, OperationOutcome, Prefetch, RateLimiter,
};
use weirgate_testkit::Dynamo;

use crate::caller::Caller;
use crate::clock::ProcessClock;
use crate::fault::Kind;
use crate::hostile;
use crate::ledger::{ClaimIds, SharedLedger};
use crate::network::{Network, OPERATOR};
use crate::world::World;

/// Time that a process caches limits.
pub const CONFIG_TTL: Duration = Duration::from_secs(10);

/// Returns a limiter with its own clock, whose requests go through `network`.
pub async fn limiter(network: &Network, clock: &ProcessClock, prefetches: bool) -> RateLimiter {
    let table = Dynamo::reached_by(network.clone(), clock.clone()).await;
    let builder = RateLimiter::builder("weirgate")
        .table(table)
        .config_ttl(CONFIG_TTL);
    let builder = if prefetches {
        builder.prefetch("api", Prefetch::default().max_outstanding_percent(SHARE))
    } else {
        builder
    };
    builder.build().await.expect("the settings are good")
}

/// Largest part of the capacity that a process prefetches, in percent.
pub const SHARE: u32 = 20;

/// A process and its callers.
#[derive(Debug)]
pub struct Process {
    world: World,
    name: String,
    network: Network,
    clock: ProcessClock,
    limiter: RateLimiter,
    callers: JoinSet<()>,
    held: Arc<Mutex<ClaimIds>>,
}

impl Process {
    async fn start(world: &World, ledger: &SharedLedger, number: u32, prefetches: bool) -> Self {
        let name = format!("client-{number}");
        let is_of_release = world.scenario().is_rolling && number % 2 == 1;
        let network = Network::new(world, &name);
        let clock = world.clock();
        let limiter = limiter(&network, &clock, prefetches).await;
        let held = Arc::default();
        let mut process = Self {
            world: world.clone(),
            name,
            network,
            clock,
            limiter,
            callers: JoinSet::new(),
            held,
        };
        if world.strikes(Kind::ClockSkewed) {
            process.set_clock();
        }
        for _ in 0..world.scenario().callers {
            let (world, limiter, ledger) = (world.clone(), process.limiter.clone(), ledger.clone());
            let (held, takes_ahead) = (Arc::clone(&process.held), prefetches);
            process.callers.spawn(
                Caller {
                    world,
                    limiter,
                    ledger,
                    held,
                    takes_ahead,
                    is_of_release,
                }
                .run(),
            );
        }
        process
    }

    fn set_clock(&self) {
        // Signatures allow five minutes. A request with a larger offset is refused, and the clock
        // corrected.
        let by = self.world.rng().i64(-400_000..400_000);
        let by = if self.world.rng().bool() {
            by
        } else {
            by / 100
        };
        self.clock.skew(by);
        self.world
            .note(|| format!("{} clock off by {by}", self.name));
    }

    /// Shuts the limiter down, which returns its prefetched tokens.
    pub async fn shut_down(&self) {
        let done = self.limiter.shutdown().await;
        self.world
            .note(|| format!("{} shut down: {done:?}", self.name));
    }

    /// Kills the process: it sends nothing more, and its holds have no owner.
    async fn kill(&mut self, ledger: &SharedLedger) {
        self.network.kill();
        self.callers.shutdown().await;
        let held = self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        ledger.lock().ends(&held, self.world.now().0);
        self.world.note(|| format!("{} killed", self.name));
    }
}

/// Runs the fleet until the world is calm and its last calls have ended. Returns the processes that
/// are left, without callers.
pub async fn run(world: &World, ledger: &SharedLedger) -> Vec<Process> {
    let scenario = world.scenario().clone();
    configure(world).await;
    let mut born = 0;
    let mut processes = vec![];
    for at in 0..scenario.processes {
        processes.push(Process::start(world, ledger, born, at < scenario.prefetching).await);
        born += 1;
    }
    let operator = operator(world).await;
    let mut left = scenario.lasts;
    while !left.is_zero() {
        let step = Duration::from_millis(250).min(left);
        world.pass(step).await;
        left -= step;
        for (at, process) in processes.iter_mut().enumerate() {
            if world.strikes(Kind::ClockJumped) {
                process.set_clock();
            }
            if world.strikes(Kind::ClientKilled) {
                process.kill(ledger).await;
                let prefetches = u32::try_from(at).is_ok_and(|at| at < scenario.prefetching);
                *process = Process::start(world, ledger, born, prefetches).await;
                born += 1;
            }
        }
        operate(world, &operator, ledger).await;
        hostile::act(world);
        if world.strikes(Kind::Frozen) {
            world.freeze();
        }
    }
    world.calm_down();
    for process in &mut processes {
        while process.callers.join_next().await.is_some() {}
    }
    processes
}

async fn operator(world: &World) -> RateLimiter {
    limiter(&Network::new(world, OPERATOR), &world.clock(), false).await
}

/// Writes limits and parents to the table without faults.
pub async fn configure(world: &World) {
    let operator = RateLimiter::builder("weirgate")
        .table(world.dynamo().table().await)
        .build()
        .await;
    let operator = operator.expect("the settings are good");
    for plan in world
        .scenario()
        .buckets
        .iter()
        .filter(|_| world.scenario().is_configured)
    {
        operator
            .set_config(&level(&plan.entity), &Config::of(plan.limits.clone()))
            .await
            .expect("the table is there");
        if let Some(parent) = plan.parent {
            let name = |name: &str| name.try_into().expect("a name like others");
            let parent = Some(name(&world.scenario().buckets[parent].entity));
            let entity = Entity {
                id: name(&plan.entity),
                parent,
                cascades: true,
            };
            operator
                .set_entity(&entity)
                .await
                .expect("the table is there");
        }
    }
}

fn level(entity: &str) -> ConfigLevel {
    ConfigLevel::EntityResource(
        entity.try_into().expect("a name"),
        "api".try_into().expect("a name"),
    )
}

/// Does what an operator does from time to time.
async fn operate(world: &World, operator: &RateLimiter, ledger: &SharedLedger) {
    let scenario = world.scenario();
    let at = world.rng().usize(..scenario.buckets.len());
    let plan = &scenario.buckets[at];
    if scenario.is_sharded && world.strikes(Kind::Resharded) {
        let shards = 1 << world.rng().u32(0..=2);
        let done = operator
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
        let limits = if world.rng().bool() {
            later
        } else {
            &plan.limits
        };
        let done = operator
            .set_config(&level(&plan.entity), &Config::of(limits.clone()))
            .await;
        world.note(|| format!("{} configured: {done:?}", plan.entity));
    }
}

/// Resets, drains or tops up a rate of a bucket. While the outcome is not known, the operator calls
/// again with the same key.
async fn edit_balance(world: &World, operator: &RateLimiter, ledger: &SharedLedger, at: usize) {
    let plan = &world.scenario().buckets[at];
    let is_rate = |(_, limit): &(usize, &Limit)| !limit.rule().is_concurrent();
    let rates: Vec<_> = plan.limits.iter().enumerate().filter(is_rate).collect();
    let (choice, kind, part) = {
        let mut rng = world.aws_rng();
        (
            rng.usize(..rates.len().max(1)),
            rng.u32(..3),
            rng.i64(1..=4),
        )
    };
    let Some((limit, of)) = rates.get(choice) else {
        return;
    };
    let of_limit = (at, *limit);
    let capacities = plan.later.iter().chain([&plan.limits]);
    let capacity = capacities
        .map(|limits| limits[*limit].rule().capacity)
        .max();
    let capacity = capacity.unwrap_or_default().whole_tokens();
    let (name, added) = (of.name().as_str(), (capacity / part).max(1));
    let key = format!("edit-{}", world.now().0);
    let edit = || {
        let edit = operator.edit_balances(&plan.entity, &plan.resource);
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
    for _ in 0..5 {
        let done = edit().send().await;
        world.note(|| {
            format!(
                "{} of {} edited ({kind}, {added}): {done:?}",
                name, plan.entity
            )
        });
        let amount = match &done {
            Ok(report) if report.outcome == OperationOutcome::Unchanged => 0,
            Ok(_) => most,
            // There is no room, or no item.
            Err(Error::Invalid(_) | Error::Contended { .. }) => 0,
            Err(_) => continue,
        };
        ledger.lock().added(of_limit, amount * 1000, world.now().0);
        return;
    }
}

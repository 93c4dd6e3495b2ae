//! Checks after the last fault: everything settles, writes end, and all promised tokens are
//! available.

mod probes;
mod requests;

use std::time::Duration;

use futures_util::future::FutureExt;
use weirgate::{Decision, LiveLeases, RateLimiter, Window};
use weirgate_shared::{BUCKET_SK, BucketKey, EntityId, ItemKey, RULES_STAND, SnapshotKey};

use crate::check;
use crate::check::finality;
use crate::fault::{Event, Kind};
use crate::fleet::Process;
use crate::functions::{Mapping, reconcile};
use crate::ledger::SharedLedger;
use crate::limiter::CONFIG_TTL;
use crate::operator::{configure, levels, operator};
use crate::scenario::Plan;
use crate::stream_check::{Sender, TTL};
use crate::world::World;
use probes::{
    a_full_bucket_grants_its_balance, a_lost_response_takes_once, a_renewed_lease_stays,
    all_tokens_are_available, refill_is_granted, resharding_keeps_tokens, retry_after_suffices,
    windows_are_granted,
};
use requests::{has_other_kind, newcomer, take};

/// Time after which every lease has expired, every rate is full, every delayed request has
/// arrived, and clocks that were ahead, by five minutes at most, have been reached.
const REST: Duration = Duration::from_secs(420);
/// Rounds of the functions after which writes must have ended: one round releases leases, three
/// merge four shards into one.
const ROUNDS: usize = 8;

/// Lets everything settle, then compares the ledger with the table. The `processes` stay
/// alive, but make no calls.
pub async fn settle(
    world: &World,
    mapping: &mut Mapping,
    ledger: &SharedLedger,
    processes: Vec<Process>,
) {
    start_all(world).await;
    if world.scenario().has_changes() {
        restore(world, ledger).await;
    }
    for process in &processes {
        if world.rng().bool() {
            process.shut_down().await;
        }
    }
    world.pass(REST + world.scenario().quotas.longest()).await;
    // A stop may arrive after the start.
    start_all(world).await;
    for round in 0.. {
        let before = world.writes();
        reconcile(world).await;
        mapping.drain().await;
        world.pass(Duration::from_secs(60)).await;
        if world.writes() == before {
            break;
        }
        if round == ROUNDS {
            world.violated(format!(
                "I7: no caller is active, and {} writes were made again",
                world.writes() - before
            ));
            break;
        }
    }
    stay_erased(world, mapping).await;
    {
        let ledger = ledger.lock();
        check::admitted(world, &ledger);
        check::consumed(world, &ledger);
    }
    check::taken(world, &ledger.lock());
    check::windows(world, &ledger.lock());
    check::counted(world);
    finality::read(world, &operator(world).await).await;
    a_stop_stops(world, &processes).await;
    drop(processes);
    if !world.violations().is_empty() {
        return;
    }
    let limiter = newcomer(world).await;
    for plan in &known(world) {
        let probes = [
            all_tokens_are_available(world, &limiter, plan).boxed_local(),
            resharding_keeps_tokens(world, plan).boxed_local(),
            a_lost_response_takes_once(world, plan).boxed_local(),
            a_renewed_lease_stays(world, plan).boxed_local(),
            retry_after_suffices(world, &limiter, plan).boxed_local(),
            refill_is_granted(world, &limiter, plan).boxed_local(),
            windows_are_granted(world, plan).boxed_local(),
        ];
        for probe in probes {
            probe.await;
            // A failed check would fail in every later round, and each takes long.
            if !world.violations().is_empty() {
                return;
            }
        }
    }
    reconcile(world).await;
    mapping.drain().await;
    // The run's windows are over, and none of their records is still to be delivered.
    world.pass(Duration::from_secs(26 * 3600)).await;
    check::counted(world);
    finality::read(world, &operator(world).await).await;
    outlives_ttl(world, mapping, &limiter).await;
}

/// Starts all levels.
async fn start_all(world: &World) {
    for level in world.scenario().buckets.iter().flat_map(levels) {
        if world.scenario().stops() {
            let done = operator(world).await.admin().start(&level).send().await;
            world.note(|| format!("{level} started: {done:?}"));
        }
    }
}

/// Returns the buckets whose expected balance is known. Changed limits reach a shard only with its
/// next take, perhaps never, and another kind of a limit never does.
fn known(world: &World) -> Vec<Plan> {
    let (scenario, events) = (world.scenario(), world.events());
    let was_split = scenario.is_sharded || events.of(Event::SplitByFunction) > 0;
    let is_known = !scenario.has_changes() || !was_split;
    let buckets = scenario.buckets.iter().filter(|_| is_known);
    let last = buckets.map(|plan| scenario.last(plan));
    last.filter(|plan| !has_other_kind(world, plan)).collect()
}

/// Checks that nothing of an erased entity comes back: not by records that were on their way, nor
/// by all records again.
async fn stay_erased(world: &World, mapping: &mut Mapping) {
    if world.counts().of(Kind::EntityErased) == 0 {
        return;
    }
    let plan = world.erased().expect("its bucket is closed").clone();
    let entity = plan.entity.as_str().try_into().expect("a name like others");
    let operator = newcomer(world).await;
    for is_again in [false, true] {
        if is_again {
            // The operator calls again for snapshots that were under way.
            let done = operator.admin().erase_entity(&entity, LiveLeases::Discard).await;
            world.note(|| format!("{entity} erased: {done:?}"));
            mapping.begin_again();
        }
        mapping.drain().await;
        reconcile(world).await;
        let items = world.dynamo().items();
        let keys = items.iter().filter_map(|item| {
            let key = ["PK", "SK"].map(|name| item[name]["S"].as_str().unwrap_or_default());
            let key = ItemKey { pk: key[0].to_owned(), sk: key[1].to_owned() };
            let is_live = key.sk == BUCKET_SK && item["rf"].is_object();
            let bucket = BucketKey::parse(&key.pk).filter(|_| is_live);
            let snapshot = SnapshotKey::parse(&key).filter(|_| is_again);
            let of = bucket.map(|key| key.entity).or(snapshot.map(|key| key.entity))?;
            (of == entity).then_some(key)
        });
        let left: Vec<_> = keys.collect();
        if !left.is_empty() {
            world.violated(format!("erased: {left:?} of {entity} came back"));
        }
    }
}

/// Checks that a level that an operator stops grants nothing once the processes must have seen it,
/// also to callers that bring limits, and is used again once it is started.
async fn a_stop_stops(world: &World, processes: &[Process]) {
    if world.scenario().rate(Kind::LevelStopped) == 0 {
        return;
    }
    let (operator, other) = (newcomer(world).await, newcomer(world).await);
    // After a freeze the first request finds a dead connection, and a stop that cannot be read
    // stops nothing.
    let first = &world.scenario().buckets[0];
    for process in processes {
        let peek = process.limiter().peek(&first.entity, &first.resource);
        let _ = peek.limits(&first.limits).send().await;
    }
    for plan in &world.scenario().buckets {
        // An entity has no parent any more once its erasure has begun, also one that never came to its end.
        let id = EntityId::new(&*plan.entity).expect("a name");
        let stored = operator.admin().entity(&id).await;
        let stored = stored.expect("nothing goes wrong any more");
        let has_parent = stored.is_some_and(|stored| stored.parent.is_some());
        let parent = plan.parent.filter(|_| has_parent);
        let parent = parent.map(|parent| &world.scenario().buckets[parent]);
        let mut levels = levels(plan).to_vec();
        levels.extend(parent.map(|parent| crate::operator::levels(parent)[2].clone()));
        let level = levels.swap_remove(world.operator_rng().usize(..levels.len()));
        let limiters = processes.iter().map(Process::limiter).chain([&other, &operator]);
        for is_stopped in [true, false] {
            let edit = if is_stopped {
                operator.admin().stop(&level)
            } else {
                operator.admin().start(&level)
            };
            edit.send().await.expect("nothing goes wrong any more");
            world.pass(CONFIG_TTL + Duration::from_secs(1)).await;
            for limiter in limiters.clone() {
                let last = world.scenario().last(plan);
                let ask = || limiter.acquire(&plan.entity, &plan.resource);
                // A request of an earlier release would bring its limits back.
                let asks = if world.scenario().moves() {
                    vec![requests::ask(world, limiter, &last)]
                } else {
                    vec![ask().limits(&plan.limits), ask()]
                };
                for ask in asks {
                    let answer = ask.take("rate", 0).send().await;
                    let is_disabled = matches!(answer, Ok(Decision::Disabled(_)));
                    if is_disabled != is_stopped {
                        world.violated(format!("stop: {level} is stopped: {is_stopped}, and a request of {} disabled: {is_disabled}", plan.entity));
                    }
                }
            }
        }
    }
}

/// Sets the limits back to their first values, and writes them to the buckets.
async fn restore(world: &World, ledger: &SharedLedger) {
    configure(world).await;
    if world.scenario().is_rolling || world.has_moved() {
        // Until then a bucket keeps the rules of the latest release.
        world.pass(Duration::from(RULES_STAND) + Duration::from_secs(1)).await;
    }
    let limiter = newcomer(world).await;
    for (at, plan) in world.scenario().buckets.iter().enumerate() {
        // A table with few units may have refused every attempt to erase it.
        if world.is_closed(at) && world.counts().of(Kind::EntityErased) > 0 {
            continue;
        }
        ledger.lock().asks(&[((at, 0), 1000)]);
        let _ = take(world, &limiter, &world.scenario().last(plan), 1).await;
    }
}

/// Time after which every `ttl` is over: at most 90 days after a month.
const SEASON: Duration = Duration::from_secs(130 * 86_400);

/// Checks that deletions by TTL, perhaps days late, lose nothing: usage continues, and a deleted
/// bucket was full and is full again.
async fn outlives_ttl(world: &World, mapping: &mut Mapping, limiter: &RateLimiter) {
    world.pass(SEASON).await;
    for item in world.dynamo().items() {
        let Some(ttl) = item["ttl"]["N"].as_str().and_then(|text| text.parse::<i64>().ok()) else {
            continue;
        };
        if ttl * 1000 < world.now().0 {
            let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
            world.dynamo().delete(&text("PK"), &text("SK"));
            world.count(Kind::TtlDeleted);
        }
    }
    world.check_stream(&Sender { name: TTL, is_told: true, sent: world.now(), is_alone: true });
    for plan in &known(world) {
        all_tokens_are_available(world, limiter, plan).await;
    }
    let since = Window::Daily.start(world.now());
    for plan in &world.scenario().buckets {
        let _ = take(world, limiter, &world.scenario().last(plan), 1).await;
    }
    for plan in &known(world) {
        a_full_bucket_grants_its_balance(world, plan).await;
    }
    mapping.drain().await;
    check::counted_since(world, since);
}

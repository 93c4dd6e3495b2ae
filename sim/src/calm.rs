//! Checks after the last fault: everything settles, writes end, and all promised tokens are
//! available.

use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use weirgate::{Decision, MilliTokens, RateLimiter, RefillRule, Settlement, Window};
use weirgate_shared::RULES_STAND;

use crate::caller::{Record, told};
use crate::check::{self, flowed};
use crate::fault::{Event, Kind};
use crate::fleet::{Process, configure, limiter};
use crate::functions::{Mapping, reconcile};
use crate::image::{Sender, TTL};
use crate::net::{Net, OPERATOR};
use crate::scenario::Plan;
use crate::world::World;

/// Time after which every lease has expired, every balance is full, and every delayed request has
/// arrived.
const REST: Duration = Duration::from_secs(120);
/// Rounds of the functions after which writes must have ended: one round releases leases, three
/// merge four shards into one.
const ROUNDS: usize = 8;

/// Lets everything settle, then compares the callers' record with the table. The `processes` stay
/// alive, but make no calls.
pub async fn settle(
    world: &World,
    mapping: &mut Mapping,
    record: &Record,
    processes: Vec<Process>,
) {
    if world.scenario().has_changes() {
        restore(world, record).await;
    }
    for process in &processes {
        if world.rng().bool() {
            process.shut_down().await;
        }
    }
    world.pass(REST).await;
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
                "I7: nobody calls, and {} writes were made again",
                world.writes() - before
            ));
            break;
        }
    }
    drop(processes);
    {
        let told = told(record);
        check::admitted(world, &told);
        check::consumed(world, &told);
    }
    check::counted(world);
    if !world.violations().is_empty() {
        return;
    }
    let limiter = newcomer(world).await;
    for plan in known(world) {
        let probes = [
            is_whole(world, &limiter, plan).boxed_local(),
            moves_no_token(world, plan).boxed_local(),
            takes_once(world, plan).boxed_local(),
            keeps_what_is_renewed(world, plan).boxed_local(),
            waits_it_out(world, &limiter, plan).boxed_local(),
            gives_what_flows_in(world, &limiter, plan).boxed_local(),
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
    outlives_ttl(world, mapping, &limiter).await;
}

/// Returns the buckets whose expected balance is known. Changed limits reach a shard only with its
/// next take, perhaps never.
fn known(world: &World) -> &[Plan] {
    let (scenario, events) = (world.scenario(), world.events());
    let was_split = scenario.is_sharded || events.of(Event::SplitByFunction) > 0;
    if scenario.has_changes() && was_split {
        &[]
    } else {
        &scenario.buckets
    }
}

/// Sets the limits back to their first values, and writes them to the buckets.
async fn restore(world: &World, record: &Record) {
    configure(world).await;
    if world.scenario().is_rolling {
        // Until then a bucket keeps the rules of the latest release.
        world
            .pass(Duration::from(RULES_STAND) + Duration::from_secs(1))
            .await;
    }
    let limiter = newcomer(world).await;
    for (at, plan) in world.scenario().buckets.iter().enumerate() {
        told(record).asks(&[((at, 0), 1000)]);
        let _ = take(world, &limiter, plan, 1).await;
    }
}

/// Returns the limiter of a new process without network latency.
async fn newcomer(world: &World) -> RateLimiter {
    limiter(&Net::beside(world, "calm"), &world.clock(), false).await
}

/// Time after which every `ttl` is over: at most 90 days after a month.
const SEASON: Duration = Duration::from_secs(130 * 86_400);

/// Checks that deletions by TTL, perhaps days late, lose nothing: usage continues, and a deleted
/// bucket was full and is full again.
async fn outlives_ttl(world: &World, mapping: &mut Mapping, limiter: &RateLimiter) {
    world.pass(SEASON).await;
    for item in world.dynamo().items() {
        let Some(ttl) = item["ttl"]["N"]
            .as_str()
            .and_then(|text| text.parse::<i64>().ok())
        else {
            continue;
        };
        if ttl * 1000 < world.now().0 {
            let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
            world.dynamo().delete(&text("PK"), &text("SK"));
            world.count(Kind::TtlDeleted);
        }
    }
    world.look(&Sender {
        name: TTL,
        is_told: true,
        is_alone: true,
    });
    for plan in known(world) {
        is_whole(world, limiter, plan).await;
    }
    let since = Window::Daily.start(world.now());
    for plan in &world.scenario().buckets {
        let _ = take(world, limiter, plan, 1).await;
    }
    for plan in known(world) {
        gives_no_more(world, plan).await;
    }
    mapping.drain().await;
    check::counted_since(world, since);
}

/// Takes `tokens` of the rate. If denied, returns the retry-after, if there is one.
async fn take(
    world: &World,
    limiter: &RateLimiter,
    plan: &Plan,
    tokens: i64,
) -> Result<(), Option<Duration>> {
    let take = limiter
        .acquire(&plan.entity, &plan.resource)
        .limits(&plan.limits)
        .take("rate", tokens)
        .send()
        .await;
    match take {
        Ok(Decision::Granted(_)) => Ok(()),
        Ok(Decision::Denied(denied)) => Err(denied.retry_after),
        other => {
            world.violated(format!(
                "I2: nothing goes wrong, and {tokens} of {} are answered {other:?}",
                plan.entity
            ));
            Err(None)
        }
    }
}

/// Takes tokens one by one until the first denial.
async fn empty(world: &World, limiter: &RateLimiter, plan: &Plan) {
    for _ in 0..=plan.limits[0].rule().capacity.whole_tokens() {
        if take(world, limiter, plan, 1).await.is_err() {
            return;
        }
    }
}

/// I4, I6, I7: checks that every token and every slot is available after a rest.
async fn is_whole(world: &World, limiter: &RateLimiter, plan: &Plan) {
    let balances = limiter
        .peek(&plan.entity, &plan.resource)
        .limits(&plan.limits)
        .send()
        .await;
    let balances = balances.expect("nothing goes wrong any more");
    for limit in &plan.limits {
        let name = limit.name().as_str();
        let available = balances
            .limit(name)
            .map_or(MilliTokens::ZERO, |status| status.available);
        if available != limit.rule().capacity {
            let all = limit.rule().capacity;
            world.violated(format!(
                "I4: after a rest {} has {available} of {all} {name}",
                plan.entity
            ));
        }
    }
}

/// I1: checks that a bucket that is full again since its last write gives no more than its balance,
/// also to processes without a view that request at once.
async fn gives_no_more(world: &World, plan: &Plan) {
    let rule = *plan.limits[0].rule();
    let all = rule.capacity.whole_tokens();
    // A process without a view assumes that less than an eighth was refilled since the last write.
    world.pass(until_flowed(&rule, (all / 9).max(1))).await;
    let from = world.now();
    let mut given = 0;
    for tokens in [all - 1, all / 9, 1, 1] {
        let is_given = tokens > 0
            && take(world, &newcomer(world).await, plan, tokens)
                .await
                .is_ok();
        given += if is_given { tokens } else { 0 };
    }
    let there = rule.capacity.0 + flowed(&rule, world.now().since(from).0);
    if given * 1000 > there {
        world.violated(format!(
            "I1: {given} of {} of {} were given at once",
            MilliTokens(there),
            plan.entity
        ));
    }
}

/// Returns the time in which `tokens` are refilled.
fn until_flowed(rule: &RefillRule, tokens: i64) -> Duration {
    let ms = (tokens * 1000 * rule.refill_period_ms).div_euclid(rule.refill_amount.0) + 1;
    Duration::from_millis(ms.unsigned_abs())
}

/// I6, checked in every transaction: splits the bucket, and merges it during takes. I2: a split
/// bucket gives its whole balance. The bucket is full afterwards.
async fn moves_no_token(world: &World, plan: &Plan) {
    if !world.scenario().is_sharded {
        return;
    }
    let of = |name| async move { limiter(&Net::new(world, name), &world.clock(), false).await };
    let (operator, caller) = (of(OPERATOR).await, of("calm").await);
    let reshard = |shards| operator.set_shards(&plan.entity, &plan.resource, &plan.limits, shards);
    let calls = async || {
        for _ in 0..8 {
            let _ = take(world, &caller, plan, 1).await;
        }
    };
    for shards in [2, 1] {
        let (done, ()) = futures_util::join!(reshard(shards), calls());
        world.note(|| format!("{} in {shards} shards: {done:?}", plan.entity));
        rest(world, plan).await;
        let all = plan.limits[0].rule().capacity.whole_tokens();
        if take(world, &caller, plan, all).await.is_err() {
            world.violated(format!(
                "I2: all {all} of a rested {} are not to be had of {done:?} shards",
                plan.entity
            ));
            return;
        }
        rest(world, plan).await;
    }
}

/// I7: checks that a take whose response is lost is found by its write id, and not repeated.
async fn takes_once(world: &World, plan: &Plan) {
    let net = Net::beside(world, "calm");
    let limiter = limiter(&net, &world.clock(), false).await;
    let used = || {
        let of = |((entity, limit, _), amount): (&(String, String, i64), &i64)| {
            (*entity == plan.entity && limit == "rate").then_some(*amount)
        };
        world.consumed().iter().filter_map(of).sum::<i64>()
    };
    // A take from a full bucket requires an unchanged shard, so it cannot be applied twice. This
    // take makes the bucket less than full.
    let _ = take(world, &limiter, plan, 1).await;
    let before = used();
    net.lose_next();
    let is_given = take(world, &limiter, plan, 1).await.is_ok();
    let used = used() - before;
    if !is_given || used != 1000 {
        world.violated(format!(
            "I7: one token of {} was asked for, {} were taken",
            plan.entity,
            MilliTokens(used)
        ));
    }
    rest(world, plan).await;
}

/// I4: checks that a renewed lease stays with its holder, also for a process that has seen it
/// expire.
async fn keeps_what_is_renewed(world: &World, plan: &Plan) {
    const LEASE: Duration = Duration::from_secs(1);
    let (holder, other) = (newcomer(world).await, newcomer(world).await);
    let request = holder
        .acquire(&plan.entity, &plan.resource)
        .limits(&plan.limits)
        .take("rate", 1)
        .lease(LEASE);
    let Ok(Decision::Granted(mut grant)) = request.send().await else {
        world.violated(format!(
            "I2: nothing goes wrong, and a full {} gives no token",
            plan.entity
        ));
        return;
    };
    let _ = take(world, &other, plan, 1).await;
    world.pass(LEASE + Duration::from_millis(1)).await;
    let renewed = grant.renew(10 * LEASE).await;
    // More than the balance, so the process looks for expired leases.
    let _ = take(
        world,
        &other,
        plan,
        plan.limits[0].rule().capacity.whole_tokens() - 1,
    )
    .await;
    let released = grant.release().await;
    if matches!(renewed, Ok(Settlement::Applied)) && !matches!(released, Ok(Settlement::Applied)) {
        world.violated(format!(
            "I4: a lease of {} was renewed, and ended by another: {released:?}",
            plan.entity
        ));
    }
    rest(world, plan).await;
}

/// Waits until the bucket is full.
async fn rest(world: &World, plan: &Plan) {
    let rule = plan.limits[0].rule();
    world
        .pass(until_flowed(rule, 2 * rule.capacity.whole_tokens()))
        .await;
}

/// I5: checks that a denied request is granted after its retry-after if there are no other takes.
async fn waits_it_out(world: &World, limiter: &RateLimiter, plan: &Plan) {
    let rule = plan.limits[0].rule();
    let all = rule.capacity.whole_tokens();
    if take(world, limiter, plan, all).await.is_err() {
        world.violated(format!(
            "I2: all {all} of a rested {} are not to be had",
            plan.entity
        ));
    }
    let (need, from) = (world.rng().i64(1..=all), world.now());
    match take(world, limiter, plan, need).await {
        Ok(()) if need * 1000 > flowed(rule, world.now().since(from).0) => {
            world.violated(format!(
                "I1: {need} of {} were given after all of it",
                plan.entity
            ));
        }
        Ok(()) => {}
        Err(None) => world.violated(format!(
            "I5: {} says that {need} of {all} never come",
            plan.entity
        )),
        Err(Some(wait)) => {
            world.pass(wait).await;
            if let Err(more) = take(world, limiter, plan, need).await {
                world.violated(format!(
                    "I5: {} told to wait {wait:?} for {need}, and {more:?} then",
                    plan.entity
                ));
            }
        }
    }
}

/// Returns the number of processes whose requests add up to twice the refill, if each sends the
/// next request after a response; at least three.
fn rivals(world: &World, rule: &RefillRule) -> i64 {
    let round_trip = i64::try_from(2 * world.scenario().latency.end()).unwrap_or(i64::MAX);
    3.max(2 * flowed(rule, round_trip) / 1000 + 1)
}

/// I2: if demand exceeds the refill, at least 99 % of the refill is granted. I1: no more than the
/// refill is granted.
async fn gives_what_flows_in(world: &World, limiter: &RateLimiter, plan: &Plan) {
    if !world.scenario().tries_edge {
        return;
    }
    empty(world, limiter, plan).await;
    let rule = plan.limits[0].rule();
    let from = world.now();
    let rivals = rivals(world, rule);
    let end = from.plus(until_flowed(rule, 70 * rivals).into());
    let rival = async |_| {
        let limiter = self::limiter(&Net::new(world, "rival"), &world.clock(), false).await;
        let mut given = 0;
        while world.now() < end {
            let take = limiter
                .acquire(&plan.entity, &plan.resource)
                .limits(&plan.limits)
                .take("rate", 1);
            let take = take.wait_up_to(Duration::from_secs(30)).send().await;
            given += i64::from(take.is_ok_and(|decision| decision.is_granted()));
        }
        given
    };
    let given: i64 = join_all((0..rivals).map(rival)).await.into_iter().sum();
    let entitled = flowed(rule, world.now().since(from).0);
    // The last request of each process may be in flight.
    if (given + rivals) * 100_000 < entitled * 99 {
        world.violated(format!(
            "I2: {given} of {} that flowed into {} were given",
            MilliTokens(entitled),
            plan.entity
        ));
    }
    // A part of a token may have been available.
    if given * 1000 > entitled + 1000 {
        world.violated(format!(
            "I1: {given} of {} that flowed into {} were given",
            MilliTokens(entitled),
            plan.entity
        ));
    }
}

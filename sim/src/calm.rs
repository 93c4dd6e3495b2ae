//! What comes when nothing goes wrong any more: everything settles, writes end, and all that was
//! promised is there.

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

/// Until every lease has expired, every balance is full again, and what was on its way has arrived.
const REST: Duration = Duration::from_secs(120);
/// Rounds of the functions after which writes must have ended: leases go back in one, four shards
/// become one in three.
const ROUNDS: usize = 8;

/// Lets everything settle, and holds what callers were told against the table. The `processes` live
/// on, and nobody calls.
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
            // What fails once, fails again and again, and takes long.
            if !world.violations().is_empty() {
                return;
            }
        }
    }
    reconcile(world).await;
    mapping.drain().await;
    // Windows of the run are over by now, and nothing of them is on its way.
    world.pass(Duration::from_secs(26 * 3600)).await;
    check::counted(world);
    outlives_ttl(world, mapping, &limiter).await;
}

/// The buckets of which it is known what they must have. New numbers reach a shard with the next
/// take of it, perhaps never.
fn known(world: &World) -> &[Plan] {
    let (scenario, events) = (world.scenario(), world.events());
    let was_split = scenario.is_sharded || events.of(Event::SplitByFunction) > 0;
    if scenario.has_changes() && was_split {
        &[]
    } else {
        &scenario.buckets
    }
}

/// Sets the limits as they were at first, and brings them to the buckets.
async fn restore(world: &World, record: &Record) {
    configure(world).await;
    if world.scenario().is_rolling {
        // Until then a bucket keeps the rules of the release that came last.
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

/// A process that has just begun, so close to the table that no time passes until it is answered.
async fn newcomer(world: &World) -> RateLimiter {
    limiter(&Net::beside(world, "calm"), &world.clock(), false).await
}

/// When everything that has a `ttl` is past it: 90 days after a month at most.
const SEASON: Duration = Duration::from_secs(130 * 86_400);

/// What TTL deletes, perhaps days late, is missed by nobody: usage goes on. A bucket that it
/// deletes was full, and is again.
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

/// Takes `tokens` of the rate; for how long it was denied, if it was.
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

/// Takes all there is, token by token.
async fn empty(world: &World, limiter: &RateLimiter, plan: &Plan) {
    for _ in 0..=plan.limits[0].rule().capacity.whole_tokens() {
        if take(world, limiter, plan, 1).await.is_err() {
            return;
        }
    }
}

/// I4, I6, I7: after a rest, every token and every slot is there again.
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

/// I1: a bucket that is full again since it was last written to gives what it has and no more, also
/// to processes that know nothing of it and ask at once.
async fn gives_no_more(world: &World, plan: &Plan) {
    let rule = *plan.limits[0].rule();
    let all = rule.capacity.whole_tokens();
    // Such a process takes for granted that what has flowed in unseen is less than an eighth.
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

/// How long it takes until `tokens` have flowed in.
fn until_flowed(rule: &RefillRule, tokens: i64) -> Duration {
    let ms = (tokens * 1000 * rule.refill_period_ms).div_euclid(rule.refill_amount.0) + 1;
    Duration::from_millis(ms.unsigned_abs())
}

/// I6, held against every transaction: a bucket is split, and merged while somebody takes of it;
/// and I2: it gives all it has also in parts. It is full again then.
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

/// I7: a take whose answer is lost is found by its id, and not made again.
async fn takes_once(world: &World, plan: &Plan) {
    let net = Net::beside(world, "calm");
    let limiter = limiter(&net, &world.clock(), false).await;
    let used = || {
        let of = |((entity, limit, _), amount): (&(String, String, i64), &i64)| {
            (*entity == plan.entity && limit == "rate").then_some(*amount)
        };
        world.consumed().iter().filter_map(of).sum::<i64>()
    };
    // A bucket that is full is taken of only as it was seen, so that nothing happens twice; this
    // one no longer is.
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

/// I4: a lease that is made to last longer is its holder's, also for who has seen it expire.
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
    // More than was there, so that what leases held is looked for.
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

/// I5: who is denied and waits as long as he was told is admitted, if nobody else takes.
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

/// Processes that ask for twice as much as flows in, if each asks again as soon as it is answered,
/// and three at least.
fn rivals(world: &World, rule: &RefillRule) -> i64 {
    let round_trip = i64::try_from(2 * world.scenario().latency.end()).unwrap_or(i64::MAX);
    3.max(2 * flowed(rule, round_trip) / 1000 + 1)
}

/// I2: where more is asked than flows in, at least 99 % of what flows in is given, and I1: no more
/// than that.
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
    // The last of each may be on its way.
    if (given + rivals) * 100_000 < entitled * 99 {
        world.violated(format!(
            "I2: {given} of {} that flowed into {} were given",
            MilliTokens(entitled),
            plan.entity
        ));
    }
    // A part of a token may have been there.
    if given * 1000 > entitled + 1000 {
        world.violated(format!(
            "I1: {given} of {} that flowed into {} were given",
            MilliTokens(entitled),
            plan.entity
        ));
    }
}
